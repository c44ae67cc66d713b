package rdmacm

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/eventfile"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// A fabric is a host whose messages to itself are delivered by settle.
type fabric struct {
	t   testing.TB
	cma *CMA
	now ib.Time
	q   []mad
	off bool // loses everything
	// steps counts calls of refreeze.
	steps int
	// hosts are the destinations of messages; nil: the host itself.
	hosts map[ib.GID]*fabric
}

type mad struct {
	from, to ib.GID
	b        []byte
}

func (f *fabric) Now() ib.Time { return f.now }
func (f *fabric) Due(ib.Time)  {}

func (f *fabric) SendMAD(from, to ib.GID, b []byte) {
	if !f.off {
		f.q = append(f.q, mad{from, to, slices.Clone(b)})
	}
}

func newFabric(t testing.TB) *fabric {
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

func gid(s string) ib.GID { return netip.MustParseAddr(s).As16() }

// settle delivers messages in flight.
func (f *fabric) settle() {
	if f.hosts != nil {
		f.settleAll()
		return
	}
	for i := 0; len(f.q) > 0; i++ {
		if i > 10000 {
			f.t.Fatal("messages without end")
		}
		m := f.q[0]
		f.q = f.q[1:]
		f.refreeze()
		f.cma.ReceiveMAD(m.from, m.to, m.b)
	}
}

// settleAll delivers messages in flight between hosts.
func (f *fabric) settleAll() {
	for again := true; again; {
		again = false
		for _, h := range f.hosts {
			for len(h.q) > 0 {
				m := h.q[0]
				h.q, again = h.q[1:], true
				f.hosts[m.to].refreeze()
				f.hosts[m.to].cma.ReceiveMAD(m.from, m.to, m.b)
			}
		}
	}
}

// wait advances the time.
func (f *fabric) wait(d ib.Time) {
	end := f.now + d
	for i := 0; ; i++ {
		f.settle()
		due := f.cma.Deadline()
		if due == 0 || due > end || i > 10000 {
			break
		}
		f.now = max(f.now, due)
		f.refreeze()
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
	var end *os.File
	ch, err := p.c.NewChannel(socket(&end))
	if err != nil {
		p.f.t.Fatal(err)
	}
	p.f.t.Cleanup(func() { end.Close() })
	return ch, int(end.Fd())
}

// socket opens a signal that is a socket; end is the client's end.
func socket(end **os.File) func() (Signal, error) {
	return func() (Signal, error) {
		s, client, err := eventfile.New()
		*end = client
		return s, err
	}
}

func (p *prog) id(uid uint64, ps uint16) *ID {
	p.f.t.Helper()
	id, err := p.ch.Create(uid, ps, 0)
	if err != nil {
		p.f.t.Fatal(err)
	}
	return id
}

// next takes an event, which must be the expected one.
func (p *prog) next(kind uint32) *abi.CMEventResp {
	p.f.t.Helper()
	p.f.settle()
	p.f.refreeze()
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
	p.f.refreeze()
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
	p.f.refreeze()
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
