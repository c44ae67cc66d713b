package vm

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/routes"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// ramBase and ramSize are the range of the test guest's memory. It does not start at 0, so that addresses and offsets
// differ.
const (
	ramBase = 1 << 20
	ramSize = 16 << 20
)

// testRAM is a guest's memory.
type testRAM struct {
	fd       int
	mem      []byte
	released *atomic.Int32
}

func newTestRAM(t testing.TB) testRAM {
	t.Helper()
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, ramSize); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(fd, 0, ramSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return testRAM{fd, mem, new(atomic.Int32)}
}

// shrink removes all memory, as QEMU could.
func (r testRAM) shrink(t testing.TB) {
	t.Helper()
	if err := unix.Ftruncate(r.fd, 0); err != nil {
		t.Fatal(err)
	}
}

func (r testRAM) Slice(addr, n uint64) []byte {
	at := addr - ramBase
	if at >= ramSize {
		return nil
	}
	return r.mem[at : at+min(n, ramSize-at)]
}

func (r testRAM) Contains(addr uintptr) bool { return memory.Within(addr, r.mem) }
func (r testRAM) Release()                   { r.released.Add(1) }

// awaitReleased waits until it was released as often as it was acquired.
func (r testRAM) awaitReleased(t testing.TB, n int32) {
	t.Helper()
	for end := time.Now().Add(time.Minute); r.released.Load() != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the machine's memory was released %d times, want %d", r.released.Load(), n)
		}
	}
}

// testPort returns a daemon with a port for a guest that has this memory.
func testPort(t testing.TB, ram Memory) *Sockets {
	t.Helper()
	p, _ := testDaemon(t, ram)
	return p
}

// testDaemon is testPort, with the daemon's loop.
func testDaemon(t testing.TB, ram Memory) (*Sockets, *engine.Engine) {
	t.Helper()
	d := makeDaemon(t, t.TempDir(), nil)
	d.p.memory = func() (Memory, error) { return ram, nil }
	if err := d.p.Open(); err != nil {
		t.Fatal(err)
	}
	go d.serve()
	return d.p, d.e
}

// A host is a daemon with one NIC.
type host struct {
	t      testing.TB
	n      *registry.NIC
	e      *engine.Engine
	s      *server.Server
	p      *Sockets // not open
	ledger *budget.Ledger
	served chan error
}

// makeDaemon makes a daemon whose sockets are in dir. It ends with the test.
func makeDaemon(t testing.TB, dir string, from server.Inherited) *host {
	t.Helper()
	n := nic.New(nic.Config{
		Name: "rxe0", NodeGUID: 0x0200_00ff_fe00_0001,
		GIDs: []nic.GIDEntry{{GID: ib.GIDOf(netip.MustParseAddr("127.0.0.1")), NetDev: "lo"}},
	})
	nics := registry.NewTable()
	d := &host{t: t, ledger: budget.New(budget.ThisMachine().Limits()), served: make(chan error, 1)}
	loops, _ := strconv.Atoi(os.Getenv("VRDMA_LOOPS"))
	var err error
	if d.e, err = engine.New(engine.Options{Resolver: nics, Loops: loops, Evict: func(s *nic.Session) { d.s.Evict(s) }}); err != nil {
		t.Fatal(err)
	}
	d.n = &registry.NIC{Name: registry.Default, Network: registry.HostNetwork, Device: n, Manager: rdmacm.New(n, d.e.MADs(n)), Routes: routes.Kernel{}}
	if err := nics.Add(d.n); err != nil {
		t.Fatal(err)
	}
	if err := d.e.Add(n, d.n.Manager); err != nil {
		t.Fatal(err)
	}
	d.e.Start()
	socket := filepath.Join(dir, "vrdma.sock")
	if d.s, err = server.Listen(server.Config{Listeners: []server.Listener{{Socket: socket, NIC: d.n}}, Engine: d.e, Version: "test", Budget: d.ledger, Inherited: from}); err != nil {
		t.Fatal(err)
	}
	d.p = New(Config{
		NIC: d.n.Name, Dir: filepath.Join(dir, "g"), SocketMode: 0o600, Tree: socket + ".d/sys", Log: slog.New(slog.DiscardHandler),
		Host: testHost{d.s, d.n},
	})
	t.Cleanup(d.end)
	return d
}

func (d *host) serve() { d.served <- d.s.Serve() }

// end ends the daemon.
func (d *host) end() {
	d.p.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.s.Close(ctx); err != nil {
		d.t.Error(err)
	}
	<-d.served
	d.e.Stop()
	if n := d.ledger.Users(); n != 0 {
		d.t.Errorf("%d users still pay for something: %+v", n, d.ledger.Usage())
	}
}

// A testAgent is an agent that does what a test says.
type testAgent struct {
	t testing.TB
	u *net.UnixConn
	r *vmproto.Reader
}

