package overlay

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
)

// DefaultTunnelPort is the UDP port that WireGuard usually has.
const DefaultTunnelPort = 51820

// TunnelAddr returns the address that the host with a public key has inside the tunnel. It follows from
// the key, so nobody has to hand it out, and nobody else can have it: fd56:: and 112 bits of the
// key's SHA-256.
func TunnelAddr(key [32]byte) netip.Addr {
	sum := sha256.Sum256(key[:])
	a := [16]byte{0xfd, 0x56}
	copy(a[2:], sum[:])
	return netip.AddrFrom16(a)
}

// admitKey takes in a host that has a member of an encrypted network. One without a key stays out:
// nothing reaches it there, and nothing comes from it.
func (m *Map) admitKey(h *Host) error {
	if h.Key == [32]byte{} {
		return nil
	}
	a := TunnelAddr(h.Key)
	switch o := m.behind[a]; {
	case o == nil:
		m.behind[a] = h
	case o != h:
		return fmt.Errorf("hosts %s and %s both have the public key of one: each needs its own", o.Name, h.Name)
	}
	return nil
}

// HostBehind returns the host that has an address inside the tunnel; nil: none that this host shares an
// encrypted network with.
func (m *Map) HostBehind(tunnel netip.Addr) *Host {
	if m == nil {
		return nil
	}
	return m.behind[tunnel]
}

// Encrypted returns the other hosts that this one shares an encrypted network with, and that have a key,
// by name.
func (m *Map) Encrypted() []*Host {
	if m == nil {
		return nil
	}
	var hosts []*Host
	for _, h := range m.behind {
		if !h.Self {
			hosts = append(hosts, h)
		}
	}
	slices.SortFunc(hosts, func(a, b *Host) int { return cmp.Compare(a.Name, b.Name) })
	return hosts
}
