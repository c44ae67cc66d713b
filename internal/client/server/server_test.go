package server

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/testkit/leak"
)

const helperSocket = "VRDMA_TEST_SOCKET"

func TestMain(m *testing.M) {
	if os.Getenv(askVariable) != "" {
		askAsContainer()
		return
	}
	if socket := os.Getenv(helperSocket); socket != "" {
		if err := helper(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// helper is a program that opens the device, starts a child that inherits its
// sockets, and waits to be killed. It never returns without an error.
func helper(socket string) error {
	proc, err := protocol.Dial(socket, protocol.Hello{Kind: protocol.KindProcess, Program: "helper"})
	if err != nil {
		return err
	}
	dev, err := protocol.Dial(socket, protocol.Hello{Kind: protocol.KindUverbs, Token: proc.Welcome.Token})
	if err != nil {
		return err
	}
	child := exec.Command("sleep", "60")
	for _, c := range []*protocol.Session{proc, dev} {
		f, err := c.File()
		if err != nil {
			return err
		}
		child.ExtraFiles = append(child.ExtraFiles, f)
	}
	if err := child.Start(); err != nil {
		return err
	}
	memfd := int(proc.Files[0].Fd())
	if _, err := unix.Pwrite(memfd, make([]byte, 1<<20), 1<<32); err != nil {
		return err
	}
	fmt.Println(child.Process.Pid, memfd)
	select {}
}

// TestKilled kills a program whose forked child still holds its connections.
func TestKilled(t *testing.T) {
	s := testServer(t)
	prog := exec.Command(os.Args[0])
	prog.Env = append(os.Environ(), helperSocket+"="+s.listeners.list[0].Socket)
	prog.Stderr = os.Stderr
	out, err := prog.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := prog.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(bufio.NewReader(out), &child); err != nil {
		prog.Process.Kill()
		prog.Wait()
		t.Fatalf("the program did not start: %v", err)
	}
	defer syscall.Kill(child, syscall.SIGKILL)
	if n := s.Sessions(); n != 2 {
		t.Errorf("%d conversations, want a process and a device", n)
	}
	prog.Process.Kill()
	prog.Wait()
	eventually(t, "the end of a killed program's sessions", func() bool { return s.Sessions() == 0 })
	if err := syscall.Kill(child, 0); err != nil {
		t.Errorf("the child should have outlived the test: %v", err)
	}
}

// TestProcessEnd closes the PROCESS connection; the device is closed with it.
func TestProcessEnd(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	pd(c)
	c.proc.Close()
	if _, _, err := c.dev.ReadMessage(c.buf); !errors.Is(err, io.EOF) {
		t.Errorf("the device's connection: %v, want EOF", err)
	}
	eventually(t, "the end of the session", func() bool { return s.Sessions() == 0 })
}

// TestLeaks opens and closes devices in every way and looks for leaks.
func TestLeaks(t *testing.T) {
	s := testServer(t)
	warm := open(t, s)
	warm.dev.Close()
	warm.proc.Close()
	eventually(t, "the first client's end", func() bool { return s.Sessions() == 0 })
	files, goroutines := leak.Descriptors(t), runtime.NumGoroutine()

	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				c := open(t, s)
				p, q := pd(c), cq(c)
				qp(c, p, q)
				r, fds := c.send(legacy(abi.CmdCreateCompChannel, &abi.CreateCompChannel{Response: respAddr}, nil, 4))
				protocol.CloseFDs(fds)
				if r.Error != 0 {
					t.Errorf("channel: errno %d", r.Error)
				}
				start := uint64(i+1) << 32
				c.must(legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, Start: start, HCAVA: start, Length: 8192, PDHandle: p}, nil, 12),
					protocol.Extent{Start: start, Length: 8192, Kind: protocol.ExtentOwn, Prot: 3})
				if i%2 == 0 {
					c.dev.Close()
				}
				c.proc.Close()
				c.dev.Close()
			}
		})
	}
	wg.Wait()
	eventually(t, "the end of all sessions", func() bool { return s.Sessions() == 0 })
	eventually(t, "files closed", func() bool { return leak.Descriptors(t) <= files })
	eventually(t, "goroutines ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	var sessions int
	s.loop.Do(func() { sessions = s.listeners.list[0].NIC.Device.Sessions() })
	if sessions != 0 {
		t.Errorf("the NIC has %d sessions", sessions)
	}
	eventually(t, "windows and arenas unmapped", func() bool {
		maps, err := os.ReadFile("/proc/self/maps")
		return err == nil && !strings.Contains(string(maps), "vrdma-")
	})
}

