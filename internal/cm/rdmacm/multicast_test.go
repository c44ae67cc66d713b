package rdmacm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
)

func TestDatagrams(t *testing.T) {
	f := newFabric(t)
	server, client := f.program(), f.program()
	server.listener(100, abi.PSUDP, "0.0.0.0:7000", 0)
	id := client.id(200, abi.PSUDP)
	client.route(id, "10.0.0.1:7000")
	client.must(id.Connect(param(1, "hello"), ECE{}))
	e := server.next(abi.CMEventConnectRequest)
	var p abi.CMUDParam
	abi.Decode(e.Param[:], &p)
	if string(p.PrivateData[:5]) != "hello" {
		t.Errorf("private data %q", p.PrivateData[:5])
	}
	at, err := server.ch.ID(e.ID)
	server.must(err)
	server.must(at.Accept(101, param(0x33, "reply"), ECE{}))
	e = client.next(abi.CMEventEstablished)
	abi.Decode(e.Param[:], &p)
	if p.QPNum != 0x33 || p.QKey != defaultQKey || string(p.PrivateData[:5]) != "reply" || p.AHAttr.GRH.DGID != gid("10.0.0.1") {
		t.Errorf("established: %+v", p)
	}
	a, err := id.QPAttr(abi.QPStateInit)
	if err != nil || a.QKey != defaultQKey || a.QPAttrMask&abi.QPMaskQKey == 0 {
		t.Errorf("attributes: %+v, %v", a, err)
	}
	// Refused.
	id = client.id(201, abi.PSUDP)
	client.route(id, "10.0.0.1:7000")
	client.must(id.Connect(param(1, ""), ECE{}))
	e = server.next(abi.CMEventConnectRequest)
	at, _ = server.ch.ID(e.ID)
	server.must(at.Reject(0, nil))
	if e = client.next(abi.CMEventUnreachable); e.Status != 2 {
		t.Errorf("status %d, want 2, rejected", e.Status)
	}
}

func TestGroups(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSUDP)
	if _, err := id.Join(5, netip.MustParseAddr("224.1.2.3")); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("join before bind: %v, want EINVAL", err)
	}
	p.must(id.Bind(addr("10.0.0.1:0")))
	g, err := id.Join(5, netip.MustParseAddr("224.1.2.3"))
	p.must(err)
	e := p.next(abi.CMEventMulticastJoin)
	var u abi.CMUDParam
	abi.Decode(e.Param[:], &u)
	if e.UID != 5 || u.QPNum != anyQP || u.AHAttr.GRH.DGID != gid("::ffff:224.1.2.3") {
		t.Errorf("joined: uid %d, %+v", e.UID, u)
	}
	if n, err := p.ch.Leave(g.Name); err != nil || n != 1 {
		t.Errorf("leave: %d, %v, want 1 event", n, err)
	}
	if n := id.Destroy(); n != 1 {
		t.Errorf("destroy: %d events, want 1", n)
	}
}
