package provision

import (
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/routes"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
	"vrdma.dev/vrdma/internal/testkit/leak"
)

// A testContainer is a network namespace with the address 10.9.0.1.
type testContainer struct {
	t  *testing.T
	do chan func()
	l  *net.UnixListener
}

func newContainer(t *testing.T) *testContainer {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	b := &testContainer{t: t, do: make(chan func()), l: l}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range b.do {
			f()
		}
	}()
	t.Cleanup(func() { close(b.do); l.Close() })
	if err := <-ready; err != nil {
		t.Fatalf("a network namespace: %v (the test needs root)", err)
	}
	for _, line := range []string{"link set lo up", "link add e0 type veth peer name e1", "address add 10.9.0.1/24 dev e0", "link set e0 up", "link set e1 up"} {
		b.ip(line)
	}
	return b
}

// inside runs f there.
func (b *testContainer) inside(f func()) {
	done := make(chan struct{})
	b.do <- func() { f(); close(done) }
	<-done
}

// ip runs ip there.
func (b *testContainer) ip(line string) {
	b.t.Helper()
	b.inside(func() {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			b.t.Errorf("ip %s: %v: %s", line, err, out)
		}
	})
}

// conn is a connection whose other end was made there; end closes both.
func (b *testContainer) conn() (_ *net.UnixConn, end func()) {
	b.t.Helper()
	var c net.Conn
	var err error
	b.inside(func() { c, err = net.Dial("unix", b.l.Addr().String()) })
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := b.l.AcceptUnix()
	if err != nil {
		b.t.Fatal(err)
	}
	return s, func() { s.Close(); c.Close() }
}

// until waits until a condition is true.
func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// namespaceNIC is a NIC with way namespace.
func namespaceNIC(t *testing.T) (*Provisioner, *hostedNIC) {
	t.Helper()
	r, _ := newTest(t)
	r.namespaces.pace.Set(0) // short, for this test
	a, n, c := objects("red", "web", "10.1.0.1")
	n.Spec, c.Spec.Addresses = tenant.NetworkSpec{Way: tenant.WayNamespace}, nil
	if err := r.Put(a, n, c); err != nil {
		t.Fatal(err)
	}
	return r, r.find(c.Key())
}

// has reports whether a NIC has an address.
func (s *hostedNIC) has(a string) bool {
	for _, g := range s.nic.Device.Face().GIDs {
		if g.GID.Addr() == netip.MustParseAddr(a) {
			return true
		}
	}
	return false
}

// A NIC follows its container's addresses again and again, and leaves nothing behind.
func TestFollow(t *testing.T) {
	r, s := namespaceNIC(t)
	b := newContainer(t)
	once := func(changes int) {
		c, end := b.conn()
		defer end()
		if err := s.namespace.attach(c); err != nil {
			t.Fatal(err)
		}
		if !s.has("10.9.0.1") {
			t.Errorf("the NIC has %v", s.nic.Device.Face().GIDs)
		}
		for range changes {
			b.ip("address add 10.9.0.2/24 dev e0")
			until(t, "the new address", func() bool { return s.has("10.9.0.2") })
			b.ip("address del 10.9.0.2/24 dev e0")
			until(t, "it has gone", func() bool { return !s.has("10.9.0.2") && s.has("10.9.0.1") })
		}
		b.ip("address add 10.9.0.2/24 dev e0") // while it is removed
		s.namespace.detach()
		b.ip("address del 10.9.0.2/24 dev e0")
		if len(s.nic.Device.Face().GIDs) != 0 {
			t.Errorf("detached, it has %v", s.nic.Device.Face().GIDs)
		}
		until(t, "the end", func() bool { return s.namespace.last.over(0) })
	}
	once(1)
	fds, routines := leak.Descriptors(t), runtime.NumGoroutine()
	for range 5 {
		once(1)
	}
	until(t, "nothing is left", func() bool { return leak.Descriptors(t) <= fds && runtime.NumGoroutine() <= routines })
	if len(r.namespaces.of) != 0 {
		t.Errorf("namespaces that are left: %v", r.namespaces.of)
	}
}

// An address whose port is taken is tried again.
func TestFollowRetries(t *testing.T) {
	_, s := namespaceNIC(t)
	b := newContainer(t)
	c, end := b.conn()
	defer end()
	if err := s.namespace.attach(c); err != nil {
		t.Fatal(err)
	}
	defer s.namespace.detach()
	var fd int
	b.inside(func() {
		var err error
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Error(err)
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_FREEBIND, 1); err != nil {
			t.Error(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{10, 9, 0, 3}, Port: 4791}); err != nil {
			t.Error(err)
		}
	})
	b.ip("address add 10.9.0.3/24 dev e0")
	b.ip("address add 10.9.0.4/24 dev e0")
	until(t, "the address whose port is free", func() bool { return s.has("10.9.0.4") })
	if s.has("10.9.0.3") {
		t.Error("the NIC has an address whose port somebody else has")
	}
	unix.Close(fd)
	until(t, "the address whose port is free now", func() bool { return s.has("10.9.0.3") })
}

// TestDetachDuringLook: an inspection of a namespace that blocks does not delay the removal of the NIC, and ends with it.
func TestDetachDuringLook(t *testing.T) {
	_, s := namespaceNIC(t)
	b := newContainer(t)
	c, end := b.conn()
	defer end()
	st, err := s.namespace.open(c)
	if err != nil {
		t.Fatal(err)
	}
	st.there.Close()
	looks, proceed := make(chan struct{}), make(chan struct{})
	st.there = routes.NewElsewhere(-1, -1, -1, func() (int, error) {
		close(looks)
		<-proceed
		return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	})
	t0 := s.namespace
	t0.now, t0.last, t0.rows = st, st, []row{}
	go t0.follow(st, 0)
	b.ip("address add 10.9.0.2/24 dev e0")
	<-looks
	s.namespace.detach()
	if st.over(0) {
		t.Error("what a look uses is closed")
	}
	close(proceed)
	until(t, "the end", func() bool { return st.over(0) })
	if len(s.nic.Device.Face().GIDs) != 0 {
		t.Errorf("detached, it has %v", s.nic.Device.Face().GIDs)
	}
	again, end := b.conn()
	defer end()
	if err := s.namespace.attach(again); err != nil {
		t.Fatal(err)
	}
	if !s.has("10.9.0.1") || !s.has("10.9.0.2") {
		t.Errorf("the next has %v", s.nic.Device.Face().GIDs)
	}
	s.namespace.detach()
}
