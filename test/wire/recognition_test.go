package wire

import (
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// peer returns the kind that a host assigns to another one at an address; empty if they have not met.
func (h *host) peer(t *testing.T, address string) protocol.PeerStatus {
	t.Helper()
	for _, p := range h.Status(t).Peers {
		if p.Address == address {
			return p
		}
	}
	return protocol.PeerStatus{}
}

// holds waits until h assigns a kind to the host at address.
func (h *host) holds(t *testing.T, address, kind string) {
	t.Helper()
	if !harness.Poll(minute, func() bool { return h.peer(t, address).Kind == kind }) {
		t.Errorf("the host at %s holds that at %s for %+v, want %s", h.ip4, address, h.peer(t, address), kind)
	}
}

// TestRecognition: two vrdma hosts recognize each other by every address that they use. With recognition off on either
// side they treat each other as foreign hosts.
func TestRecognition(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b []string
		kind string
	}{
		{"both", nil, nil, "vrdma"},
		{"server off", []string{"--no-recognise"}, nil, "foreign"},
		{"client off", nil, []string{"--no-recognise"}, "foreign"},
		{"off", []string{"--no-recognise"}, []string{"--no-recognise"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			harness.Need(t, "nsenter", "ip")
			w := newWire(t, layout{mtu: 1500})
			w.a.start(t, c.a...)
			w.b.start(t, c.b...)
			for _, v6 := range []bool{false, true} {
				if c.name == "off" {
					workload.Exchange(t, "rc", "-n 5").Run(t, w.a.side(v6), w.b.side(v6), minute)
					continue
				}
				// A connection that lasts until both have decided.
				talk := workload.Perf("write_bw", "-D 180 -f 0 -s 4096").Start(t, w.a.side(v6), w.b.side(v6))
				for _, p := range []struct {
					args []string
					h, o *host
				}{{c.a, w.a, w.b}, {c.b, w.b, w.a}} {
					if p.args != nil {
						continue
					}
					address := pick6(v6, p.o.ip4, p.o.ip6)
					p.h.holds(t, address, c.kind)
					if known, want := p.h.peer(t, address).Version, p.o.Status(t).Version; c.kind == "vrdma" && known != want {
						t.Errorf("the host at %s holds the other's version for %q, want %q", p.h.ip4, known, want)
					}
				}
				talk.Client.End()
				talk.Server.End()
				talk.Client.Ended(minute)
				talk.Server.Ended(minute)
			}
			for i, h := range []*host{w.a, w.b} {
				s := h.Status(t)
				if n := s.Counters["hello_doubts"] + s.Counters["rx_icrc_encapsulated"]; n != 0 {
					t.Errorf("%d packets doubted: %v", n, s.Counters)
				}
				// If both asked at the same time, one of two answers comes too late to matter.
				o := []*host{w.b, w.a}[i].Status(t).Counters
				if n, most := s.Counters["hello_ignored"], o["hello_answered"]-min(o["hello_answered"], s.Counters["hello_recognised"]); n > most {
					t.Errorf("%d messages ignored, at most %d came twice: %v", n, most, s.Counters)
				}
				if c.kind == "" && len(s.Peers) != 0 {
					t.Errorf("the host at %s knows %+v, want nobody", h.ip4, s.Peers)
				}
			}
			workload.Exchange(t, "rc", "-n 20").Run(t, w.a.side(false), w.b.side(false), minute)
		})
	}
}

func pick6(v6 bool, four, six string) string {
	if v6 {
		return six
	}
	return four
}

// TestReplaced: a vrdma host disappears, and another kind of host comes back at its address. A new connection treats it
// correctly from the start, and finally it is recorded as foreign.
func TestReplaced(t *testing.T) {
	w := newLab(t, layout{mtu: 1500, cable: true})
	workload.Exchange(t, "rc", "-n 5").Run(t, w.a.side(false), w.b.side(false), minute)
	w.b.holds(t, w.a.ip4, "vrdma")
	w.a.Stop(t)
	w.a.start(t, "--no-recognise")
	w.cable.SetFaults(cable.Faults{Drop: 0.02})
	workload.Exchange(t, "rc", "-n 20").Run(t, w.a.side(false), w.b.side(false), minute)
	// A new connection asks, unless another one has just asked.
	if !harness.Poll(minute, func() bool {
		workload.Exchange(t, "rc", "-n 2").Run(t, w.a.side(false), w.b.side(false), minute)
		return w.b.peer(t, w.a.ip4).Kind == "foreign"
	}) {
		t.Errorf("the host at %s holds that at %s for %+v, want foreign", w.b.ip4, w.a.ip4, w.b.peer(t, w.a.ip4))
	}
	// It comes back as a vrdma host, and asks itself.
	w.a.Stop(t)
	w.a.start(t)
	workload.Exchange(t, "rc", "-n 20").Run(t, w.a.side(false), w.b.side(false), minute)
	// A silent peer is forgotten, so both continue to send.
	if !harness.Poll(minute, func() bool {
		workload.Exchange(t, "rc", "-n 2").Run(t, w.a.side(false), w.b.side(false), minute)
		return w.a.peer(t, w.b.ip4).Kind == "vrdma" && w.b.peer(t, w.a.ip4).Kind == "vrdma"
	}) {
		t.Errorf("the hosts hold each other for %+v and %+v, want vrdma", w.a.peer(t, w.b.ip4), w.b.peer(t, w.a.ip4))
	}
}
