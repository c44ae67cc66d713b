package provision

import (
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/net/routes"
)

// A container decides how many addresses it has, but not how many sockets the daemon opens.
func TestBounded(t *testing.T) {
	var all []routes.Interface
	add := func(a string, count int) {
		addr := netip.MustParseAddr(a)
		for range count {
			all = append(all, routes.Interface{Addr: addr})
			addr = addr.Next()
		}
	}
	add("127.0.0.1", 100)
	add("fe80::1", 5)
	add("fd00::1", 100)
	add("10.0.0.1", 10)
	use, over := bounded(nil, usable(all))
	var outward, loopback int
	for _, i := range use {
		if i.Addr.IsLoopback() {
			loopback++
		} else {
			outward++
		}
	}
	if outward != mostOutward || loopback != mostLoopback || over != 210-mostOutward-mostLoopback {
		t.Errorf("%d outward, %d of loopback, %d left out", outward, loopback, over)
	}
	if use[0].Addr != netip.MustParseAddr("10.0.0.1") || use[10].Addr != netip.MustParseAddr("fd00::1") {
		t.Errorf("the order: %v", use)
	}
	if use, over := bounded(nil, use); len(use) != mostOutward+mostLoopback || over != 0 {
		t.Errorf("as many as there may be: %d, %d left out", len(use), over)
	}
	// An address that has a row keeps it, whatever addresses come before it.
	was := arrange(nil, use)
	add("10.0.0.11", 10)
	use, over = bounded(was, usable(all))
	if _, gone := differ(was, use); len(gone) > 0 || len(use) != mostOutward+mostLoopback || over != 220-mostOutward-mostLoopback {
		t.Errorf("with ten more: %d are used, %d left out, gone: %v", len(use), over, gone)
	}
}
