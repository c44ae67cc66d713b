package rdmacm

import (
	"errors"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/net/wire"
)

func TestConnection(t *testing.T) {
	f := newFabric(t)
	server, client, at, from := connected(f)
	a, err := at.QPAttr(abi.QPStateRTR)
	server.must(err)
	b, err := from.QPAttr(abi.QPStateRTS)
	client.must(err)
	if a.RQPSN != b.SQPSN || a.DestQPNum != 0x11 {
		t.Errorf("the server expects %#x from QP %#x, the client sends from %#x", a.RQPSN, a.DestQPNum, b.SQPSN)
	}
	if q := at.Query(); q.Src != addr("10.0.0.1:7000") || q.Dst != from.Query().Src || !q.Device || !q.Routed {
		t.Errorf("the server's side: %+v", q)
	}
	client.must(from.Disconnect())
	server.next(abi.CMEventDisconnected)
	server.must(at.Disconnect())
	client.next(abi.CMEventDisconnected)
	f.wait(60e9)
	server.next(abi.CMEventTimewaitExit)
	client.next(abi.CMEventTimewaitExit)
	// ADDR, ROUTE, RESPONSE, DISCONNECTED, TIMEWAIT_EXIT were read.
	if n := from.Destroy(); n != 5 {
		t.Errorf("the client read %d events, want 5", n)
	}
	if n := at.Destroy(); n != 3 {
		t.Errorf("the server read %d events of the connection, want 3", n)
	}
	server.none()
}

// TestRights compares the rights of a connection's peer with those of Linux's cm_init_qp_init_attr. Operations that need a responder
// resource need one here, too.
func TestRights(t *testing.T) {
	f := newFabric(t)
	_, _, at, _ := connected(f)
	const without = abi.AccessRemoteWrite
	const with = without | abi.AccessRemoteRead | abi.AccessRemoteAtomic | abi.AccessFlushGlobal | abi.AccessFlushPersistent
	for resources, want := range map[uint8]uint32{0: without, 1: with, 16: with} {
		at.conn.ResponderResources = resources
		if a, err := at.QPAttr(abi.QPStateInit); err != nil || a.QPAccessFlags != want {
			t.Errorf("%d resources: access %#x, want %#x; %v", resources, a.QPAccessFlags, want, err)
		}
	}
}

// The address that a connection is from has gone from the NIC: no row is named, and above all not that of another.
func TestGoneAddress(t *testing.T) {
	f := newFabric(t)
	_, _, at, _ := connected(f)
	f.cma.nic.SetFace(nic.Face{GIDs: []nic.GIDEntry{{GID: gid("10.0.0.9")}, {GID: gid("10.0.0.1")}}, MTU: 5, Rows: []int{0, 3}})
	if a, err := at.QPAttr(abi.QPStateRTR); err != nil || a.AHAttr.GRH.SGIDIndex != 3 {
		t.Errorf("in another row: row %d, %v", a.AHAttr.GRH.SGIDIndex, err)
	}
	f.cma.nic.SetFace(nic.Face{GIDs: []nic.GIDEntry{{GID: gid("10.0.0.9")}}, MTU: 5})
	if _, err := at.QPAttr(abi.QPStateRTR); err != syscall.EADDRNOTAVAIL {
		t.Errorf("without the address: %v", err)
	}
}

// A process that dies disconnects: its peer gets a DREQ.
func TestDeath(t *testing.T) {
	f := newFabric(t)
	server, client, _, _ := connected(f)
	f.settle()
	client.c.Close()
	if len(f.q) != 1 || wire.CMMessage(wire.MAD(f.q[0].b).Attribute()) != wire.CMDREQ {
		t.Errorf("%d messages are under way, want a DREQ", len(f.q))
	}
	server.next(abi.CMEventDisconnected)
}

// Where a connection's packet numbers begin cannot be guessed: as many different beginnings
// as connections, in both halves of the range.
func TestStartingPSN(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	seen := map[uint32]bool{}
	high := 0
	for i := range 64 {
		id := p.id(uint64(i+1), abi.PSTCP)
		p.route(id, "10.0.0.1:7000")
		p.must(id.Connect(param(uint32(i+1), ""), ECE{}))
		psn := wire.REQ(wire.MAD(f.q[len(f.q)-1].b).Data()).StartingPSN()
		seen[psn] = true
		if psn >= 1<<23 {
			high++
		}
		f.settle()
		p.next(abi.CMEventRejected)
	}
	if len(seen) < 63 || high == 0 || high == 64 {
		t.Errorf("64 connections begin at %d different PSNs, %d of them in the upper half", len(seen), high)
	}
}

// TestWrittenEvents checks that a program's own events reach its other threads in order.
func TestWrittenEvents(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(7, abi.PSTCP)
	if err := id.Write(abi.CMEventEstablished, 0, [8]byte{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("writing ESTABLISHED: %v, want EINVAL", err)
	}
	p.must(id.Write(abi.CMEventUser, 5, [8]byte{1, 2}))
	p.must(id.Write(abi.CMEventInternal, 0, [8]byte{}))
	if e := p.next(abi.CMEventUser); e.UID != 7 || e.Status != 5 || e.Param[0] != 1 || e.Param[1] != 2 {
		t.Errorf("uid %d, status %d, argument %v", e.UID, e.Status, e.Param[:8])
	}
	p.next(abi.CMEventInternal)
	p.none()
	var err error
	for n := 0; err == nil && n < 2*maxWritten; n++ {
		err = id.Write(abi.CMEventUser, 0, [8]byte{})
	}
	if !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("writing and never reading: %v, want ENOMEM", err)
	}
	if n := id.Destroy(); n != 2 {
		t.Errorf("%d events reported, want the two that were read", n)
	}
}

