package rdmacm

import (
	"testing"

	"vrdma/internal/abi"
	"vrdma/internal/wire"
)

// TestFalseName has a peer claim another's address in its request. Programs that ask who is
// calling are told where the request came from.
func TestFalseName(t *testing.T) {
	f := newFabric(t)
	server := f.program()
	server.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
	m := make(wire.MAD, wire.MADSize)
	m.InitCM(wire.CMREQ, 1)
	req := wire.REQ(m.Data())
	req.SetLocalCommID(5)
	req.SetLocalQPN(0x55)
	req.SetServiceID(serviceID(portKey{abi.PSTCP, 7000}))
	h := wire.IPAddressing(req.Private())
	h.SetIPVersion(4)
	h.SetSrc(plain16(addr("10.0.0.7:0").Addr()))
	h.SetSrcPort(1234)
	h.SetDst(plain16(addr("10.0.0.1:0").Addr()))
	f.cma.ReceiveMAD(gid("10.0.0.9"), gid("10.0.0.1"), m)
	id, err := server.ch.ID(server.next(abi.CMEventConnectRequest).ID)
	server.must(err)
	if q := id.Query(); q.Dst != addr("10.0.0.9:1234") || q.Src != addr("10.0.0.1:7000") {
		t.Errorf("a connection from %v to %v, want from 10.0.0.9:1234", q.Dst, q.Src)
	}
}
