package rdmacm

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma/internal/abi"
	"vrdma/internal/nic"
	"vrdma/internal/transport"
	"vrdma/internal/wire"
)

// A fabric is a host whose messages to itself are delivered by settle.
type fabric struct {
	t   *testing.T
	cma *CMA
	now transport.Time
	q   []mad
	off bool // loses everything
}

type mad struct {
	from, to transport.GID
	b        []byte
}

func (f *fabric) Now() transport.Time { return f.now }
func (f *fabric) SendMAD(from, to transport.GID, b []byte) {
	if !f.off {
		f.q = append(f.q, mad{from, to, slices.Clone(b)})
	}
}

func newFabric(t *testing.T) *fabric {
	f := &fabric{t: t, now: 1}
	n := nic.New(nic.Config{Name: "rxe0", NodeGUID: 7, GIDs: []nic.GIDEntry{{GID: gid("10.0.0.1")}, {GID: gid("fd00::1")}, {GID: gid("127.0.0.1")}}})
	f.cma = New(n, f)
	t.Cleanup(func() {
		for c := range f.cma.clients {
			c.Close()
		}
		f.wait(3600e9)
		if f.cma.Connections() != 0 || len(f.cma.ports) != 0 {
			t.Errorf("left behind: %d connections, %d ports", f.cma.Connections(), len(f.cma.ports))
		}
	})
	return f
}

func gid(s string) transport.GID { return netip.MustParseAddr(s).As16() }

// settle delivers what is under way.
func (f *fabric) settle() {
	for i := 0; len(f.q) > 0; i++ {
		if i > 10000 {
			f.t.Fatal("messages without end")
		}
		m := f.q[0]
		f.q = f.q[1:]
		f.cma.ReceiveMAD(m.from, m.to, m.b)
	}
}

// wait lets time pass.
func (f *fabric) wait(d transport.Time) {
	end := f.now + d
	for i := 0; ; i++ {
		f.settle()
		due := f.cma.Deadline()
		if due == 0 || due > end || i > 10000 {
			break
		}
		f.now = max(f.now, due)
		f.cma.Expire()
	}
	f.now = end
}

// A prog is a program with one channel.
type prog struct {
	f  *fabric
	c  *Client
	ch *Channel
	fd int
}

func (f *fabric) program() *prog {
	f.t.Helper()
	p := &prog{f: f, c: f.cma.NewClient(1, "test")}
	p.ch, p.fd = p.channel()
	return p
}

func (p *prog) channel() (*Channel, int) {
	p.f.t.Helper()
	ch, fd, err := p.c.NewChannel()
	if err != nil {
		p.f.t.Fatal(err)
	}
	p.f.t.Cleanup(func() { unix.Close(fd) })
	return ch, fd
}

func (p *prog) id(uid uint64, ps uint16) *ID {
	p.f.t.Helper()
	id, err := p.ch.Create(uid, ps, 0)
	if err != nil {
		p.f.t.Fatal(err)
	}
	return id
}

// next takes an event, which must be the one that is wanted.
func (p *prog) next(kind uint32) *abi.CMEventResp {
	p.f.t.Helper()
	p.f.settle()
	if !readable(p.fd) {
		p.f.t.Fatalf("the descriptor cannot be read, want event %d", kind)
	}
	e, err := p.ch.GetEvent()
	if err != nil || e.Event != kind {
		p.f.t.Fatalf("got event %+v, %v, want %d", e, err, kind)
	}
	return e
}

func (p *prog) none() {
	p.f.t.Helper()
	p.f.settle()
	if e, err := p.ch.GetEvent(); !errors.Is(err, syscall.EAGAIN) {
		p.f.t.Fatalf("got event %+v, %v, want none", e, err)
	}
	if readable(p.fd) {
		p.f.t.Fatal("there is no event, but the descriptor can be read")
	}
}

func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1
}

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func (p *prog) must(err error) {
	p.f.t.Helper()
	if err != nil {
		p.f.t.Fatal(err)
	}
}

// listener listens at an address.
func (p *prog) listener(uid uint64, ps uint16, at string, backlog int) *ID {
	p.f.t.Helper()
	id := p.id(uid, ps)
	p.must(id.Bind(addr(at)))
	p.must(id.Listen(backlog))
	return id
}