// dial connects to one of a port's sockets.
func dial(t testing.TB, p *Sockets, name string) *net.UnixConn {
	t.Helper()
	u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(p.cfg.Dir, name), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	u.SetDeadline(time.Now().Add(time.Minute))
	return u
}

func newTestAgent(t testing.TB, p *Sockets) *testAgent {
	t.Helper()
	u := dial(t, p, LineSocket)
	return &testAgent{t, u, vmproto.NewReader(u)}
}

func (a *testAgent) write(b []byte) {
	a.t.Helper()
	if _, err := a.u.Write(b); err != nil {
		a.t.Fatal(err)
	}
}

func (a *testAgent) send(k vmproto.Kind, id uint32, body ...[]byte) {
	a.t.Helper()
	a.write(vmproto.Append(nil, k, id, body...))
}

// greet greets the daemon and reads its answer.
func (a *testAgent) greet(version uint32) vmproto.Answer {
	a.t.Helper()
	g := vmproto.Greeting{Nonce: [16]byte{1}, Version: version, Name: "machine"}
	a.write(vmproto.AppendHello([]byte("what is left of something"), g))
	w, err := a.r.FindWelcome()
	if err != nil || w.Nonce != g.Nonce {
		a.t.Fatalf("the welcome: %+v, %v", w, err)
	}
	return w
}

// await reads frames until one of a kind comes for id.
func (a *testAgent) await(k vmproto.Kind, id uint32) vmproto.Frame {
	a.t.Helper()
	for {
		f, err := a.r.Next()
		if err != nil {
			a.t.Fatalf("no frame of kind %d for %d: %v", k, id, err)
		}
		if f.Kind == k && f.ID == id {
			return f
		}
		if f.Kind == vmproto.Close && f.ID == id {
			a.t.Fatalf("conversation %d ended, want a frame of kind %d", id, k)
		}
	}
}

// awaitClosed reads frames until all of these conversations have ended, in any order.
func (a *testAgent) awaitClosed(ids ...uint32) {
	a.t.Helper()
	for len(ids) > 0 {
		f, err := a.r.Next()
		if err != nil {
			a.t.Fatalf("conversations %v do not end: %v", ids, err)
		}
		if f.Kind == vmproto.Close {
			ids = slices.DeleteFunc(ids, func(id uint32) bool { return id == f.ID })
		}
	}
}

// awaitEnd reads frames until the connection ends.
func (a *testAgent) awaitEnd(otherwise string) {
	a.t.Helper()
	for {
		if _, err := a.r.Next(); err != nil {
			if err, ok := err.(net.Error); ok && err.Timeout() {
				a.t.Fatal(otherwise)
			}
			return
		}
	}
}

// hello opens a conversation and reads the answer.
func (a *testAgent) hello(id uint32, h protocol.Hello, before ...vmproto.Frame) protocol.Welcome {
	a.t.Helper()
	h.Magic, h.Protocol, h.Program = protocol.Magic, protocol.Version, "test"
	h.Flags = protocol.HelloMail | protocol.HelloAhead
	a.send(vmproto.Open, id, vmproto.OpenBody(vmproto.Person{Pid: 77}))
	for _, f := range before {
		a.send(f.Kind, id, f.Body)
	}
	a.send(vmproto.Message, id, h.Append(nil))
	w, err := protocol.ParseWelcome(a.await(vmproto.Message, id).Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return w
}

// pages are n pages of the guest, in runs of two, one apart.
func pages(from uint64, n int) (runs []vmproto.Run) {
	for at := uint64(ramBase) + from; n > 0; at, n = at+3*pageSize, n-2 {
		runs = append(runs, vmproto.Run{Addr: at, Size: 2 * pageSize})
	}
	return runs
}

// testHost is a server with one NIC, whose Ethernet card carries nothing. It implements Host.
type testHost struct {
	s *server.Server
	n *registry.NIC
}

func (h testHost) Vouch(u *net.UnixConn) (credentials.Caller, error) { return h.s.Vouch(h.n, u) }
func (h testHost) Charge(who credentials.Caller, b budget.Bill) (func(), error) {
	return h.s.Charge(h.n, who, b)
}
func (h testHost) Receive(c *protocol.Conn, l server.ClientEnd, who credentials.Caller) error {
	return h.s.Receive(h.n, c, l, who)
}
func (h testHost) Card(u *net.UnixConn, d *vhostuser.Device, ready func(*vhostuser.Conn)) error {
	return vhostuser.Serve(u, d, ready)
}

func (h testHost) ThawCard(u *net.UnixConn, d *vhostuser.Device, st *vhostuser.ConnState, file func(uint32) (int, error)) (*vhostuser.Conn, func() error, error) {
	c, start, err := vhostuser.Thaw(u, d, st, file)
	if err != nil {
		return nil, nil, err
	}
	return c, func() error { return c.Continue(start) }, nil
}
