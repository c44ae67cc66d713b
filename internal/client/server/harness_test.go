package server

import (
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/routes"
)

// testNIC is a device with two addresses.
func testNIC() *nic.NIC {
	return nic.New(nic.Config{
		Name: "rxe0", NodeGUID: 0x0200_00ff_fe00_0001,
		GIDs: []nic.GIDEntry{
			{GID: ib.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}, NetDev: "eth0"},
			{GID: ib.GID{10: 0xff, 11: 0xff, 12: 127, 15: 1}, NetDev: "lo"},
		},
	})
}

// testServer is a daemon on a socket of its own.
func testServer(t testing.TB) *Server { return testServerStop(t, nil) }

// testServerStop is one that calls stop when a tool asks it to end.
func testServerStop(t testing.TB, stop func()) *Server {
	t.Helper()
	return testServerWith(t, Config{Stop: stop})
}

// testServerWith is a server with a given configuration, completed with defaults. The engine drives the device of the
// first listener.
func testServerWith(t testing.TB, cfg Config) *Server {
	t.Helper()
	var served chan error
	t.Cleanup(func() { // after Close
		if served == nil {
			return
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	s := testListener(t, cfg)
	served = make(chan error, 1)
	go func() { served <- s.Serve() }()
	return s
}

// testRoutes are routes of a test's own.
type testRoutes struct {
	from  func(from, to netip.Addr) (netip.Addr, error)
	reach func(from, to netip.Addr, timeout time.Duration) error
}

func (r testRoutes) From(from, to netip.Addr) (netip.Addr, error) { return r.from(from, to) }

func (r testRoutes) Reach(from, to netip.Addr, timeout time.Duration) error {
	return r.reach(from, to, timeout)
}

// testListener is one that accepts nothing yet.
func testListener(t testing.TB, cfg Config) *Server {
	t.Helper()
	n := testNIC()
	nics := registry.NewTable()
	var s *Server
	loops, _ := strconv.Atoi(os.Getenv("VRDMA_LOOPS"))
	e, err := engine.New(engine.Options{Resolver: nics, Loops: loops, Evict: func(d *nic.Session) { s.Evict(d) }})
	if err != nil {
		t.Fatal(err)
	}
	manager := rdmacm.New(n, e.MADs(n))
	cfg.Engine, cfg.Version = e, "test"
	if len(cfg.Listeners) == 0 {
		cfg.Listeners = make([]Listener, 1)
	}
	first := &cfg.Listeners[0]
	if first.NIC == nil {
		first.NIC = &registry.NIC{Routes: routes.Kernel{}}
	}
	first.Socket = filepath.Join(t.TempDir(), "s.sock")
	first.NIC.Name, first.NIC.Network, first.NIC.Device, first.NIC.Manager = registry.Default, registry.HostNetwork, n, manager
	for i, d := range cfg.Listeners {
		if err := nics.Add(d.NIC); err != nil {
			t.Fatal(err)
		}
		var m engine.Management
		if i == 0 {
			m = manager
		}
		if err := e.Add(d.NIC.Device, m); err != nil {
			t.Fatal(err)
		}
	}
	e.Start()
	s, err = Listen(cfg)
	if err != nil {
		e.Stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		e.Stop()
	})
	return s
}

// A client is a program: a process and one open device.
type client struct {
	t    testing.TB
	proc *protocol.Session
	dev  *protocol.Session
	buf  []byte
}

func dial(t testing.TB, s *Server, h protocol.Hello) *protocol.Session {
	t.Helper()
	c, err := protocol.Dial(s.listeners.list[0].Socket, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newClient(t testing.TB, s *Server, label string) *client {
	t.Helper()
	c := &client{t: t, buf: make([]byte, protocol.MaxMessage)}
	c.proc = dial(t, s, protocol.Hello{Kind: protocol.KindProcess, Program: "prog", Label: label})
	c.dev = dial(t, s, protocol.Hello{Kind: protocol.KindUverbs, Token: c.proc.Welcome.Token, Program: "prog", Label: label})
	return c
}

// open is newClient and GET_CONTEXT.
func open(t testing.TB, s *Server) *client {
	t.Helper()
	c := newClient(t, s, "")
	r, fds := c.send(legacy(abi.CmdGetContext, &abi.GetContext{Response: respAddr}, nil, 8))
	defer protocol.CloseFDs(fds)
	if r.Error != 0 || len(fds) != 1 {
		t.Fatalf("GET_CONTEXT: errno %d, %d descriptors", r.Error, len(fds))
	}
	return c
}

// send runs a command and returns the reply; the caller owns the descriptors.
func (c *client) send(command []byte, extents ...protocol.Extent) (protocol.Reply, []int) {
	c.t.Helper()
	req := protocol.Request{Op: protocol.OpCommand, Command: command, Extents: extents}
	if err := c.dev.WriteMessage(req.Append(nil)); err != nil {
		c.t.Fatal(err)
	}
	n, fds, err := c.dev.ReadMessage(c.buf)
	if err != nil {
		c.t.Fatal(err)
	}
	var r protocol.Reply
	if err := r.Parse(c.buf[:n]); err != nil {
		c.t.Fatal(err)
	}
	return r, fds
}

// must runs a command that must succeed and returns what it stored at respAddr.
func (c *client) must(command []byte, extents ...protocol.Extent) []byte {
	c.t.Helper()
	r, fds := c.send(command, extents...)
	protocol.CloseFDs(fds)
	if r.Error != 0 {
		c.t.Fatalf("command %#x failed: %v", binary.NativeEndian.Uint32(command), syscall.Errno(r.Error))
	}
	for _, s := range r.Stores {
		if s.Address == respAddr {
			return append([]byte(nil), s.Data...)
		}
	}
	return nil
}

// fails runs a command and fails the test unless it ends with want.
func (c *client) fails(name string, command []byte, want syscall.Errno, extents ...protocol.Extent) {
	c.t.Helper()
	r, fds := c.send(command, extents...)
	protocol.CloseFDs(fds)
	if got := syscall.Errno(r.Error); got != want {
		c.t.Errorf("%s: %v (%d), want %v (%d)", name, got, got, want, want)
	}
}

// respAddr is where these programs want their responses.
const respAddr = 0x7000_0000_1000

// legacy builds a legacy command with driver data and a response length of out bytes.
func legacy[T abi.Struct](cmd uint32, req *T, driver []byte, out int) []byte {
	body := append(abi.Encode(nil, req), driver...)
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	hdr := abi.CmdHeader{Command: cmd, InWords: uint16((len(body) + 8) / 4), OutWords: uint16((out + 3) / 4)}
	return append(abi.Encode(nil, &hdr), body...)
}

// extended builds an extended command.
func extended[T abi.Struct](cmd uint32, req *T, out, driverOut int) []byte {
	body := abi.Encode(nil, req)
	for len(body)%8 != 0 {
		body = append(body, 0)
	}
	hdr := abi.CmdHeader{Command: cmd | abi.FlagExtended, InWords: uint16(len(body) / 8), OutWords: uint16(out / 8)}
	ex := abi.ExCmdHeader{ProviderOutWords: uint16(driverOut / 8)}
	if out+driverOut > 0 {
		ex.Response = respAddr
	}
	return append(abi.Encode(abi.Encode(nil, &hdr), &ex), body...)
}

// u32 reads a word of a response.
func u32(b []byte, off int) uint32 {
	if len(b) < off+4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b[off:])
}

func u64(b []byte, off int) uint64 {
	if len(b) < off+8 {
		return 0
	}
	return binary.NativeEndian.Uint64(b[off:])
}

// eventually waits for cond, a minute at most.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

func pd(c *client) uint32 {
	c.t.Helper()
	return u32(c.must(legacy(abi.CmdAllocPD, &abi.AllocPD{Response: respAddr}, nil, 4)), 0)
}

func cq(c *client) uint32 {
	c.t.Helper()
	return u32(c.must(legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 10, CompChannel: -1}, nil, 24)), 0)
}

func qp(c *client, pd, cq uint32) uint32 {
	c.t.Helper()
	return u32(c.must(legacy(abi.CmdCreateQP, qpRequest(pd, cq), nil, 64)), 0)
}

func qpRequest(pd, cq uint32) *abi.CreateQP {
	return &abi.CreateQP{
		Response: respAddr, PDHandle: pd, SendCQHandle: cq, RecvCQHandle: cq, MaxSendWR: 4, MaxRecvWR: 4,
		MaxSendSGE: 1, MaxRecvSGE: 1, QPType: abi.QPTypeRC,
	}
}
