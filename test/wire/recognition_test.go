package wire

import (
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/cable"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// peer is what a host holds another one for, at an address; empty if it has not met it.
func (h *host) peer(t *testing.T, address string) protocol.PeerStatus {
	t.Helper()
	for _, p := range h.Status(t).Peers {
		if p.Address == address {
			return p
		}
	}
	return protocol.PeerStatus{}
}

// holds waits until h holds the host at address for a kind.
func (h *host) holds(t *testing.T, address, kind string) {
	t.Helper()
	if !harness.Poll(minute, func() bool { return h.peer(t, address).Kind == kind }) {
		t.Errorf("the host at %s holds that at %s for %+v, want %s", h.ip4, address, h.peer(t, address), kind)
	}
}

// TestRecognition: two vrdma hosts know each other, by every address that they use; with
// recognition off on either side they treat each other as any host.
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
				// A connection that stays until both have made up their minds.
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
				// Where both asked at the same time, one of two answers comes too late to matter.
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

// TestReplaced: a vrdma host is gone, and what comes back at its address is none. Whoever
// connects treats it as what it is from the beginning, and it is held to be that in the end.
func TestReplaced(t *testing.T) {
	w := newLab(t, layout{mtu: 1500, cable: true})
	workload.Exchange(t, "rc", "-n 5").Run(t, w.a.side(false), w.b.side(false), minute)
	w.b.holds(t, w.a.ip4, "vrdma")
	w.a.Stop(t)
	w.a.start(t, "--no-recognise")
	w.cable.SetFaults(cable.Faults{Drop: 0.02})
	workload.Exchange(t, "rc", "-n 20").Run(t, w.a.side(false), w.b.side(false), minute)
	// A connection from now on asks, unless it has been asked just before.
	if !harness.Poll(minute, func() bool {
		workload.Exchange(t, "rc", "-n 2").Run(t, w.a.side(false), w.b.side(false), minute)
		return w.b.peer(t, w.a.ip4).Kind == "foreign"
	}) {
		t.Errorf("the host at %s holds that at %s for %+v, want foreign", w.b.ip4, w.a.ip4, w.b.peer(t, w.a.ip4))
	}
	// It comes back as one of ours, and asks itself.
	w.a.Stop(t)
	w.a.start(t)
	workload.Exchange(t, "rc", "-n 20").Run(t, w.a.side(false), w.b.side(false), minute)
	// Who is not spoken to is forgotten, so both go on speaking.
	if !harness.Poll(minute, func() bool {
		workload.Exchange(t, "rc", "-n 2").Run(t, w.a.side(false), w.b.side(false), minute)
		return w.a.peer(t, w.b.ip4).Kind == "vrdma" && w.b.peer(t, w.a.ip4).Kind == "vrdma"
	}) {
		t.Errorf("the hosts hold each other for %+v and %+v, want vrdma", w.a.peer(t, w.b.ip4), w.b.peer(t, w.a.ip4))
	}
}
