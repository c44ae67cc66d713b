package cm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// A dialogue is a conversation of two programs. Its result must not depend on lost, doubled or delayed messages.
type dialogue struct {
	name  string
	setup func(a, b *node)
	talk  func(w *world, a, b *node)
	// refusal: a lost REJ is not repeated, but the rejected message is. So a program may get a request more than once, and may
	// see another reject reason: that its peer does not know the connection.
	refusal bool
}

func ask(w *world, a, b *node) {
	a.conn, _ = a.m.Ask(w.now, a, service, Path{SGID: a.gid, DGID: b.gid}, []byte("hello"))
	w.run(w.now + 200*second)
}

func establish(w *world, a, b *node) {
	a.connect(b)
	w.run(w.now + 200*second)
}

// hangUp disconnects, if the program still exists.
func (n *node) hangUp() {
	if n.conn != nil && n.w.nodes[n.gid] == n {
		n.m.Disconnect(n.w.now, n.conn)
	}
}

// dialogues together contain every message type.
var dialogues = []dialogue{
	{"life", nil, func(w *world, a, b *node) {
		establish(w, a, b)
		a.hangUp()
	}, false},
	{"life, the other closes", nil, func(w *world, a, b *node) {
		establish(w, a, b)
		b.hangUp()
	}, false},
	{"both close", nil, func(w *world, a, b *node) {
		establish(w, a, b)
		a.hangUp()
		b.hangUp()
	}, false},
	{"slow programs", func(a, b *node) { a.think, b.think = 3*second, 9*second }, func(w *world, a, b *node) {
		establish(w, a, b)
		a.hangUp()
	}, false},
	{"refused by nobody", func(_, b *node) { b.refuse = RejectInvalidService }, establish, true},
	{"refused by the program", func(_, b *node) { b.rejects = true }, establish, true},
	{"refused reply", func(a, _ *node) { a.rejects = true }, establish, true},
	{"question", nil, ask, false},
	{"question, slow", func(_, b *node) { b.think = 3 * second }, ask, false},
	{"question, refused", func(_, b *node) { b.refuse = SidrUnsupported }, ask, true},
	{"question, refused by the program", func(_, b *node) { b.rejects = true }, ask, true},
}

// play runs a conversation to its end. copies returns the arrival times of the copies of message n.
func (c *dialogue) play(t *testing.T, n int, copies []ib.Time) (w *world, kinds []wire.CMMessage) {
	w, a, b := newWorld(t)
	if c.setup != nil {
		c.setup(a, b)
	}
	w.fault = func(i int, m wire.MAD) []ib.Time {
		kinds = append(kinds, wire.CMMessage(m.Attribute()))
		if i == n {
			return copies
		}
		return []ib.Time{latency}
	}
	c.talk(w, a, b)
	w.run(w.now + 2000*second)
	return w, kinds
}

// seen returns what the programs of a world saw.
func (c *dialogue) seen(w *world) string {
	text := ""
	for _, gid := range [][16]byte{{10: 0xff, 11: 0xff, 12: 10, 15: 1}, {10: 0xff, 11: 0xff, 12: 10, 15: 2}} {
		n := w.nodes[gid]
		log := slices.Clone(n.log)
		if c.refusal {
			log = nil
			for _, e := range n.log {
				if n.name == "b" {
					e, _, _ = strings.Cut(e, " ")
				}
				if !slices.Contains(log, e) {
					log = append(log, e)
				}
			}
		}
		text += fmt.Sprintf("%s: %q\n", n.name, log)
	}
	return text
}

// TestEveryMessage loses, doubles and delays each message of each conversation in turn.
func TestEveryMessage(t *testing.T) {
	faults := []struct {
		name   string
		copies []ib.Time
	}{
		{"lost", nil},
		{"doubled", []ib.Time{latency, latency}},
		{"doubled later", []ib.Time{latency, 900 * ms}},
		{"doubled much later", []ib.Time{latency, 10 * second}},
		{"delayed", []ib.Time{900 * ms}},
		{"delayed past its repetition", []ib.Time{7 * second}},
	}
	met := map[wire.CMMessage]bool{}
	for _, c := range dialogues {
		clean, kinds := c.play(t, -1, nil)
		clean.empty()
		want := c.seen(clean)
		for n, kind := range kinds {
			met[kind] = true
			for _, f := range faults {
				t.Run(fmt.Sprintf("%s/%d %v %s", c.name, n, kind, f.name), func(t *testing.T) {
					w, _ := c.play(t, n, f.copies)
					if got := c.seen(w); got != want {
						t.Errorf("the programs saw\n%swant\n%s%v", got, want, w.trace)
					}
					w.empty()
				})
			}
		}
	}
	for _, kind := range []wire.CMMessage{
		wire.CMREQ, wire.CMMRA, wire.CMREJ, wire.CMREP, wire.CMRTU, wire.CMDREQ, wire.CMDREP, wire.CMSIDRREQ, wire.CMSIDRREP,
	} {
		if !met[kind] {
			t.Errorf("no conversation has a %v", kind)
		}
	}
}

// TestVanishingEverywhere removes one side after each message of each conversation, so in every state. The other side gives up if it
// waits for the peer; a state that waits for the program ends with the program. Nothing is left.
func TestVanishingEverywhere(t *testing.T) {
	states := map[State]bool{}
	for _, c := range dialogues {
		clean, kinds := c.play(t, -1, nil)
		clean.empty()
		for n := range kinds {
			for _, who := range []string{"a", "b"} {
				t.Run(fmt.Sprintf("%s/%s after %d messages", c.name, who, n+1), func(t *testing.T) {
					w, a, b := newWorld(t)
					if c.setup != nil {
						c.setup(a, b)
					}
					gone, other := a, b
					if who == "b" {
						gone, other = b, a
					}
					w.fault = func(i int, _ wire.MAD) []ib.Time {
						if i == n {
							delete(w.nodes, gone.gid)
							gone.deaf = true
							if other.conn != nil {
								states[other.conn.State] = true
							}
						}
						if i > n {
							return nil
						}
						return []ib.Time{latency}
					}
					c.talk(w, a, b)
					w.run(w.now + 4000*second)
					if x := other.conn; x != nil {
						switch x.State {
						case ReqSent, RepSent, DreqSent, SidrReqSent, TimeWait:
							t.Errorf("still %v after more than an hour\n%v", x.State, w.trace)
						}
						other.m.Destroy(w.now, x)
					}
					w.empty()
				})
			}
		}
	}
	for _, s := range []State{ReqSent, RepRcvd, ReqRcvd, RepSent, Established, DreqSent, DreqRcvd, TimeWait, SidrReqSent, SidrReqRcvd} {
		if !states[s] {
			t.Errorf("nobody was in %v when the peer vanished", s)
		}
	}
}
