package cm

import (
	"testing"

	"vrdma/internal/wire"
)

// pretend has c send b the REQ that a would, with a's device, queue pair and number, from
// c's own address.
func pretend(c, a, b *node, id uint32) {
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMREQ, 1)
	req := wire.REQ(mad.Data())
	req.SetLocalCommID(id)
	req.SetLocalCAGUID(a.m.GUID)
	req.SetLocalQPN(0x11)
	req.SetServiceID(service)
	c.Send(c.gid, b.gid, mad)
}

// TestStrangerClaimsQueuePair: whoever names another host's device and queue pair in a REQ
// does not end that host's connection. What a REQ says of its sender is only said; the
// address is where the answer goes.
func TestStrangerClaimsQueuePair(t *testing.T) {
	w, a, b := newWorld(t)
	a.connect(b)
	w.run(second)
	ca, cb := a.conn, b.conn
	b.passive = true
	pretend(w.add("c", 3), a, b, 77)
	w.run(2 * second)
	if ca.State != Established || cb.State != Established {
		t.Errorf("a stranger's REQ made the connection %v and %v", ca.State, cb.State)
	}
}

// TestStrangerClaimsNumber: nor does one keep that host from connecting.
func TestStrangerClaimsNumber(t *testing.T) {
	w, a, b := newWorld(t)
	b.passive = true
	pretend(w.add("c", 3), a, b, a.m.next+1)
	w.run(second)
	b.passive = false
	a.connect(b)
	w.run(2 * second)
	a.expect("replied")
}
