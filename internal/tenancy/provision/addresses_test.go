package provision

import (
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAddresses looks for addresses in a network namespace of its own, where one comes later.
func TestAddresses(t *testing.T) {
	runtime.LockOSThread() // and it ends with the test, so no other goroutine gets the namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("a network namespace: %v (the test needs root)", err)
	}
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	ip("link", "set", "lo", "up")
	var l addresses
	late := netip.MustParseAddr("127.9.8.7")
	if got := l.at(netip.MustParseAddr("127.0.0.1")); got != "lo" {
		t.Errorf("127.0.0.1 is at %q", got)
	}
	if got := l.at(late); got != "" {
		t.Errorf("%v is at %q", late, got)
	}
	ip("address", "add", late.String()+"/32", "dev", "lo")
	if got := l.at(late); got != "lo" {
		t.Errorf("%v is at %q", late, got)
	}
}
