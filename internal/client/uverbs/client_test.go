package uverbs_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/ib"
)

var order = binary.NativeEndian

// TestClientsInMemory: clients without sockets and descriptors, each on its own NIC, register scattered memory,
// connect, and exchange messages with events.
func TestClientsInMemory(t *testing.T) {
	table := registry.NewTable()
	e, err := engine.New(engine.Options{Resolver: table})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	t.Cleanup(e.Stop)
	open := func(name, addr string) *client {
		n := nic.New(nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: ib.GID(netip.MustParseAddr(addr).As16())}}})
		err := table.Add(&registry.NIC{Name: name, Network: registry.HostNetwork, Device: n})
		if err != nil {
			t.Fatal(err)
		}
		if derr := e.Do(func() { err = e.Add(n, nil) }); derr != nil || err != nil {
			t.Fatal(derr, err)
		}
		return newClient(t, e, n)
	}
	a, b := open("a", "192.0.2.1").qp(), open("b", "192.0.2.2").qp()
	a.connect(b)
	b.connect(a)

	const n = 3*page + 77
	for round, pair := range [][2]*qp{{a, b}, {b, a}, {a, b}} {
		from, to := pair[0], pair[1]
		want := bytes.Repeat([]byte{byte('a' + round), 1, 2, 3, byte(round)}, n)[:n]
		for i, v := range want {
			from.c.mem[offset(base+100+uint64(i))] = v
		}
		if round == 0 {
			run[abi.ReqNotifyCQ, abi.AllocPDResp](to.c, abi.CmdReqNotifyCQ, &abi.ReqNotifyCQ{CQHandle: to.cq}, nil, 0)
		} else {
			to.arm()
		}
		to.postReceive(8*page-9, n)
		from.postSend(100, n)
		if got := to.complete(); got != n {
			t.Fatalf("round %d: received %d bytes, want %d", round, got, n)
		}
		from.complete()
		for i, v := range want {
			if got := to.c.mem[offset(base+8*page-9+uint64(i))]; got != v {
				t.Fatalf("round %d: byte %d is %d, want %d", round, i, got, v)
			}
		}
		// No other reader has read the event.
		var event [16]byte
		wait(t, "an event", func() bool { var k int; event, k = to.compEvents.Withdraw(); return k == 8 })
		if h := order.Uint64(event[:]); h != userCQ {
			t.Errorf("round %d: an event for %#x, want the completion queue's %#x", round, h, userCQ)
		}
	}
}
