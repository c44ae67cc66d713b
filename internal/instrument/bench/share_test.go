package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// TestShare: a limit is written where the kernel reads it, and a server is started in its group.
func TestShare(t *testing.T) {
	g := &groups{parent: t.TempDir(), prefix: "x-"}
	dir, err := g.limitShare("server", 50)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "cpu.max")); err != nil || string(text) != "10000 20000" {
		t.Errorf("the limit is %q, %v; want half of 20 ms", text, err)
	}
	h := &Host{enter: []string{"nsenter"}}
	argv := (&slowdown{server: "/server"}).way(plain).side(h, "ib_write_bw")
	if !slices.Contains(argv, "/server/cgroup.procs") || !strings.HasSuffix(strings.Join(argv, " "), "nsenter ib_write_bw") {
		t.Errorf("%q: want the group, and the host's command", argv)
	}
	var none *slowdown
	if len(none.way(plain).side(h, "x")) != 2 || none.done() != nil {
		t.Error("nobody asked for a limit, and there is one")
	}
	if s, err := slow(0, 1); s != nil || err != nil {
		t.Errorf("no share: %v, %v", s, err)
	}
	// A group that could not be removed is made anew.
	for range 2 {
		if _, err := g.add("again"); err != nil {
			t.Error(err)
		}
	}
}

// TestMemoryComesBack: guests of other settings are ended when memory is short, and a place that did not fit is tried again later.
func TestMemoryComesBack(t *testing.T) {
	was := settings[experiment.VMsApart]
	defer func() { settings[experiment.VMsApart] = was }()
	tried, ended := 0, false
	settings[experiment.VMsApart] = func(context.Context, *Environments, experiment.Cell) (*place, error) {
		tried++
		return nil, fmt.Errorf("too much: %w", errMemory)
	}
	in := &Environments{accounted: true, places: map[string]*place{"vms 0 ": {machines: []*machine{{}}, close: func() { ended = true }}}}
	for range 2 {
		if _, err := in.get(t.Context(), experiment.Cell{Setting: experiment.VMsApart}); !errors.Is(err, errMemory) {
			t.Errorf("a place: %v", err)
		}
	}
	if !ended || tried != 3 || len(in.places) != 0 {
		t.Errorf("others ended: %v; tried %d times, want twice, and once more later", ended, tried)
	}
}

// TestDealt: pairs are dealt among the containers of both sides, and a tool that runs all pairs with one command has all of them.
func TestDealt(t *testing.T) {
	l := &Lab{Vrdma: "/lab/vrdma", Dir: t.TempDir()}
	host := func(ip string) *Host { return &Host{lab: l, IP: ip, pid: 1, Socket: l.Dir + "/" + ip} }
	routes := []Route{{Client: host("1.1"), Server: host("2.1")}, {Client: host("1.2"), Server: host("2.2")}}
	c := experiment.Cell{Setting: experiment.Containers, Transport: experiment.TCP, Tool: "tcp_bw", Pairs: 4, PerSide: 2, Size: 64}
	jobs, err := makeJobs(t.Context(), l, drivers["tcp_bw"], c, routes, nil, 1)
	if err != nil || len(jobs) != 4 {
		t.Fatalf("%d jobs: %v", len(jobs), err)
	}
	for i, want := range []string{"2.1", "2.2", "2.1", "2.2"} {
		if jobs[i].ip() != want {
			t.Errorf("pair %d has its server at %s, want %s", i, jobs[i].ip(), want)
		}
	}
	j := &job{cell: c, route: routes[0], routes: routes}
	if err := os.WriteFile(filepath.Join(l.Dir, "transfer"), nil, 0o755); err != nil { // instead of building it
		t.Fatal(err)
	}
	mpi := drivers["mpi_transfer"]
	if err := mpi.prepare(t.Context(), l, j); err != nil {
		t.Fatal(err)
	}
	_, client := mpi.commands(j)
	argv := strings.Join(client, " ")
	if !strings.Contains(argv, "--host 1.1:2,2.1:2,1.2:2,2.2:2 ") {
		t.Errorf("%s: want two ranks on each host, clients and servers in turn", argv)
	}
	script, err := os.ReadFile(j.dir)
	for _, r := range routes {
		if !strings.Contains(string(script), r.Client.IP+") exec ") || !strings.Contains(string(script), r.Server.IP+") exec ") {
			t.Errorf("%v: nobody is started at %s or %s:\n%s", err, r.Client.IP, r.Server.IP, script)
		}
	}
}

func TestGuestsFit(t *testing.T) {
	const meminfo = "MemTotal:  8000000 kB\nMemAvailable:  4000000 kB\n"
	if err := fits(meminfo, 2); err != nil {
		t.Errorf("two guests: %v", err)
	}
	if err := fits(meminfo, 8); !errors.Is(err, errMemory) || !strings.Contains(err.Error(), "ask for fewer guests") {
		t.Errorf("eight guests: %v", err)
	}
	if got := strings.Join(boxNames(3), " "); got != "a b a2 b2 a3 b3" {
		t.Errorf("names are %s", got)
	}
}

// TestShareNeedsServer: who has no server of its own is refused.
func TestShareNeedsServer(t *testing.T) {
	h := &Host{enter: []string{"nsenter"}}
	jobs := []*job{{cell: experiment.Cell{Tool: "mpi_transfer", Pairs: 1, Share: 50}, route: Route{Client: h, Server: h}}}
	if _, err := (Route{}).couples(t.Context(), plain, drivers["mpi_transfer"], jobs, nil); err == nil || !strings.Contains(err.Error(), "mpi_transfer has no server of its own") {
		t.Errorf("a tool with one command: %v", err)
	}
}

// TestRoutes: a cell with several containers a side has all routes of its transport, and a transport that is there once only says so.
func TestRoutes(t *testing.T) {
	host := func(ip string) *Host { return &Host{IP: ip} }
	p := &place{route: Route{Client: host("1.1"), Server: host("2.1")}, others: []Route{{Client: host("1.2"), Server: host("2.2")}}}
	c := experiment.Cell{Setting: experiment.Containers, Transport: experiment.TCP, Tool: "tcp_bw", Pairs: 4, PerSide: 2, Size: 64}
	routes, err := p.routes(c, p.route)
	if err != nil || len(routes) != 2 || len(p.hosts()) != 4 {
		t.Fatalf("%d routes between %d hosts: %v", len(routes), len(p.hosts()), err)
	}
	if _, err := p.routes(c, Route{Client: host("1.9"), Server: host("2.9")}); err == nil || !strings.Contains(err.Error(), "not with 2 a side") {
		t.Errorf("another route: %v", err)
	}
}