func TestListenerDies(t *testing.T) {
	f := newFabric(t)
	server, client := f.program(), f.program()
	l := server.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
	id := client.id(200, abi.PSTCP)
	client.route(id, "10.0.0.1:7000")
	client.must(id.Connect(param(1, ""), ECE{}))
	f.settle()
	if n := l.Destroy(); n != 0 { // with a request that nobody has read
		t.Errorf("%d events reported, want 0", n)
	}
	e := client.next(abi.CMEventRejected)
	if e.Status != 28 {
		t.Errorf("status %d, want 28, consumer reject", e.Status)
	}
	server.none()
}

func TestNobodyListens(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSTCP)
	p.route(id, "10.0.0.1:7001")
	p.must(id.Connect(param(1, ""), ECE{}))
	if e := p.next(abi.CMEventRejected); e.Status != 8 {
		t.Errorf("status %d, want 8, invalid service", e.Status)
	}
}

// TestRenewedListener checks that a request is answered after a living program renews its listener, and otherwise rejected soon.
func TestRenewedListener(t *testing.T) {
	for _, ps := range []uint16{abi.PSTCP, abi.PSUDP} {
		f := newFabric(t)
		server, client := f.program(), f.program()
		refusal := map[uint16]uint32{abi.PSTCP: abi.CMEventRejected, abi.PSUDP: abi.CMEventUnreachable}[ps]
		call := func(uid uint64) {
			id := client.id(uid, ps)
			client.route(id, "10.0.0.1:7000")
			client.must(id.Connect(param(uint32(uid), ""), ECE{}))
			f.settle()
		}
		server.listener(100, ps, "0.0.0.0:7000", 0).Destroy()
		call(1)
		client.none()
		f.wait(100e6)
		l := server.listener(101, ps, "0.0.0.0:7000", 0)
		f.wait(5e9)
		server.next(abi.CMEventConnectRequest)
		client.none()
		l.Destroy()
		call(2)
		f.wait(10e9)
		if e := client.next(refusal); e.UID != 2 {
			t.Errorf("port space %#x: call %d is refused, want 2, in vain for a while", ps, e.UID)
		}
		call(3)
		client.next(refusal) // at once: the listener was closed long ago
		server.listener(102, ps, "0.0.0.0:7000", 0)
		server.c.Close()
		if e := client.next(refusal); e.UID != 1 {
			t.Errorf("port space %#x: call %d is refused, want 1, which was never answered", ps, e.UID)
		}
		call(4)
		client.next(refusal) // at once: the program has died
	}
}

// TestVacancies checks that the records of closed listeners are limited, and removed with their program.
func TestVacancies(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	for i := range 2 * maxVacant {
		l := p.id(1, abi.PSTCP)
		p.must(l.Bind(addr("0.0.0.0:0")))
		p.must(l.Listen(0))
		l.Destroy()
		if i == maxVacant+10 && len(f.cma.vacant) != maxVacant {
			t.Errorf("%d ports remembered, want %d", len(f.cma.vacant), maxVacant)
		}
		if i == maxVacant+20 {
			f.wait(2e9)
		}
	}
	if n := len(f.cma.vacant); n < maxVacant/2 || n > maxVacant {
		t.Errorf("%d ports remembered, want those of the last two seconds", n)
	}
	p.c.Close()
	if len(f.cma.vacant) != 0 {
		t.Errorf("%d ports remembered of a program that is gone", len(f.cma.vacant))
	}
}

func TestUnreachable(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSTCP)
	p.route(id, "10.0.0.1:7001")
	f.off = true
	p.must(id.Connect(param(1, ""), ECE{}))
	f.wait(200e9)
	if e := p.next(abi.CMEventUnreachable); int32(e.Status) != -int32(syscall.ETIMEDOUT) {
		t.Errorf("status %d, want -ETIMEDOUT", int32(e.Status))
	}
}

func TestBacklog(t *testing.T) {
	f := newFabric(t)
	server, client := f.program(), f.program()
	server.listener(100, abi.PSTCP, "0.0.0.0:7000", 2)
	for i := range uint64(4) {
		id := client.id(200+i, abi.PSTCP)
		client.route(id, "10.0.0.1:7000")
		client.must(id.Connect(param(uint32(i+1), ""), ECE{}))
	}
	server.next(abi.CMEventConnectRequest)
	server.next(abi.CMEventConnectRequest)
	server.none() // the others were ignored,
	f.wait(30e9)  // and are repeated
	server.next(abi.CMEventConnectRequest)
	server.next(abi.CMEventConnectRequest)
}

func TestMigrate(t *testing.T) {
	f := newFabric(t)
	server, _, at, from := connected(f)
	second, fd := server.channel()
	from.Disconnect()
	f.settle() // DISCONNECTED waits on the old channel
	n, err := second.Migrate(server.ch.Name, at.Name)
	if err != nil || n != 1 {
		t.Fatalf("migrate: %d events, %v; want 1: ESTABLISHED", n, err)
	}
	server.none()
	if !readable(fd) {
		t.Error("the event did not come along")
	}
	if e, err := second.GetEvent(); err != nil || e.Event != abi.CMEventDisconnected {
		t.Errorf("on the new channel: %+v, %v", e, err)
	}
	if _, err := server.ch.ID(at.Name); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("on the old channel: %v, want EINVAL", err)
	}
	if _, err := second.Migrate(99, at.Name); err == nil {
		t.Error("from a channel that is not there: no error")
	}
	second.Close()
}
