package protocol

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/testkit/leak"
)

// detached returns a pair with one end detached. before is called with the other end first.
func detached(t *testing.T, before func(client *Conn)) (client, c *Conn) {
	t.Helper()
	client, c = pair(t)
	if before != nil {
		before(client)
	}
	if _, err := c.Detach(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	return client, c
}

func TestTryRead(t *testing.T) {
	a, b := detached(t, nil)
	buf := make([]byte, 16)
	if _, err := b.TryRead(buf); err != syscall.EAGAIN {
		t.Errorf("nothing was sent: %v, want EAGAIN", err)
	}
	for range 3 {
		for _, m := range []string{"one", "the other"} {
			if err := a.WriteMessage([]byte(m)); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range []string{"one", "the other"} {
			if n, err := b.TryRead(buf); err != nil || string(buf[:n]) != m {
				t.Errorf("read %q, %v, want %q", buf[:n], err, m)
			}
		}
	}
	if err := a.WriteMessage(make([]byte, 17)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.TryRead(buf); !errors.Is(err, ErrMalformed) {
		t.Errorf("a message longer than the buffer: %v, want ErrMalformed", err)
	}
	a.Close()
	if _, err := b.TryRead(buf); err != io.EOF {
		t.Errorf("a closed peer: %v, want EOF", err)
	}
}

// A message with descriptors is not received, whenever it was sent and however many it has. A receiver would have to
// close the descriptors, which can block for long.
func TestTryReadDescriptors(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	send := func(c *Conn, m string, n int) (err error) {
		fds := make([]int, n)
		for i := range fds {
			fds[i] = int(null.Fd())
		}
		raw, rerr := c.SyscallConn()
		if rerr != nil {
			t.Fatal(rerr)
		}
		raw.Control(func(fd uintptr) { err = unix.Sendmsg(int(fd), []byte(m), unix.UnixRights(fds...), nil, 0) })
		return err
	}
	for _, n := range []int{1, MaxFDs, 253} {
		for _, m := range []string{"with descriptors", ""} {
			early := func(c *Conn) {
				if err := c.WriteMessage([]byte("first")); err != nil {
					t.Fatal(err)
				}
				if err := send(c, m, n); err != nil {
					t.Fatal(err)
				}
			}
			_, b := detached(t, early)
			files := leak.Descriptors(t)
			buf := make([]byte, 16)
			if n, err := b.TryRead(buf); err != nil || string(buf[:n]) != "first" {
				t.Errorf("read %q, %v, want the first", buf[:n], err)
			}
			if _, err := b.TryRead(buf); !errors.Is(err, ErrMalformed) {
				t.Errorf("%d descriptors with %q, sent before: %v, want ErrMalformed", n, m, err)
			}
			if with, errno := b.box.peek(b.raw); !with || errno != 0 {
				t.Errorf("it was taken: %v", errno)
			}
			if got := leak.Descriptors(t); got != files {
				t.Errorf("%d descriptors are open, want %d", got, files)
			}

			a, b := detached(t, nil)
			if _, err := b.TryRead(buf); err != syscall.EAGAIN {
				t.Errorf("nothing was sent: %v, want EAGAIN", err)
			}
			switch err := send(a, m, n); {
			case err == syscall.EPERM && b.refuses: // the kernel can refuse them
			case err != nil:
				t.Errorf("sending descriptors: %v", err)
			default:
				if _, err := b.TryRead(buf); !errors.Is(err, ErrMalformed) {
					t.Errorf("%d descriptors with %q: %v, want ErrMalformed", n, m, err)
				}
			}
		}
	}
}
