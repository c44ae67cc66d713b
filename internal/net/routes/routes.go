package routes

import (
	"net/netip"
	"syscall"
	"time"
)

// Kernel is the host's own network.
type Kernel struct{}

// From returns the function From.
func (Kernel) From(from, to netip.Addr) (netip.Addr, error) { return From(from, to) }

// Reach returns the function Reach.
func (Kernel) Reach(from, to netip.Addr, timeout time.Duration) error {
	return Reach(from, to, timeout)
}

// None is a network without other hosts.
type None struct{}

// From knows no way.
func (None) From(_, _ netip.Addr) (netip.Addr, error) { return netip.Addr{}, syscall.ENETUNREACH }

// Reach reaches nobody.
func (None) Reach(_, _ netip.Addr, _ time.Duration) error { return syscall.ENETUNREACH }
