package server

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/engine"
)

// request sends a request without a body on a PROCESS connection, and returns the errno of the reply.
func request(t *testing.T, c *protocol.Conn, op protocol.Op, command []byte) (syscall.Errno, []int) {
	t.Helper()
	req := protocol.Request{Op: op, Command: command}
	if err := c.WriteMessage(req.Append(nil)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, protocol.MaxMessage)
	n, fds, err := c.ReadMessage(buf)
	if err != nil {
		t.Fatal(err)
	}
	var r protocol.Reply
	if err := r.Parse(buf[:n]); err != nil {
		t.Fatal(err)
	}
	return syscall.Errno(r.Error), fds
}

// back sends the hello of what comes back.
func back(t *testing.T, s *Server, kind protocol.Kind, token protocol.Token, name uint32, fds ...int) (*protocol.Conn, protocol.Welcome, []int) {
	t.Helper()
	u, err := protocol.Connect(s.listeners.list[0].Socket)
	if err != nil {
		t.Fatal(err)
	}
	c := protocol.NewConn(u)
	t.Cleanup(func() { c.UnixConn.Close() })
	h := protocol.Hello{Magic: protocol.Magic, Protocol: protocol.Version, Kind: kind, Flags: protocol.HelloReturn, Token: token, Program: "prog", Name: name}
	if err := c.WriteMessage(h.Append(nil), fds...); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, protocol.MaxMessage)
	n, got, err := c.ReadMessage(buf)
	if err != nil {
		t.Fatal(err)
	}
	w, err := protocol.ParseWelcome(buf[:n])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { protocol.CloseFDs(got) })
	return c, w, got
}

