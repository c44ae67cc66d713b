package protocol

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// pair is two ends of a connection.
func pair(t *testing.T) (*Conn, *Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = NewConn(c.(*net.UnixConn))
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

func TestDescriptors(t *testing.T) {
	a, b := pair(t)
	f, err := os.CreateTemp(t.TempDir(), "passed")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	if err := a.WriteMessage([]byte("m"), int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	n, fds, err := b.ReadMessage(make([]byte, 16))
	if err != nil || n != 1 || len(fds) != 1 {
		t.Fatalf("ReadMessage = %d bytes, %d descriptors, %v; want 1, 1, nil", n, len(fds), err)
	}
	got := os.NewFile(uintptr(fds[0]), "got")
	defer got.Close()
	text := make([]byte, 5)
	if _, err := got.ReadAt(text, 0); err != nil || string(text) != "hello" {
		t.Errorf("the file that came reads %q, %v", text, err)
	}
}

func TestReadMessageErrors(t *testing.T) {
	a, b := pair(t)
	if err := a.WriteMessage(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.ReadMessage(make([]byte, 10)); !errors.Is(err, ErrMalformed) {
		t.Errorf("a message longer than the buffer: %v, want ErrMalformed", err)
	}
	if err := a.WriteMessage(make([]byte, MaxMessage+1)); !errors.Is(err, ErrTooLong) {
		t.Errorf("writing too much: %v, want ErrTooLong", err)
	}
	a.Close()
	if _, _, err := b.ReadMessage(make([]byte, 10)); !errors.Is(err, io.EOF) {
		t.Errorf("a closed peer: %v, want EOF", err)
	}
}

func TestJSON(t *testing.T) {
	for _, n := range []int{0, 1, pieceSize - 2, pieceSize, 3*pieceSize + 17} {
		a, b := pair(t)
		want := strings.Repeat("x", n)
		done := make(chan error, 1)
		go func() { done <- a.SendJSON(want) }()
		var got string
		if err := b.ReceiveJSON(&got); err != nil || got != want {
			t.Errorf("%d bytes: %v, %d came", n, err, len(got))
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	a, b := pair(t)
	if err := a.WriteMessage([]byte("?{}")); err != nil {
		t.Fatal(err)
	}
	if err := b.ReceiveJSON(new(Status)); !errors.Is(err, ErrMalformed) {
		t.Errorf("an unknown mark: %v, want ErrMalformed", err)
	}
}

// serve answers one greeting on a new socket with w and fds.
func serve(t *testing.T, w Welcome, fds ...int) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		u, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer u.Close()
		c := NewConn(u)
		buf := make([]byte, MaxMessage)
		n, _, err := c.ReadMessage(buf)
		if err != nil {
			return
		}
		if _, err := ParseHello(buf[:n]); err != nil {
			return
		}
		c.WriteMessage(w.Append(nil), fds...)
	}()
	return socket
}

func TestDial(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := Dial(serve(t, Welcome{Magic: Magic, NumFDs: 1, DaemonPid: 7}, int(f.Fd())), Hello{Kind: KindProcess})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Welcome.DaemonPid != 7 || len(s.Files) != 1 {
		t.Errorf("pid %d, %d files; want 7, 1", s.Welcome.DaemonPid, len(s.Files))
	}

	_, err = Dial(serve(t, Welcome{Magic: Magic, Error: int32(syscall.EPROTO), Text: "old"}), Hello{})
	var r *Refusal
	if !errors.As(err, &r) || !errors.Is(err, syscall.EPROTO) || r.Text != "old" {
		t.Errorf("a refusal: %v", err)
	}
	if _, err = Dial(serve(t, Welcome{Magic: Magic, NumFDs: 2}), Hello{}); !errors.Is(err, ErrMalformed) {
		t.Errorf("descriptors missing: %v, want ErrMalformed", err)
	}
	if _, err = Dial(filepath.Join(t.TempDir(), "none"), Hello{}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no socket: %v, want ENOENT", err)
	}
}

func TestReplyBounds(t *testing.T) {
	var r ReplyBuilder
	r.Reset(make([]byte, 0, MaxMessage))
	r.Store(1, make([]byte, MaxMessage))
	if _, err := r.Finish(0); !errors.Is(err, ErrTooLong) {
		t.Errorf("a store of a whole message: %v, want ErrTooLong", err)
	}
	r.Reset(make([]byte, 0, MaxMessage))
	for range MaxFDs + 1 {
		r.FD(FD{})
	}
	if _, err := r.Finish(0); !errors.Is(err, ErrTooLong) {
		t.Errorf("too many descriptors: %v, want ErrTooLong", err)
	}
}

func TestReplyAllocations(t *testing.T) {
	var r ReplyBuilder
	buf, data := make([]byte, 0, MaxMessage), make([]byte, 64)
	r.Reset(buf)
	r.FD(FD{})
	got := testing.AllocsPerRun(100, func() {
		r.Reset(buf)
		r.Store(1, data)
		r.FD(FD{Address: 2})
		if _, err := r.Finish(0); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Errorf("a reply allocates %v times, want 0", got)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add((&Request{Op: OpCommand, Extents: []Extent{{1, 2, 1, 3}}, Command: []byte{1, 2, 3, 4}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Request
		if err := r.Parse(b); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Errorf("%v is not ErrMalformed", err)
			}
			return
		}
		again := r.Append(nil)
		copy(again[12:16], b[12:16]) // reserved
		if !bytes.Equal(again, b) {
			t.Errorf("round trip: %x, want %x", again, b)
		}
	})
}

func FuzzReply(f *testing.F) {
	f.Add(sampleReply())
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again Reply
		if err := r.Parse(b); err != nil {
			return
		}
		var rb ReplyBuilder
		rb.Reset(nil)
		for _, s := range r.Stores {
			rb.Store(s.Address, s.Data)
		}
		for _, fd := range r.FDs {
			rb.FD(fd)
		}
		for _, a := range r.Ahead {
			rb.Ahead(a)
		}
		out, err := rb.Finish(r.Error)
		if err != nil {
			return // longer than a packet
		}
		if err := again.Parse(out); err != nil {
			t.Fatal(err)
		}
		if again.Error != r.Error || len(again.Stores) != len(r.Stores) || len(again.FDs) != len(r.FDs) {
			t.Errorf("round trip: %+v, want %+v", again, r)
		}
		for i, s := range r.Stores {
			if g := again.Stores[i]; g.Address != s.Address || !bytes.Equal(g.Data, s.Data) {
				t.Errorf("store %d: %+v, want %+v", i, g, s)
			}
		}
		if len(again.Ahead) != len(r.Ahead) {
			t.Fatalf("%d answers ahead, want %d", len(again.Ahead), len(r.Ahead))
		}
		for i, a := range r.Ahead {
			g := again.Ahead[i]
			if !bytes.Equal(g.Data, a.Data) {
				t.Errorf("answer %d: %q, want %q", i, g.Data, a.Data)
			}
			if g.Command != a.Command || g.ID != a.ID || g.Key != a.Key || g.Revision != a.Revision {
				t.Errorf("answer %d: %+v, want %+v", i, g, a)
			}
		}
	})
}

func FuzzHello(f *testing.F) {
	f.Add((&Hello{Magic: Magic, Protocol: 1, Program: "p"}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHello(b)
		if err != nil {
			return
		}
		again, err := ParseHello(h.Append(nil))
		if len(h.VNIC) < 32 && len(h.Label) < 32 && len(h.Program) < 64 && (err != nil || again != h) {
			t.Errorf("round trip: %+v, %v; want %+v", again, err, h)
		}
	})
}

func FuzzWelcome(f *testing.F) {
	f.Add((&Welcome{Magic: Magic, Text: "t"}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := ParseWelcome(b)
		if err != nil {
			return
		}
		again, err := ParseWelcome(w.Append(nil))
		if len(w.Text) < 192 && (err != nil || again != w) {
			t.Errorf("round trip: %+v, %v; want %+v", again, err, w)
		}
	})
}
