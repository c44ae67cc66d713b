package cm

import (
	"fmt"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// request makes a peer request a connection of n, whose program accepts it and destroys it at once.
func (n *node) request(peer ib.GID, id uint32) *Conn {
	n.w.t.Helper()
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMREQ, 1)
	req := wire.REQ(mad.Data())
	req.SetLocalCommID(id)
	req.SetLocalQPN(id)
	req.SetServiceID(service)
	req.Primary().SetAckTimeout(31)
	n.m.Receive(n.w.now, peer, n.gid, mad)
	c := n.conn
	if err := n.m.Accept(n.w.now, c, &Params{QPN: 0x22}); err != nil {
		n.w.t.Fatal(err)
	}
	n.m.Communicating(c)
	n.m.Destroy(n.w.now, c)
	return c
}

// confirm makes the peer confirm the disconnect.
func (n *node) confirm(c *Conn) {
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMDREP, 1)
	drep := wire.DREP(mad.Data())
	drep.SetLocalCommID(c.RemoteID)
	drep.SetRemoteCommID(c.LocalID)
	n.m.Receive(n.w.now, c.Path.DGID, n.gid, mad)
}

// ask makes a peer send a SIDR request to n, whose program answers it.
func (n *node) ask(peer ib.GID, id uint32) *Conn {
	n.w.t.Helper()
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMSIDRREQ, 1)
	wire.SIDRREQ(mad.Data()).SetRequestID(id)
	n.m.Receive(n.w.now, peer, n.gid, mad)
	if err := n.m.Answer(n.w.now, n.conn, SidrSuccess, 0x33, 0, nil); err != nil {
		n.w.t.Fatal(err)
	}
	return n.conn
}

// TestOrphansAreLimited checks that a peer that makes a program accept and close connections, or answer SIDR requests, does not fill the
// memory, and that it loses its own connections first.
func TestOrphansAreLimited(t *testing.T) {
	flooder, honest := ib.GID{15: 7}, ib.GID{15: 8}
	for name, end := range map[string]func(*node, ib.GID, uint32) *Conn{
		"leaving": (*node).request,
		"ended": func(n *node, peer ib.GID, id uint32) *Conn {
			c := n.request(peer, id)
			n.confirm(c)
			return c
		},
		"answered": (*node).ask,
	} {
		t.Run(name, func(t *testing.T) {
			w, _, n := newWorld(t)
			n.passive = true
			const most, mostOf = 10, 6
			n.m.leaving, n.m.ended = newOrphans(most, mostOf), newOrphans(most, mostOf)
			var dropped []*Conn
			n.m.Dropped = func(c *Conn) { dropped = append(dropped, c) }
			var made []*Conn
			first := end(n, honest, 1)
			for i := range uint32(100) {
				made = append(made, end(n, flooder, 100+i))
			}
			if got := n.m.Len(); got != mostOf+1 {
				t.Errorf("%d connections are kept, want %d", got, mostOf+1)
			}
			if !slices.Equal(dropped, made[:len(made)-mostOf]) {
				t.Errorf("%d are dropped, want the oldest %d", len(dropped), len(made)-mostOf)
			}
			if first.State == Closed {
				t.Error("the connection of another peer was dropped")
			}
			// Peers together have a limit, too.
			for i := range byte(most) {
				end(n, ib.GID{14: 1, 15: i}, 1)
			}
			if got := n.m.Len(); got != most {
				t.Errorf("%d connections of all peers are kept, want %d", got, most)
			}
			if first.State != Closed {
				t.Error("the oldest connection of all was not dropped")
			}
			w.wire = nil // these peers do not answer
			w.empty()
		})
	}
}

// TestOwnersAreNotLimited checks that a connection whose program still has its identifier is neither counted nor dropped.
func TestOwnersAreNotLimited(t *testing.T) {
	w, a, b := newWorld(t)
	b.m.leaving, b.m.ended = newOrphans(1, 1), newOrphans(1, 1)
	b.m.Dropped = func(c *Conn) { t.Errorf("connection %d in state %v was dropped", c.LocalID, c.State) }
	var list []*Conn
	for i := range uint32(3) {
		c, err := a.m.Connect(w.now, a, service, Path{SGID: a.gid, DGID: b.gid, MTU: 3, AckTimeout: 19}, &Params{QPN: 0x11 + i, Private: []byte("hello")}, false)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, c)
	}
	w.run(second)
	for _, c := range list {
		a.m.Disconnect(w.now, c)
	}
	w.run(2 * second)
	states := make(map[State]int)
	b.m.Each(func(c *Conn) { states[c.State]++ })
	if states[TimeWait] != 3 {
		t.Errorf("the passive side has %v, want three in %v", states, TimeWait)
	}
	w.run(60 * second)
	w.empty()
}

// TestDroppedIsAnswered checks that a peer whose connection was dropped still gets answers.
func TestDroppedIsAnswered(t *testing.T) {
	w, a, b := newWorld(t)
	b.passive = true
	b.m.ended = newOrphans(1, 1)
	old := b.request(a.gid, 50)
	b.confirm(old)
	b.confirm(b.request(a.gid, 51))
	if old.State != Closed {
		t.Fatalf("the older connection is %v", old.State)
	}
	w.wire = nil
	dreq := (&Conn{LocalID: old.RemoteID, RemoteID: old.LocalID, RemoteQPN: old.LocalQPN}).newDREQ()
	b.m.Receive(w.now, a.gid, b.gid, dreq)
	if len(w.wire) != 1 || wire.CMMessage(w.wire[0].mad.Attribute()) != wire.CMDREP {
		t.Errorf("the answers to a repeated DREQ are %v", fmt.Sprint(w.wire))
	}
	w.wire = nil
	if b.request(a.gid, 50).State != DreqSent {
		t.Error("a request with the same number is not a new one")
	}
	w.wire = nil
	w.empty()
}

// BenchmarkFlood measures a connection that a peer makes and ends when there are already too many.
func BenchmarkFlood(b *testing.B) {
	w, _, n := newWorld(b)
	n.passive = true
	id := uint32(0)
	end := func() {
		id++
		n.confirm(n.request(ib.GID{15: byte(id % 8)}, id&0xffffff))
		w.wire, w.trace, n.log = w.wire[:0], w.trace[:0], n.log[:0]
	}
	for range maxEnded {
		end()
	}
	for b.Loop() {
		end()
	}
	if n.m.Len() > maxEnded {
		b.Errorf("%d connections", n.m.Len())
	}
}
