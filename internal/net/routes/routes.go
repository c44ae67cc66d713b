package routes

import (
	"net/netip"
	"syscall"
	"time"
)

// Kernel is the network of the daemon's own namespace.
type Kernel struct{}

// From returns the function From.
func (Kernel) From(from, to netip.Addr) (netip.Addr, error) { return From(from, to) }

// Reach returns the function Reach.
func (Kernel) Reach(from, to netip.Addr, timeout time.Duration) error {
	return Reach(from, to, timeout)
}

// None is a network without other hosts.
type None struct{}

// From returns ENETUNREACH.
func (None) From(_, _ netip.Addr) (netip.Addr, error) { return netip.Addr{}, syscall.ENETUNREACH }

// Reach returns ENETUNREACH.
func (None) Reach(_, _ netip.Addr, _ time.Duration) error { return syscall.ENETUNREACH }
