package roce

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// namespace is an anonymous network namespace: it ends with its last user, at the latest with the test process.
type namespace struct {
	t    testing.TB
	file *os.File
}

// newNamespace creates a namespace with its loopback interface up. Without the right to do so, the test is skipped.
func newNamespace(t testing.TB) *namespace {
	t.Helper()
	n := &namespace{t: t}
	var err error
	onThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			n.file, err = os.Open("/proc/thread-self/ns/net")
		}
	})
	if err != nil {
		t.Skipf("no network namespace: %v; run as root", err)
	}
	t.Cleanup(func() { n.file.Close() })
	n.ip("link", "set", "lo", "up")
	return n
}

// onThread runs f on a new thread, which ends with it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread must not be reused
		defer close(done)
		f()
	}()
	<-done
}

// do runs f in the namespace.
func (n *namespace) do(f func()) {
	n.t.Helper()
	var err error
	onThread(func() {
		if err = unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err == nil {
			f()
		}
	})
	if err != nil {
		n.t.Fatalf("enter the network namespace: %v", err)
	}
}

// ip runs ip(8) in the namespace.
func (n *namespace) ip(args ...string) {
	n.t.Helper()
	var out []byte
	var err error
	n.do(func() { out, err = exec.Command("ip", args...).CombinedOutput() })
	if err != nil {
		n.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// The addresses of the two hosts of a veth pair.
var (
	veth4 = [2]netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("10.99.0.2")}
	veth6 = [2]netip.Addr{netip.MustParseAddr("fd00:99::1"), netip.MustParseAddr("fd00:99::2")}
	vethL = [2]netip.Addr{netip.MustParseAddr("fe80::99:1%veth0"), netip.MustParseAddr("fe80::99:2%veth0")}
)

// vethPair creates two connected namespaces.
func vethPair(t testing.TB, mtu int) [2]*namespace {
	t.Helper()
	n := [2]*namespace{newNamespace(t), newNamespace(t)}
	peer := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n[1].file.Fd())
	n[0].ip("link", "add", "veth0", "type", "veth", "peer", "name", "veth0", "netns", peer)
	for i, ns := range n {
		ns.ip("link", "set", "veth0", "mtu", fmt.Sprint(mtu))
		ns.ip("link", "set", "veth0", "addrgenmode", "none")
		ns.ip("address", "add", veth4[i].String()+"/24", "dev", "veth0")
		ns.ip("link", "set", "veth0", "up")
		ns.ip("address", "add", veth6[i].String()+"/64", "dev", "veth0", "nodad")
		ns.ip("address", "add", vethL[i].WithZone("").String()+"/64", "dev", "veth0", "nodad")
	}
	return n
}

// listen opens the sockets in the namespace.
func (n *namespace) listen(o UDPOptions, addrs ...netip.Addr) (u *UDP, err error) {
	n.t.Helper()
	n.do(func() { u, err = ListenUDP(o, addrs...) })
	return u, err
}

func (n *namespace) mustListen(o UDPOptions, addrs ...netip.Addr) *UDP {
	n.t.Helper()
	u, err := n.listen(o, addrs...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { u.Close() })
	return u
}