// route resolves address and route.
func (p *prog) route(id *ID, to string) {
	p.f.t.Helper()
	_, _, err := id.BeginResolve(netip.AddrPort{}, addr(to))
	p.must(err)
	id.EndResolve(netip.Addr{}, 0)
	p.next(abi.CMEventAddrResolved)
	p.must(id.ResolveRoute())
	p.next(abi.CMEventRouteResolved)
}

func param(qpn uint32, private string) *abi.CMConnParam {
	return &abi.CMConnParam{QPNum: qpn, Valid: 1, RetryCount: 7, RNRRetryCount: 7, ResponderResources: 2, InitiatorDepth: 3, PrivateData: fill([]byte(private)), PrivateDataLen: uint8(len(private))}
}

// connected makes a connection between two programs.
func connected(f *fabric) (server, client *prog, at, from *ID) {
	f.t.Helper()
	server, client = f.program(), f.program()
	server.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
	from = client.id(200, abi.PSTCP)
	client.route(from, "10.0.0.1:7000")
	client.must(from.Connect(param(0x11, "hello"), ECE{Vendor: 0xabcdef, Modifier: 0x12345678}))
	e := server.next(abi.CMEventConnectRequest)
	if e.UID != 100 {
		f.t.Errorf("the request names %d, want the listener, 100", e.UID)
	}
	if e.ECEVendor != 0xabcdef || e.ECEMod != 0x12345678 {
		f.t.Errorf("request: ECE %#x, %#x, want the client's", e.ECEVendor, e.ECEMod)
	}
	at, err := server.ch.ID(e.ID)
	server.must(err)
	var p abi.CMConnParam
	abi.Decode(e.Param[:], &p)
	if string(p.PrivateData[:5]) != "hello" || p.QPNum != 0x11 || p.PrivateDataLen != 56 {
		f.t.Errorf("request: %q of %d bytes from QP %#x, want hello of 56 from 0x11", p.PrivateData[:5], p.PrivateDataLen, p.QPNum)
	}
	server.must(at.Accept(101, param(0x22, "reply"), ECE{Vendor: 0xfedcba, Modifier: 9}))
	e = client.next(abi.CMEventConnectResponse)
	if e.ECEVendor != 0xfedcba || e.ECEMod != 9 {
		f.t.Errorf("response: ECE %#x, %#x, want the server's", e.ECEVendor, e.ECEMod)
	}
	abi.Decode(e.Param[:], &p)
	if string(p.PrivateData[:5]) != "reply" || p.QPNum != 0x22 {
		f.t.Errorf("response: %q from QP %#x, want reply from 0x22", p.PrivateData[:5], p.QPNum)
	}
	client.must(from.Accept(0, &abi.CMConnParam{}, ECE{}))
	if e = server.next(abi.CMEventEstablished); e.UID != 101 {
		f.t.Errorf("established: %d, want 101", e.UID)
	}
	return server, client, at, from
}

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

// A program's own events reach its other threads, in their turn.
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

func TestPorts(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	bind := func(ps uint16, at string, reuse bool) error {
		id := p.id(1, ps)
		if reuse {
			p.must(id.SetOption(abi.CMOptionIDReuseAddr, []byte{1, 0, 0, 0}))
		}
		return id.Bind(addr(at))
	}
	for _, c := range []struct {
		name  string
		ps    uint16
		at    string
		reuse bool
		want  error
	}{
		{"first", abi.PSTCP, "10.0.0.1:7000", false, nil},
		{"the same", abi.PSTCP, "10.0.0.1:7000", false, syscall.EADDRINUSE},
		{"another address", abi.PSTCP, "127.0.0.1:7000", false, nil},
		{"another port", abi.PSTCP, "10.0.0.1:7001", false, nil},
		{"another space", abi.PSUDP, "10.0.0.1:7000", false, nil},
		{"a wildcard beside an address", abi.PSTCP, "0.0.0.0:7000", false, syscall.EADDRNOTAVAIL},
		{"one side wants to share", abi.PSTCP, "10.0.0.1:7000", true, syscall.EADDRINUSE},
		{"shared", abi.PSTCP, "10.0.0.1:7002", true, nil},
		{"shared twice", abi.PSTCP, "10.0.0.1:7002", true, nil},
		{"not ours", abi.PSTCP, "10.9.9.9:7000", false, syscall.ENODEV},
		{"IPv6", abi.PSTCP, "[fd00::1]:7000", false, nil},
	} {
		if err := bind(c.ps, c.at, c.reuse); !errors.Is(err, c.want) && err != c.want {
			t.Errorf("%s: bind to %s: %v, want %v", c.name, c.at, err, c.want)
		}
	}
	id := p.id(1, abi.PSTCP)
	p.must(id.Bind(addr("10.0.0.1:0")))
	if n := id.Query().Src.Port(); n < firstEphemeral || n > lastEphemeral {
		t.Errorf("any port: %d", n)
	}
	name := id.Name
	id.Destroy()
	if _, err := p.ch.ID(name); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a destroyed ID: %v, want ENOENT", err)
	}
}

