package vswitch

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// TestSlowTap: the removal of an interface does not wait until its container may send again.
func TestSlowTap(t *testing.T) {
	s := New(Config{})
	defer s.Close()
	a := netip.MustParseAddr("10.1.0.1")
	p, err := s.Plug(PortConfig{NIC: "red/a", Network: "red/net", MTU: 1500, MAC: overlay.MACOf(a), Addrs: []netip.Addr{a}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}})
	if err != nil {
		t.Fatal(err)
	}
	p.SetRate(1, 0, 1) // a frame is days
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	container, file := os.NewFile(uintptr(fds[0]), "container"), os.NewFile(uintptr(fds[1]), "tap")
	defer container.Close()
	served := make(chan error, 1)
	go func() { served <- p.ServeTap(file) }()
	f := append(make([]byte, headerSize), ether(overlay.MACOf(a), overlay.MACOf(a), etherIPv4, packet("10.1.0.1", "10.1.0.2", protoUDP, make([]byte, 1000)))...)
	for range 2 { // the first may pass
		if _, err := container.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(time.Minute); p.SentFrames.Load() == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	p.Detach()
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it is served still")
	}
	if n := p.SentFrames.Load(); n != 1 {
		t.Errorf("%d frames were sent, want the one that may pass", n)
	}
	if spent := time.Duration(p.Time.Load()); spent == 0 || spent > longestFrame {
		t.Errorf("that took %v", spent)
	}
}
