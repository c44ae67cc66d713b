package server

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// A client that sends requests and reads no answers delays no other client, and gets all answers in order when it
// reads.
func TestUnreadAnswers(t *testing.T) {
	s := testServer(t)
	rude, other := open(t, s), open(t, s)
	port := legacy(abi.CmdQueryPort, &abi.QueryPort{Response: respAddr, PortNum: 1}, nil, abi.Size[abi.QueryPortResp]())
	wrong := legacy(abi.CmdQueryPort, &abi.QueryPort{Response: respAddr, PortNum: 2}, nil, abi.Size[abi.QueryPortResp]())
	sent := 0
	for {
		req := protocol.Request{Op: protocol.OpCommand, Command: port}
		if sent%3 == 2 {
			req.Command = wrong
		}
		rude.dev.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
		if err := rude.dev.WriteMessage(req.Append(nil)); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		sent++
	}
	for range 100 {
		other.must(port)
	}
	rude.dev.SetReadDeadline(time.Now().Add(time.Minute))
	for i := range sent {
		n, _, err := rude.dev.ReadMessage(rude.buf)
		if err != nil {
			t.Fatalf("answer %d of %d: %v", i, sent, err)
		}
		var r protocol.Reply
		if err := r.Parse(rude.buf[:n]); err != nil || (r.Error != 0) != (i%3 == 2) {
			t.Fatalf("answer %d: errno %d, %v", i, r.Error, err)
		}
	}
	rude.dev.SetDeadline(time.Time{})
	rude.must(port)
}

// On one connection, commands that the loop runs and commands that it hands over stay in order.
func TestHandedOver(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	p, q := pd(c), cq(c)
	for range 100 {
		made := qp(c, p, q)
		c.fails("a registration of nothing", legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, PDHandle: p, Start: 4096, Length: 4096, AccessFlags: 1}, nil, 12), syscall.EFAULT)
		c.must(legacy(abi.CmdDestroyQP, &abi.DestroyQP{Response: respAddr, QPHandle: made}, nil, 4))
	}
}

// lingering is a socket whose last close takes an hour, or until the test ends.
func lingering(t *testing.T) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	for err = nil; err == nil; {
		_, err = unix.SendmsgN(fd, make([]byte, 1<<20), nil, nil, unix.MSG_DONTWAIT)
	}
	if err != syscall.EAGAIN {
		t.Fatal(err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		t.Fatal(err)
	}
	return f
}

// Closing a received descriptor may take as long as its sender likes. The loop does not do it.
func TestDescriptorsThatLinger(t *testing.T) {
	s := testServer(t)
	rude, other := open(t, s), open(t, s)
	port := legacy(abi.CmdQueryPort, &abi.QueryPort{Response: respAddr, PortNum: 1}, nil, abi.Size[abi.QueryPortResp]())
	req := protocol.Request{Op: protocol.OpCommand, Command: port}
	f := lingering(t)
	var err error
	s.loop.Do(func() { // so that ours is not the last close
		if err = rude.dev.WriteMessage(req.Append(nil), int(f.Fd())); err != nil { // the kernel can refuse them
			unix.SetsockoptLinger(int(f.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		}
		f.Close()
	})
	other.dev.SetDeadline(time.Now().Add(time.Minute))
	for range 100 {
		other.must(port)
	}
	if errors.Is(err, syscall.EPERM) {
		rude.must(port)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	rude.dev.SetReadDeadline(time.Now().Add(time.Minute))
	if n, _, err := rude.dev.ReadMessage(rude.buf); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a request with descriptors was answered: %d bytes, %v", n, err)
	}
}

// A program that closes its device waits until the daemon hangs up, and then takes its memory back: the session must be
// gone.
func TestHangsUpLast(t *testing.T) {
	s := testServer(t)
	for range 50 {
		c := open(t, s)
		if err := c.dev.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		c.dev.SetReadDeadline(time.Now().Add(time.Minute))
		if _, _, err := c.dev.ReadMessage(c.buf); !errors.Is(err, io.EOF) {
			t.Fatalf("after the end: %v, want EOF", err)
		}
		s.clients.mu.Lock()
		left := len(s.clients.sessions)
		s.clients.mu.Unlock()
		if left != 0 {
			t.Fatal("the daemon hung up before the session ended")
		}
	}
}

// After a slow request the goroutine keeps the connection for a moment. Everything that comes then is answered in
// order, also the end, and others are served meanwhile.
func TestKept(t *testing.T) {
	s := testServer(t)
	c, other := open(t, s), open(t, s)
	p := pd(c)
	reg := legacy(abi.CmdRegMR, &abi.RegMR{Response: respAddr, PDHandle: p, Start: 4096, Length: 4096, AccessFlags: 1}, nil, 12)
	for i := range 200 {
		c.fails("a registration of nothing", reg, syscall.EFAULT)
		c.fails("another one", reg, syscall.EFAULT)
		q := cq(c)
		c.must(legacy(abi.CmdDestroyCQ, &abi.DestroyCQ{Response: respAddr, CQHandle: q}, nil, 8))
		if i%10 == 0 {
			pd(other)
		}
		if i%50 == 0 {
			time.Sleep(2 * keepFor) // the loop has it again, most likely
		}
	}
	if n := s.keeping.Load(); n < 0 || n > 2 {
		t.Errorf("%d wait for a request", n)
	}
	c.dev.Close()
	pd(other)
}