// TestLastDescriptor is a connection that found no descriptor, while somebody closed some.
func TestLastDescriptor(t *testing.T) {
	s := testListener(t, Config{})
	type answer struct {
		session *protocol.Session
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		c, err := protocol.Dial(s.listeners.list[0].Socket, protocol.Hello{Kind: protocol.KindProcess, Program: "prog"})
		answers <- answer{c, err}
	}()
	var got answer
	eventually(t, "an answer", func() bool {
		s.acceptor.admit(s.listeners.list[0].socket, s.listeners.list[0], syscall.EMFILE)
		if s.acceptor.reserve.f == nil {
			t.Fatal("no spare descriptor, although there are some")
		}
		select {
		case got = <-answers:
			return true
		default:
			return false
		}
	})
	if got.err != nil {
		t.Fatalf("turned away: %v", got.err)
	}
	got.session.Close()
}

// TestPanic shows that a panic in a handler ends only its own session.
func TestPanic(t *testing.T) {
	s := testServer(t)
	victim, other := open(t, s), open(t, s)
	domain := pd(victim)
	s.loop.Do(func() {
		random := s.listeners.list[0].NIC.Device.Random
		s.listeners.list[0].NIC.Device.Random = func() uint32 { // asked for a window's key
			s.listeners.list[0].NIC.Device.Random = random
			panic("on purpose")
		}
	})
	req := protocol.Request{Op: protocol.OpCommand, Command: legacy(abi.CmdAllocMW, &abi.AllocMW{Response: respAddr, PDHandle: domain, MWType: abi.MWType1}, nil, 8)}
	if err := victim.dev.WriteMessage(req.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := victim.dev.ReadMessage(victim.buf); !errors.Is(err, io.EOF) {
		t.Errorf("the victim's connection: %v, want EOF", err)
	}
	pd(other)
}

// TestEvict is what the engine asks for after a fault.
func TestEvict(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	s.clients.mu.Lock()
	var dev *nic.Session
	for ses := range s.clients.sessions {
		dev = ses.dev
	}
	s.clients.mu.Unlock()
	s.loop.Do(func() {
		s.cfg.Engine.Detach(dev)
		dev.Close()
	})
	c.fails("a command to a closed device", legacy(abi.CmdAllocPD, &abi.AllocPD{Response: respAddr}, nil, 4), syscall.EIO)
	s.Evict(dev)
	if _, _, err := c.dev.ReadMessage(c.buf); !errors.Is(err, io.EOF) {
		t.Errorf("after Evict: %v, want EOF", err)
	}
}

func TestListen(t *testing.T) {
	s := testServer(t)
	_, err := Listen(Config{Listeners: []Listener{s.listeners.list[0].Listener}, Engine: s.cfg.Engine})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("a second daemon: %v, want an error that names our pid", err)
	}

	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: stale, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := clearStale(stale); err != nil {
		t.Errorf("a stale socket: %v, want it removed", err)
	}
	if _, err := os.Lstat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the stale socket is still there: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := clearStale(file); err == nil {
		t.Error("a plain file in the socket's place was accepted")
	}
}

func TestGreeting(t *testing.T) {
	s := testServer(t)
	raw := func(b []byte) (protocol.Welcome, error) {
		u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.listeners.list[0].Socket, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		c := protocol.NewConn(u)
		if err := c.WriteMessage(b); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 1024)
		n, fds, err := c.ReadMessage(buf)
		if err != nil {
			return protocol.Welcome{}, err
		}
		protocol.CloseFDs(fds)
		return protocol.ParseWelcome(buf[:n])
	}
	hello := func(change func(*protocol.Hello)) []byte {
		h := protocol.Hello{Magic: protocol.Magic, Protocol: protocol.Version, Kind: protocol.KindProcess}
		change(&h)
		return h.Append(nil)
	}
	for _, test := range []struct {
		name  string
		hello []byte
		want  syscall.Errno
		text  string
	}{
		{"good", hello(func(*protocol.Hello) {}), 0, ""},
		{"an older client, which arms by command", hello(func(h *protocol.Hello) { h.Protocol = protocol.OldestVersion }), 0, ""},
		{"one that is too old", hello(func(h *protocol.Hello) { h.Protocol = protocol.OldestVersion - 1 }), syscall.EPROTO, "protocol"},
		{"a newer client", hello(func(h *protocol.Hello) { h.Protocol = 99 }), syscall.EPROTO, "stop the old daemon"},
		{"no magic", hello(func(h *protocol.Hello) { h.Magic = 1 }), syscall.EPROTO, "magic"},
		{"too short", []byte{1, 2, 3}, syscall.EPROTO, "bytes"},
		{"an unknown vNIC", hello(func(h *protocol.Hello) { h.VNIC = "blue" }), syscall.ENODEV, "blue"},
		{"an unknown kind", hello(func(h *protocol.Hello) { h.Kind = 9 }), syscall.EOPNOTSUPP, "kind 9"},
		{"a device without a process", hello(func(h *protocol.Hello) { h.Kind = protocol.KindUverbs }), syscall.EPERM, "introduced"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, err := raw(test.hello)
			if err != nil {
				t.Fatal(err)
			}
			if syscall.Errno(w.Error) != test.want || !strings.Contains(w.Text, test.text) {
				t.Errorf("error %v, text %q; want %v and %q in it", syscall.Errno(w.Error), w.Text, test.want, test.text)
			}
			if int(w.DaemonPid) != os.Getpid() || w.RdevMajor != 231 || w.RdevMinor != 192 {
				t.Errorf("pid %d, device %d:%d", w.DaemonPid, w.RdevMajor, w.RdevMinor)
			}
		})
	}
}

