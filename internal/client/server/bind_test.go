package server

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
)

// here is the cookie of this thread's network namespace, and a path that leads there.
func here(t *testing.T) (cookie uint64, path string) {
	t.Helper()
	path = fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
	cookie, err := credentials.CookieAt(path)
	if err != nil {
		t.Error(err)
	}
	return cookie, path
}

// A bound NIC belongs to that workload alone, until it is unbound or the workload ends.
func TestBind(t *testing.T) {
	s, enter, refused := exclusiveListener(t, 100*time.Millisecond)
	n := s.listeners.list[1].NIC
	own, _ := here(t)
	workload := exec.Command("sleep", "1000")
	elsewhere(t, func() {
		cookie, _ := here(t)
		if err := workload.Start(); err != nil {
			t.Error(err)
			return
		}
		path := fmt.Sprintf("/proc/%d/ns/net", workload.Process.Pid)
		for range 2 {
			if err := s.Bind(n, Binding{Cookie: cookie, Path: path, Name: "container web"}); err != nil {
				t.Errorf("bind: %v", err)
			}
		}
		if c, err := enter(protocol.KindProcess); err != nil {
			t.Errorf("the workload itself: %v", err)
		} else {
			c.Close()
		}
		done := make(chan struct{})
		go func() { // in another namespace, the test's own
			defer close(done)
			if _, err := enter(protocol.KindProcess); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "it is bound to container web") {
				t.Errorf("another workload: %v, want EBUSY and who has it", err)
			}
			if err := s.Bind(n, Binding{Cookie: own, Name: "container db"}); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "bound to container web, for ") {
				t.Errorf("bind by another: %v, want EBUSY and who has it", err)
			}
		}()
		<-done
		if got := s.containers()[n]; got != "web" {
			t.Errorf("the NIC is in %q, want web", got)
		}
		<-refused
	})
	if workload.Process == nil {
		return
	}
	workload.Process.Kill()
	workload.Wait()
	noUsers(t, s.listeners.list[1])
	if err := s.Bind(n, Binding{Cookie: own, Name: "container db"}); err != nil {
		t.Errorf("after the workload has ended: %v", err)
	}
	if _, err := enter(protocol.KindProcess); err != nil {
		t.Errorf("the next workload: %v", err)
	}
	if count := s.Unbind(func(of *registry.NIC, b *Binding) bool { return of == n && b.Name == "container db" }); count != 1 {
		t.Errorf("%d were unbound, want 1", count)
	}
	s.Bindings(func(b *Binding) { t.Errorf("left: %v", b) })
	elsewhere(t, func() {
		cookie, path := here(t)
		if err := s.Bind(n, Binding{Cookie: cookie, Path: path, Name: "container web"}); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "in use by holder (pid ") {
			t.Errorf("bind while programs of another workload use it: %v, want EBUSY and who", err)
		}
	})
	if err := s.Bind(s.listeners.list[0].NIC, Binding{Cookie: own}); err == nil || !strings.Contains(err.Error(), "for everybody") {
		t.Errorf("bind of a NIC that is for all: %v", err)
	}
}

// Workloads have names; the newest are kept.
func TestNames(t *testing.T) {
	var s Server
	for i := range uint64(mostNames + 10) {
		s.Name(i+1, fmt.Sprintf("n%d", i+1))
	}
	s.Name(mostNames, "again")
	s.Name(0, "nobody")
	if s.names.get(1) != "" || s.names.get(mostNames) != "again" || s.names.get(mostNames+10) == "" || len(s.names.of) != mostNames || len(s.names.order) != mostNames {
		t.Errorf("%d names, %d in order: %q, %q", len(s.names.of), len(s.names.order), s.names.get(1), s.names.get(mostNames))
	}
}

func TestCookieAt(t *testing.T) {
	if _, err := credentials.CookieAt(os.DevNull); err == nil || !strings.Contains(err.Error(), "is no namespace") {
		t.Errorf("a file: %v", err)
	}
	if _, err := credentials.CookieAt("/nonexistent"); err == nil {
		t.Error("no file")
	}
}
