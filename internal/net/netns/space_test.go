package netns

import (
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/routes"
	"vrdma.dev/vrdma/internal/testkit/leak"
)

// away returns a connection whose peer socket is in a new network namespace that has the address 10.9.0.1.
func away(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			for _, line := range []string{"link set lo up", "link add e0 type veth peer name e1", "address add 10.9.0.1/24 dev e0",
				"link set e0 up", "link set e1 up", "route add unreachable 10.10.0.0/16"} {
				if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
					t.Logf("ip %s: %s", line, out)
					return err
				}
			}
			c, err := net.Dial("unix", path)
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		}()
	}()
	if err := <-done; err != nil {
		t.Fatalf("a network namespace: %v (the test needs root, and ip)", err)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestSpace checks that sockets are created in the namespace of a connection's peer.
func TestSpace(t *testing.T) {
	s, err := Of(away(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fds, err := s.Open([]Kind{Netlink, UDP4, UDP6})
	if err != nil {
		t.Fatal(err)
	}
	r := routes.NewElsewhere(fds[0], fds[1], fds[2], func() (int, error) {
		more, err := s.Open([]Kind{Netlink})
		if err != nil {
			return -1, err
		}
		return more[0], nil
	})
	defer r.Close()
	list, err := r.Addresses()
	if err != nil {
		t.Fatal(err)
	}
	at := func(a string) int {
		return slices.IndexFunc(list, func(i routes.Interface) bool { return i.Addr == netip.MustParseAddr(a) })
	}
	if i := at("10.9.0.1"); i < 0 || list[i].Name != "e0" || list[i].MTU != 1500 || at("127.0.0.1") < 0 {
		t.Errorf("the addresses there are %+v", list)
	}
	any4 := netip.IPv4Unspecified()
	if from, err := r.From(any4, netip.MustParseAddr("10.9.0.7")); err != nil || from != netip.MustParseAddr("10.9.0.1") {
		t.Errorf("to a neighbour: from %v, %v", from, err)
	}
	if err := r.Reach(netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.7"), 50*time.Millisecond); err != syscall.ETIMEDOUT {
		t.Errorf("a neighbour that is not there: %v", err)
	}
	for _, to := range []string{"10.10.0.1", "192.0.2.1", "2001:db8::1"} {
		a := netip.MustParseAddr(to)
		from := any4
		if a.Is6() {
			from = netip.IPv6Unspecified()
		}
		if from, err := r.From(from, a); err == nil {
			t.Errorf("to %s: from %v", to, from)
		}
	}
	r.Close()
	if _, err := r.From(any4, netip.MustParseAddr("10.9.0.7")); err == nil {
		t.Error("a closed one answers")
	}
}

// TestMaker checks that a maker hands out sockets, creates more when necessary, and closes unused ones.
func TestMaker(t *testing.T) {
	s, err := Of(away(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before := leak.Descriptors(t)
	m := NewMaker(s)
	if err := m.Reserve(2, 1); err != nil {
		t.Fatal(err)
	}
	var fds []int
	for i := range 5 {
		family := unix.AF_INET
		if i == 1 {
			family = unix.AF_INET6
		}
		fd, err := m.Socket(family)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || got != family {
			t.Errorf("a socket of family %d, want %d: %v", got, family, err)
		}
		if cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil || cookie != s.Cookie() {
			t.Errorf("a socket in namespace %d, want %d: %v", cookie, s.Cookie(), err)
		}
		fds = append(fds, fd)
	}
	m.Close()
	closeAll(fds)
	if after := leak.Descriptors(t); after != before {
		t.Errorf("%d descriptors, before there were %d", after, before)
	}
}

// FuzzKinds checks that the helper's argument is decoded correctly and everything else is rejected.
func FuzzKinds(f *testing.F) {
	f.Add("n46")
	f.Add("4x")
	f.Fuzz(func(t *testing.T, what string) {
		kinds, err := parse(what)
		if err == nil && spell(kinds) != what {
			t.Errorf("%q is %v, which is %q", what, kinds, spell(kinds))
		}
		if err == nil && len(kinds) > most {
			t.Errorf("%d sockets", len(kinds))
		}
	})
}

// TestWatch checks that a watch reports changes until it is closed.
func TestWatch(t *testing.T) {
	s, err := Of(away(t))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fds, err := s.Open([]Kind{Netlink})
	if err != nil {
		t.Fatal(err)
	}
	w, err := routes.NewWatch(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"add", "del", "add"} {
		var out []byte
		if herr := s.inside(func() {
			out, err = exec.Command("ip", "address", what, "10.9.0.2/24", "dev", "e0").CombinedOutput()
		}); herr != nil || err != nil {
			t.Fatalf("ip address %s: %v %v: %s", what, herr, err, out)
		}
		if err := w.Wait(0); err != nil {
			t.Fatal(err)
		}
		if err := w.Pause(time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Wait(time.Millisecond); err != nil { // nothing has happened
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		for {
			if err := w.Wait(0); err != nil {
				done <- err
				return
			}
		}
	}()
	w.Close()
	<-done
}

// TestMakerAhead checks that callers do not wait for a helper, because sockets are created in advance.
func TestMakerAhead(t *testing.T) {
	before := leak.Descriptors(t)
	asked, may := make(chan int, 10), make(chan struct{}, 10)
	m := newMaker(func(kinds []Kind) ([]int, error) {
		asked <- len(kinds)
		<-may // a slow helper
		return makeSockets(kinds)
	}, func() bool { return true })
	may <- struct{}{}
	if err := m.Reserve(Ahead, 0); err != nil {
		t.Fatal(err)
	}
	<-asked
	var fds []int
	take := func() {
		t.Helper()
		fd, err := m.Socket(unix.AF_INET)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	for range Ahead { // the test has not let the helper continue
		take()
	}
	if n := <-asked; n < Ahead {
		t.Errorf("%d sockets were asked for", n)
	}
	may <- struct{}{}
	m.filling.Wait()
	for range Ahead {
		take()
	}
	select {
	case n := <-asked:
		t.Errorf("%d sockets were asked for, and there are enough", n)
	default:
	}
	take() // now too few are
	<-asked
	may <- struct{}{}
	m.Close()
	if fd, err := m.Socket(unix.AF_INET); err == nil {
		t.Errorf("a closed one made socket %d", fd)
	}
	closeAll(fds)
	if after := leak.Descriptors(t); after != before {
		t.Errorf("%d descriptors, before there were %d", after, before)
	}
}

// TestMakerDry checks that a caller waits for the helper if the stock is empty, that the batch grows, and that the other family
// does not wait.
func TestMakerDry(t *testing.T) {
	before := leak.Descriptors(t)
	asked, may := make(chan int, 10), make(chan struct{}, 10)
	m := newMaker(func(kinds []Kind) ([]int, error) {
		if kinds[0] == UDP4 {
			asked <- len(kinds)
			<-may
		}
		return makeSockets(kinds)
	}, func() bool { return true })
	var fds []int
	take := func(count, family int) {
		t.Helper()
		for range count {
			fd, err := m.Socket(family)
			if err != nil {
				t.Fatal(err)
			}
			fds = append(fds, fd)
		}
	}
	ask := func(want int) {
		t.Helper()
		if n := <-asked; n != want {
			t.Errorf("%d sockets were asked for, want %d", n, want)
		}
	}
	may <- struct{}{}
	take(1, unix.AF_INET)
	ask(firstBatch)
	take(firstBatch-1, unix.AF_INET)
	ask(2 * firstBatch)
	take(3*firstBatch, unix.AF_INET6) // the test has not let the helper continue
	may <- struct{}{}
	take(1+2*firstBatch-Ahead, unix.AF_INET)
	ask(4 * firstBatch)
	may <- struct{}{}
	m.Close()
	closeAll(fds)
	if after := leak.Descriptors(t); after != before {
		t.Errorf("%d descriptors, before there were %d", after, before)
	}
}
