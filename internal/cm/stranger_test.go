package cm

import (
	"testing"

	"vrdma.dev/vrdma/internal/net/wire"
)

// pretend makes c send b the REQ that a would send, with a's device, queue pair and ID, from c's own address.
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

// TestStrangerClaimsQueuePair checks that a REQ that names another host's device and queue pair does not end that host's connection. Only
// the source address identifies a host.
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

// TestStrangerClaimsNumber checks that such a REQ does not keep that host from connecting.
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

// TestEnds checks that a DREQ ends a connection only if both IDs, the queue pair and the peer's address match.
func TestEnds(t *testing.T) {
	w, a, b := newWorld(t)
	a.connect(b)
	w.run(second)
	ca := a.conn
	if !b.m.Ends(a.gid, ca.newDREQ()) {
		t.Error("the peer's DREQ does not end the connection")
	}
	for name, mad := range map[string]wire.MAD{
		"another local number":  (&Conn{LocalID: ca.LocalID + 1, RemoteID: ca.RemoteID, RemoteQPN: ca.RemoteQPN}).newDREQ(),
		"no local number":       (&Conn{RemoteID: ca.RemoteID, RemoteQPN: ca.RemoteQPN}).newDREQ(),
		"another remote number": (&Conn{LocalID: ca.LocalID, RemoteID: ca.RemoteID + 1, RemoteQPN: ca.RemoteQPN}).newDREQ(),
		"another queue pair":    (&Conn{LocalID: ca.LocalID, RemoteID: ca.RemoteID, RemoteQPN: ca.RemoteQPN + 1}).newDREQ(),
		"no CM's":               make(wire.MAD, wire.MADSize),
	} {
		if b.m.Ends(a.gid, mad) {
			t.Errorf("a message with %s ends the connection", name)
		}
	}
	if b.m.Ends(w.add("c", 3).gid, ca.newDREQ()) {
		t.Error("another address ends the connection")
	}
}
