package provision

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"vrdma.dev/vrdma/internal/net/vhostuser"
	"vrdma.dev/vrdma/internal/net/vswitch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A fakePlacement is the placement of a NIC that another host may have.
type fakePlacement struct {
	claims, releases int
	elsewhere        time.Time           // until when another host has it
	hangs            time.Duration       // how long Release takes
	during           func()              // called by Claim
	held             map[tenant.Key]bool // by this host
	mu               sync.Mutex
}

var errElsewhere = errors.New("it is on host b")

func (p *fakePlacement) Claim(k tenant.Key) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims++
	if time.Now().Before(p.elsewhere) {
		return errElsewhere
	}
	p.held = map[tenant.Key]bool{k: true}
	if p.during != nil {
		p.during()
	}
	return nil
}

func (p *fakePlacement) Release(k tenant.Key) error {
	time.Sleep(p.hangs)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.releases++
	delete(p.held, k)
	return nil
}

// newSwitchPort makes the port of a NIC, and machines that are connected.
func newSwitchPort(p Placement, names ...string) (g *switchPort, machines []*machine) {
	g = &switchPort{
		host: &host{cfg: Config{Placement: p, Log: slog.New(slog.DiscardHandler)}},
		of:   &hostedNIC{key: tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: "web"}}, port: &vswitch.Port{PortConfig: vswitch.PortConfig{NIC: "red/web"}},
	}
	for _, n := range names {
		g.machines = append(g.machines, &machine{who: n})
	}
	return g, g.machines
}

// TestMachineClaims: a virtual machine has the NIC while its card runs, and this host has it as long.
func TestMachineClaims(t *testing.T) {
	p := new(fakePlacement)
	g, m := newSwitchPort(p, "one", "two")
	has := func(when string, users ...string) {
		t.Helper()
		if got := g.users(); !slices.Equal(got, users) || p.held[g.of.key] != (len(users) > 0) {
			t.Errorf("%s: users %q, placement held %v; want %q", when, got, p.held, users)
		}
	}
	has("connected")
	if got := g.connected(); len(got) != 2 || !strings.Contains(got[0], "one, whose card does not run") {
		t.Errorf("connected: %q", got)
	}
	p.during = func() { // the control plane looks while a machine starts
		if len(g.users()) == 0 {
			p.held = nil
		}
	}
	if err := g.start(m[0]); err != nil {
		t.Fatal(err)
	}
	has("one runs", "one")
	if err := g.start(m[1]); !errors.Is(err, vswitch.ErrTaken) {
		t.Errorf("two starts: %v", err)
	}
	if g.stop(m[1]); p.releases != 0 {
		t.Error("a machine that does not have the NIC released it")
	}
	if err := g.serveTap(&tap{}); !errors.Is(err, vswitch.ErrTaken) {
		t.Errorf("a container: %v", err)
	}
	g.stop(m[0])
	has("one has stopped")
	if err := g.start(m[1]); err != nil {
		t.Fatal(err)
	}
	has("two runs", "two")
	g.stop(m[1])
	if err := g.start(m[0]); err != nil { // the migration has failed
		t.Fatal(err)
	}
	has("one runs again", "one")
	g.closed = true
	if g.stop(m[0]); g.start(m[0]) == nil {
		t.Error("a NIC that was removed")
	}
	// follow calls the hook that the caller has set, too.
	g.closed = false
	stopped := false
	d := &vhostuser.Device{Stops: func(*vhostuser.Conn) { stopped = true; has("while it stops", "one") }}
	g.follow(m[0], d)
	if err := d.Starts(nil); err != nil {
		t.Fatal(err)
	}
	if d.Stops(nil); !stopped {
		t.Error("the caller's hook was not called")
	}
	has("it has stopped")
}

// TestMachineWaits: a machine waits for another host's release, once: while the other host keeps the NIC, QEMU must not wait every second.
// A store that hangs delays the end of a card for a bounded time.
func TestMachineWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(fakePlacement)
		g, m := newSwitchPort(p, "one")
		took := func(f func() error) (time.Duration, error) {
			began := time.Now()
			err := f()
			return time.Since(began), err
		}
		start := func() error { return g.start(m[0]) }
		p.elsewhere = time.Now().Add(time.Second)
		if d, err := took(start); err != nil || d > 1100*time.Millisecond {
			t.Errorf("released after a second: %v, %v", d, err)
		}
		g.stop(m[0])
		p.elsewhere = time.Now().Add(time.Hour)
		if d, err := took(start); !errors.Is(err, errElsewhere) || d < claimTime {
			t.Errorf("not released: %v, %v", d, err)
		}
		if d, err := took(start); !errors.Is(err, errElsewhere) || d > 100*time.Millisecond {
			t.Errorf("still not released: %v, %v", d, err)
		}
		if g.users() != nil || g.runs != nil {
			t.Errorf("it has the NIC: %v", g.users())
		}
		time.Sleep(time.Minute)
		p.elsewhere = time.Now().Add(time.Second)
		if d, err := took(start); err != nil || d > 1100*time.Millisecond {
			t.Errorf("released after a second, much later: %v, %v", d, err)
		}
		g.stop(m[0])
		p.elsewhere = time.Time{}
		if d, err := took(start); err != nil || d > 100*time.Millisecond {
			t.Errorf("released: %v, %v", d, err)
		}
		p.hangs = time.Minute
		if d, _ := took(func() error { g.stop(m[0]); return nil }); d > releaseMost {
			t.Errorf("a hanging store delays the end for %v", d)
		}
		time.Sleep(time.Minute)
	})
}