// A program lets go of the daemon and comes back, as the library does it. What is not its own, or not asked for, is refused.
func TestDepart(t *testing.T) {
	asked := make(chan os.Signal, 8)
	signal.Notify(asked, syscall.Signal(protocol.LeaveSignal))
	defer signal.Stop(asked)
	s := testServer(t)
	h := s.cfg.Engine.(*engine.Engine)
	n := s.listeners.first().NIC
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	old := open(t, s)
	if _, err := s.Depart(ctx, n, h, func() {}); err == nil {
		t.Fatal("a program leaves whose library cannot")
	}
	if e, _ := request(t, old.proc.Conn, protocol.OpLeave, nil); e != syscall.EINVAL {
		t.Errorf("a program leaves that was not asked: %v", e)
	}
	if e, _ := request(t, old.proc.Conn, protocol.OpStay, nil); e != syscall.EINVAL {
		t.Errorf("a program stays that does not leave: %v", e)
	}
	old.dev.Close()
	old.proc.Close()
	eventually(t, "the program has ended", func() bool { return s.Sessions() == 0 })

	c := &client{t: t, buf: make([]byte, protocol.MaxMessage)}
	c.proc = dial(t, s, protocol.Hello{Kind: protocol.KindProcess, Program: "prog", Flags: protocol.HelloMoves})
	token := c.proc.Welcome.Token
	c.dev = dial(t, s, protocol.Hello{Kind: protocol.KindUverbs, Token: token, Program: "prog"})
	name := c.dev.Welcome.ID
	arena, err := unix.FcntlInt(c.dev.Files[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(arena)
	refused := func(what string, want syscall.Errno, kind protocol.Kind, token protocol.Token, name uint32, fds ...int) {
		t.Helper()
		if _, w, _ := back(t, s, kind, token, name, fds...); syscall.Errno(w.Error) != want {
			t.Errorf("%s: %v, want %v", what, syscall.Errno(w.Error), want)
		}
	}
	refused("a program that has not left", syscall.ESRCH, protocol.KindProcess, token, 0)

	// It does not let go in time: everything goes on.
	soon, stop := context.WithTimeout(ctx, 200*time.Millisecond)
	if _, err := s.Depart(soon, n, h, func() {}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that does not answer leaves: %v", err)
	}
	stop()

	departed := make(chan *Departure, 1)
	go func() {
		d, err := s.Depart(ctx, n, h, func() {})
		if err != nil {
			t.Error(err)
		}
		departed <- d
	}()
	<-asked
	eventually(t, "the NIC leaves", func() bool { return s.moves.departing(n) != nil })
	if e, _ := request(t, c.proc.Conn, protocol.OpLeave, nil); e != 0 {
		t.Fatalf("the program may not leave: %v", e)
	}
	refused("a program that has left, and is expected nowhere", syscall.EAGAIN, protocol.KindProcess, token, 0)
	if _, err := protocol.Dial(s.listeners.list[0].Socket, protocol.Hello{Kind: protocol.KindProcess, Program: "other"}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a new program: %v", err)
	}
	c.dev.Close()
	c.proc.Close()
	d := <-departed
	if d == nil {
		t.FailNow()
	}
	if st := d.State(); len(st.Processes) != 1 || len(st.Processes[0].Sessions) != 1 || st.QPs() != 0 {
		t.Fatalf("the state: %+v", st)
	}
	// Other NICs may leave while the program is away: nothing of it counts as a request under way.
	soon, stop = context.WithTimeout(ctx, 10*time.Second)
	f, err := s.Freeze(soon)
	if err != nil {
		t.Fatalf("the server does not stand still while a program is away: %v", err)
	}
	f.Resume()
	stop()

	returned := make(chan error, 1)
	go func() { returned <- d.Return(ctx) }()
	eventually(t, "the program is expected", func() bool { _, err := s.moves.arriving(n, token); return err == nil })
	stranger := token
	stranger[0]++
	refused("another token", syscall.ESRCH, protocol.KindProcess, stranger, 0)
	refused("a device before its process", syscall.ENODEV, protocol.KindUverbs, token, name, arena)
	refused("another kind", syscall.EOPNOTSUPP, protocol.KindNetlink, token, 0)

	// The first attempt ends in between.
	first, w, fds := back(t, s, protocol.KindProcess, token, 0)
	if w.Error != 0 || w.Token != token || len(fds) != 1 {
		t.Fatalf("the process: %+v, %d descriptors", w, len(fds))
	}
	refused("a second one with the token", syscall.EAGAIN, protocol.KindProcess, token, 0)
	if e, _ := request(t, first, protocol.OpReturn, nil); e != syscall.EBADF {
		t.Errorf("a program without its device is back: %v", e)
	}
	first.UnixConn.Close()
	var p *protocol.Conn
	eventually(t, "it may try again", func() bool {
		p, w, _ = back(t, s, protocol.KindProcess, token, 0)
		return w.Error == 0
	})
	refused("a device of another number", syscall.ENODEV, protocol.KindUverbs, token, name+1, arena)
	refused("a device without its arena", syscall.EBADF, protocol.KindUverbs, token, name)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	refused("a file that is no memfd", syscall.EINVAL, protocol.KindUverbs, token, name, int(null.Fd()))
	refused("an event channel that there was not", syscall.ENODEV, protocol.KindRDMACM, token, 0)
	dev, w, fds := back(t, s, protocol.KindUverbs, token, name, arena)
	if w.Error != 0 || w.ID != name || len(fds) != 1 {
		t.Fatalf("the device: %+v, %d descriptors", w, len(fds))
	}
	if e, _ := request(t, dev, protocol.OpReturn, protocol.Return{Kind: protocol.FDComp, ID: 5}.Append(nil)); e != syscall.EBADF {
		t.Errorf("a completion channel that there was not: %v", e)
	}
	if e, _ := request(t, dev, protocol.OpReturn, protocol.Return{}.Append(nil)); e != 0 {
		t.Fatalf("the device is not back: %v", e)
	}
	if e, _ := request(t, p, protocol.OpReturn, nil); e != 0 {
		t.Fatalf("the program is not back: %v", e)
	}
	if err := <-returned; err != nil {
		t.Fatal(err)
	}
	refused("a program that is back", syscall.ESRCH, protocol.KindProcess, token, 0)
	if e, _ := request(t, p, protocol.OpSync, nil); e != 0 {
		t.Errorf("its PROCESS connection: %v", e)
	}
	if got := s.Sessions(); got != 2 {
		t.Errorf("the server has %d processes and devices, want 2", got)
	}

	// It leaves again, and does not come back: it is lost, and the NIC serves others.
	go func() {
		d, err := s.Depart(ctx, n, h, func() {})
		if err != nil {
			t.Error(err)
		}
		departed <- d
	}()
	<-asked
	eventually(t, "the NIC leaves", func() bool { return s.moves.departing(n) != nil })
	if e, _ := request(t, p, protocol.OpLeave, nil); e != 0 {
		t.Fatalf("the program may not leave: %v", e)
	}
	dev.UnixConn.Close()
	p.UnixConn.Close()
	if d = <-departed; d == nil {
		t.FailNow()
	}
	soon, stop = context.WithTimeout(ctx, 100*time.Millisecond)
	defer stop()
	if err := d.Return(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a program that does not come back: %v", err)
	}
	if got := s.Sessions(); got != 0 {
		t.Errorf("the server has %d processes and devices", got)
	}
	if err := h.Halt(ctx, func() error { return h.Suspend(n.Device) }); err != nil {
		t.Errorf("the NIC stands still: %v", err)
	}
	s.loop.Do(func() { h.Continue(n.Device) })
	open(t, s)
}

// A process is signalled only if it catches the signal.
func TestCatches(t *testing.T) {
	for line, want := range map[string]bool{"SigCgt:\t0800000000000000\n": true, "SigCgt:\t0000000000000002\n": false, "SigIgn:\t0800000000000000\n": false, "": false} {
		if got := catches(line, protocol.LeaveSignal); got != want {
			t.Errorf("catches(%q) = %v", line, got)
		}
	}
}
