package cable

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name. It ends with its last user, at the latest with the test process.
type Namespace struct {
	file *os.File
}

// NewNamespace makes a namespace with its loopback interface up.
func NewNamespace(t testing.TB) *Namespace {
	t.Helper()
	n := &Namespace{}
	var err error
	onThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			n.file, err = os.Open("/proc/thread-self/ns/net")
		}
	})
	if err != nil {
		t.Fatalf("no network namespace: %v; run this test as root", err)
	}
	t.Cleanup(func() { n.file.Close() })
	n.IP(t, "link", "set", "lo", "up")
	return n
}

// NamespaceAt returns the namespace of a path.
func NamespaceAt(t testing.TB, path string) *Namespace {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return &Namespace{file}
}

// onThread runs f on a thread of its own, which ends with it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not be reused
		defer close(done)
		f()
	}()
	<-done
}

// Path names the namespace, for nsenter and ip.
func (n *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd())
}

// Do runs f in the namespace.
func (n *Namespace) Do(t testing.TB, f func()) {
	t.Helper()
	var err error
	onThread(func() {
		if err = unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err == nil {
			f()
		}
	})
	if err != nil {
		t.Fatalf("enter the network namespace: %v", err)
	}
}

// IP runs ip(8) in the namespace.
func (n *Namespace) IP(t testing.TB, args ...string) {
	t.Helper()
	var out []byte
	var err error
	n.Do(t, func() { out, err = exec.Command("ip", args...).CombinedOutput() })
	if err != nil {
		t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// LinkAddress returns an interface's link address.
func (n *Namespace) LinkAddress(t testing.TB, dev string) string {
	t.Helper()
	var i *net.Interface
	var err error
	n.Do(t, func() { i, err = net.InterfaceByName(dev) })
	if err != nil {
		t.Fatal(err)
	}
	return i.HardwareAddr.String()
}

// Address gives an interface an address that is usable at once. Duplicate address detection would take a second or two
// for IPv6.
func (n *Namespace) Address(t testing.TB, dev, prefix string) {
	t.Helper()
	n.IP(t, "address", "add", prefix, "dev", dev, "nodad")
}

// Veth connects two namespaces directly, by an interface of this name in both.
func Veth(t testing.TB, a, b *Namespace, name string, mtu int) {
	t.Helper()
	a.IP(t, "link", "add", name, "type", "veth", "peer", "name", name, "netns", b.Path())
	for _, n := range []*Namespace{a, b} {
		n.up(t, name, mtu)
	}
}

// up starts an interface without generated addresses.
func (n *Namespace) up(t testing.TB, name string, mtu int) {
	t.Helper()
	n.IP(t, "link", "set", name, "addrgenmode", "none")
	n.IP(t, "link", "set", name, "mtu", fmt.Sprint(mtu), "up")
}