func TestWildcards(t *testing.T) {
	f := newFabric(t)
	server, client := f.program(), f.program()
	any6 := server.listener(100, abi.PSTCP, "[::]:7000", 0)
	_ = any6
	id := client.id(200, abi.PSTCP)
	client.route(id, "10.0.0.1:7000")
	client.must(id.Connect(param(1, ""), ECE{}))
	server.next(abi.CMEventConnectRequest) // IPv4 at a listener of both

	id = client.id(201, abi.PSTCP)
	client.route(id, "[fd00::1]:7000")
	client.must(id.Connect(param(2, ""), ECE{}))
	server.next(abi.CMEventConnectRequest)
}

func TestStates(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSTCP)
	for name, err := range map[string]error{
		"route without address": id.ResolveRoute(),
		"connect unrouted":      id.Connect(param(1, ""), ECE{}),
		"accept nothing":        id.Accept(1, param(1, ""), ECE{}),
		"reject nothing":        id.Reject(0, nil),
		"disconnect nothing":    id.Disconnect(),
		"notify nothing":        id.Communicated(eventCommEst),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", name, err)
		}
	}
	if _, err := id.QPAttr(abi.QPStateInit); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("attributes without a device: %v, want EINVAL", err)
	}
	if _, err := p.ch.Create(1, 0x999, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an unknown port space: %v, want EINVAL", err)
	}
	p.route(id, "10.0.0.1:7000")
	if err := id.Connect(param(1, string(make([]byte, 57))), ECE{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("57 bytes of private data: %v, want EINVAL", err)
	}
}

func TestNoRoute(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSTCP)
	if _, _, err := id.BeginResolve(netip.AddrPort{}, addr("10.0.0.9:7000")); err != nil {
		t.Fatal(err)
	}
	id.EndResolve(netip.MustParseAddr("192.0.2.1"), 0) // from an address that is not the device's
	if e := p.next(abi.CMEventAddrError); int32(e.Status) != -int32(syscall.ENODEV) {
		t.Errorf("status %d, want -ENODEV", int32(e.Status))
	}
	p.route(id, "10.0.0.1:7000") // it may try again
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

func TestOptions(t *testing.T) {
	f := newFabric(t)
	p := f.program()
	id := p.id(1, abi.PSTCP)
	for _, c := range []struct {
		name  uint32
		value []byte
		want  error
	}{
		{abi.CMOptionIDTOS, []byte{8}, nil},
		{abi.CMOptionIDTOS, []byte{8, 0}, syscall.EINVAL},
		{abi.CMOptionIDReuseAddr, []byte{1}, syscall.EINVAL},
		{abi.CMOptionIDAckTimeout, []byte{20}, nil},
		{abi.CMOptionIDAckTimeout, []byte{20, 0}, syscall.EINVAL},
		{abi.CMOptionIDAFOnly, []byte{1, 0, 0, 0}, nil},
		{99, nil, syscall.ENOSYS},
	} {
		if err := id.SetOption(c.name, c.value); err != c.want && !errors.Is(err, c.want) {
			t.Errorf("option %d = %v: %v, want %v", c.name, c.value, err, c.want)
		}
	}
	p.route(id, "10.0.0.1:7000")
	if q := id.Query(); q.TOS != 8 || q.Life != 19 {
		t.Errorf("TOS %d, packet life %d, want 8 and 19", q.TOS, q.Life)
	}
}
