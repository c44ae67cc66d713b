package testbed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A switch without memory keeps running without ports. That is reported at once.
func TestOVSFailure(t *testing.T) {
	log := "2026-11-16T23:02:22.570Z|00166|netdev_dpdk|INFO|vHost Device 'b' has been added on numa node 0\n"
	if got := ovsFailure(log); got != "" {
		t.Errorf("nothing is wrong, but %q", got)
	}
	log += "2026-11-16T23:02:22.570Z|00079|netdev_dpdk|ERR|Failed to create memory pool for netdev v1, with MTU 1500 on socket 0: No buffer space available\n"
	if got, want := ovsFailure(log), "Failed to create memory pool for netdev v1, with MTU 1500 on socket 0: No buffer space available"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestGuestsFit(t *testing.T) {
	const meminfo = "MemTotal:  8000000 kB\nMemAvailable:  4000000 kB\n"
	if err := fits(meminfo, 2); err != nil {
		t.Errorf("two guests: %v", err)
	}
	if err := fits(meminfo, 8); !errors.Is(err, errNoMemory) || !strings.Contains(err.Error(), "ask for fewer guests") {
		t.Errorf("eight guests: %v", err)
	}
	if got := strings.Join(ContainerNames(3), " "); got != "a b a2 b2 a3 b3" {
		t.Errorf("names are %s", got)
	}
}

// TestMemoryComesBack: guests of other settings are stopped when memory is short, and an environment that did not fit is tried again
// later.
func TestMemoryComesBack(t *testing.T) {
	was := constructors[experiment.VMsApart]
	defer func() { constructors[experiment.VMsApart] = was }()
	tried, ended := 0, false
	constructors[experiment.VMsApart] = func(context.Context, *Environments, experiment.Cell) (*Environment, error) {
		tried++
		return nil, fmt.Errorf("too much: %w", errNoMemory)
	}
	in := &Environments{accounted: true, kept: map[string]*Environment{"vms 0 ": {VMs: []*VM{{}}, Close: func() { ended = true }}}}
	for range 2 {
		if _, err := in.get(t.Context(), experiment.Cell{Setting: experiment.VMsApart}); !errors.Is(err, errNoMemory) {
			t.Errorf("a place: %v", err)
		}
	}
	if !ended || tried != 3 || len(in.kept) != 0 {
		t.Errorf("others ended: %v; tried %d times, want twice, and once more later", ended, tried)
	}
}

// TestRoutes: a cell with several containers a side has all routes of its transport. A transport with one route reports an error.
func TestRoutes(t *testing.T) {
	host := func(ip string) *Host { return &Host{IP: ip} }
	p := &Environment{Route: Route{Client: host("1.1"), Server: host("2.1")}, others: []Route{{Client: host("1.2"), Server: host("2.2")}}}
	c := experiment.Cell{Setting: experiment.Containers, Transport: experiment.TCP, Tool: "tcp_bw", Pairs: 4, PerSide: 2, Size: 64}
	routes, err := p.Routes(c, p.Route)
	if err != nil || len(routes) != 2 || len(p.hosts()) != 4 {
		t.Fatalf("%d routes between %d hosts: %v", len(routes), len(p.hosts()), err)
	}
	if _, err := p.Routes(c, Route{Client: host("1.9"), Server: host("2.9")}); err == nil || !strings.Contains(err.Error(), "not with 2 a side") {
		t.Errorf("another route: %v", err)
	}
}