// TestNonsense shows that a client that breaks the protocol loses its connection.
func TestNonsense(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	if err := c.dev.WriteMessage([]byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.dev.ReadMessage(c.buf); !errors.Is(err, io.EOF) {
		t.Errorf("after nonsense: %v, want EOF", err)
	}
	// So does one that sends descriptors, unless the kernel can refuse to send them. They are
	// closed unseen.
	d := open(t, s)
	before := leak.Descriptors(t)
	req := protocol.Request{Op: protocol.OpSync}
	switch err := d.dev.WriteMessage(req.Append(nil), 0, 1, 2); {
	case errors.Is(err, syscall.EPERM):
		if err := d.dev.WriteMessage(req.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := d.dev.ReadMessage(d.buf); err != nil {
			t.Fatal(err)
		}
	case err != nil:
		t.Fatal(err)
	default:
		if _, _, err := d.dev.ReadMessage(d.buf); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("after descriptors: %v, want the end", err)
		}
	}
	if got := leak.Descriptors(t); got > before {
		t.Errorf("%d files open, %d before the client sent three", got, before)
	}
}

// TestFlood: four clients send garbage as fast as they can while a fifth works.
func TestFlood(t *testing.T) {
	s := testServer(t)
	good := open(t, s)
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		c := open(t, s)
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range 2000 {
				b := make([]byte, 8+4*r.IntN(40))
				for i := 8; i < len(b); i++ {
					b[i] = byte(r.IntN(3)) // small numbers are handles that exist
				}
				hdr := abi.CmdHeader{Command: uint32(r.IntN(abi.NumCmd)), InWords: uint16(len(b) / 4), OutWords: uint16(r.IntN(64))}
				copy(b, abi.Encode(nil, &hdr))
				_, fds := c.send(b)
				protocol.CloseFDs(fds)
			}
		})
	}
	for range 200 {
		p, q := pd(good), cq(good)
		h := qp(good, p, q)
		good.must(legacy(abi.CmdDestroyQP, &abi.DestroyQP{Response: respAddr, QPHandle: h}, nil, 4))
		good.must(legacy(abi.CmdDestroyCQ, &abi.DestroyCQ{Response: respAddr, CQHandle: q}, nil, 8))
		good.must(legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: p}, nil, 0))
	}
	wg.Wait()
}

// Whether a region would be refused for its size is answered before there is one, and counts as
// no refusal.
func TestRoom(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	for _, q := range []struct {
		extents []protocol.Extent
		want    syscall.Errno
	}{
		{[]protocol.Extent{{Start: 1 << 30, Length: 1 << 20}}, 0},
		{[]protocol.Extent{{Start: 1 << 30, Length: 8 << 40}}, syscall.ENOMEM},
		{[]protocol.Extent{{Start: 1 << 30, Length: 1<<64 - 1}}, syscall.ENOMEM},
		{nil, syscall.EINVAL},
		{make([]protocol.Extent, 2), syscall.EINVAL},
	} {
		req := protocol.Request{Op: protocol.OpRoom, Extents: q.extents}
		if err := c.dev.WriteMessage(req.Append(nil)); err != nil {
			t.Fatal(err)
		}
		n, _, err := c.dev.ReadMessage(c.buf)
		if err != nil {
			t.Fatal(err)
		}
		if got := syscall.Errno(binary.NativeEndian.Uint32(c.buf[:n])); got != q.want {
			t.Errorf("room for %v: %v, want %v", q.extents, got, q.want)
		}
	}
}
