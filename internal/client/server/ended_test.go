package server

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
)

// ownCookie is that of the namespace that the test is in.
func ownCookie(t *testing.T) uint64 {
	t.Helper()
	cookie, err := credentials.CookieAt("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

// noUsers waits until the listener has noticed that all programs are gone.
func noUsers(t *testing.T, d *listener) {
	t.Helper()
	eventually(t, "programs are still there", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.users) == 0
	})
}

// When a container ends, its remaining programs lose the NIC and do not get it again until a new container is there. Of
// two containers in one namespace the last one counts.
func TestContainerGone(t *testing.T) {
	s, enter, _ := exclusiveListener(t, 2*time.Second)
	n := s.listeners.list[1].NIC
	mine := ownCookie(t)
	for _, name := range []string{"one", "two"} {
		if err := s.Bind(n, Binding{Cookie: mine, Name: name, Note: name, Ends: true}); err != nil {
			t.Fatal(err)
		}
	}
	c, err := enter(protocol.KindProcess)
	if err != nil {
		t.Fatal(err)
	}
	unbind := func(name string) {
		t.Helper()
		if n := s.Unbind(func(_ *registry.NIC, b *Binding) bool { return b.Note == name }); n != 1 {
			t.Errorf("%s had %d bindings", name, n)
		}
	}
	unbind("one")
	if c, err := enter(protocol.KindProcess); err != nil {
		t.Errorf("one of two containers is gone: %v", err)
	} else {
		c.Close()
	}
	unbind("two")
	c.SetReadDeadline(time.Now().Add(time.Minute))
	var b [64]byte
	if _, _, err := c.ReadMessage(b[:]); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a program that is left over still has the NIC: %v", err)
	}
	if _, err := enter(protocol.KindProcess); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "it is not for what is left of two, which is gone") {
		t.Errorf("a program that is left over has the NIC again: %v", err)
	}
	noUsers(t, s.listeners.list[1]) // on a busy machine it may notice later than a workload waits
	elsewhere(t, func() {
		if c, err := enter(protocol.KindProcess); err != nil {
			t.Errorf("another workload: %v", err)
		} else {
			c.Close()
		}
	})
	noUsers(t, s.listeners.list[1])
	if err := s.Bind(n, Binding{Cookie: mine, Name: "three", Note: "three", Ends: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := enter(protocol.KindProcess); err != nil {
		t.Errorf("a container in the same namespace: %v", err)
	}
}

// A binding whose container ended without notice is detected when the next container comes.
func TestContainerForgotten(t *testing.T) {
	s, enter, _ := exclusiveListener(t, 100*time.Millisecond)
	n := s.listeners.list[1].NIC
	link := t.TempDir() + "/ns"
	var far uint64
	elsewhere(t, func() {
		cookie, path := here(t)
		f, err := os.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { f.Close() })
		far = cookie
		if err := os.Symlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), link); err != nil {
			t.Error(err)
		}
	})
	if err := s.Bind(n, Binding{Cookie: far, Path: link, Name: "far", Note: "far", Ends: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := enter(protocol.KindProcess); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "it is bound to far") {
		t.Errorf("a NIC that is bound elsewhere: %v", err)
	}
	if err := s.Bind(n, Binding{Cookie: 1 << 40, Name: "farther"}); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "NIC red/blue is bound to far, for ") {
		t.Errorf("bound twice: %v", err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if _, err := enter(protocol.KindProcess); err != nil {
		t.Errorf("after the container has gone: %v", err)
	}
}

// A path that leads to another namespace than the binding's says nothing about the workload: the process number may be
// reused.
func TestBindPathElsewhere(t *testing.T) {
	s, _, _ := exclusiveListener(t, 100*time.Millisecond)
	n := s.listeners.list[1].NIC
	const far = 1 << 40 // nobody's
	if err := s.Bind(n, Binding{Cookie: far, Path: "/proc/self/ns/net", Name: "far", Note: "far"}); err != nil {
		t.Fatal(err)
	}
	s.Bindings(func(b *Binding) {
		if b.inode != "" {
			t.Errorf("it lasts as long as %s", b.inode)
		}
	})
	if err := s.Bind(n, Binding{Cookie: ownCookie(t), Path: "/proc/self/ns/net", Name: "here", Note: "here"}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("bound twice: %v", err)
	}
}

// Of several bindings that end at once, one ends the programs.
func TestEndsAmongOthers(t *testing.T) {
	for _, ends := range []int{0, 1} {
		s, enter, _ := exclusiveListener(t, 100*time.Millisecond)
		n := s.listeners.list[1].NIC
		for i := range 2 {
			if err := s.Bind(n, Binding{Cookie: ownCookie(t), Name: "web", Note: i, Ends: i == ends}); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.Unbind(func(*registry.NIC, *Binding) bool { return true }); n != 2 {
			t.Errorf("%d bindings are gone, want 2", n)
		}
		if _, err := enter(protocol.KindProcess); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("binding %d ends programs, and what is left over has the NIC: %v", ends, err)
		}
	}
}

// TestAttach: a NIC is attached to a workload's namespace before its first program connects, and detached after the last one
// has disconnected. If attaching fails, the program gets the reason.
func TestAttach(t *testing.T) {
	var attached, times atomic.Int32
	fail := errors.New("no room")
	var why atomic.Pointer[error]
	attach := func(syscall.Conn) error {
		if e := why.Load(); e != nil {
			return *e
		}
		if attached.Add(1) != 1 {
			t.Error("attached twice")
		}
		times.Add(1)
		return nil
	}
	_, enter, refused := exclusiveListener(t, time.Minute, func(d *Listener) { d.Attach, d.Detach = attach, func() { attached.Add(-1) } })
	idle := func() {
		t.Helper()
		for end := time.Now().Add(time.Minute); attached.Load() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("still attached")
			}
		}
	}
	why.Store(&fail)
	if _, err := enter(protocol.KindProcess); !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "NIC red/blue: no room") {
		t.Errorf("it cannot be attached: %v", err)
	}
	if got := <-refused; got != "red/blue: no room" {
		t.Errorf("the event says %q", got)
	}
	why.Store(nil)
	var list []*protocol.Conn
	for range 3 {
		c, err := enter(protocol.KindProcess)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, c)
	}
	if attached.Load() != 1 || times.Load() != 1 {
		t.Errorf("three programs of a workload: attached %d times", times.Load())
	}
	for _, c := range list {
		c.Close()
	}
	idle()
	elsewhere(t, func() {
		c, err := enter(protocol.KindProcess)
		if err != nil {
			t.Errorf("another workload: %v", err)
			return
		}
		c.Close()
	})
	idle()
	if times.Load() != 2 {
		t.Errorf("attached %d times, want 2", times.Load())
	}
}
