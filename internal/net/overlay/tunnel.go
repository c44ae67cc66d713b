package overlay

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
)

// DefaultTunnelPort is the usual UDP port of WireGuard.
const DefaultTunnelPort = 51820

// TunnelAddr returns the address inside the tunnel of the host with a public key. It is derived from the key, so it
// needs no allocation and is unique: fd56:: and 112 bits of the key's SHA-256.
func TunnelAddr(key [32]byte) netip.Addr {
	sum := sha256.Sum256(key[:])
	a := [16]byte{0xfd, 0x56}
	copy(a[2:], sum[:])
	return netip.AddrFrom16(a)
}

// admitKey adds a host that has a member of an encrypted network. A host without a key is not added, so it can neither
// receive nor send there.
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

// HostBehind returns the host that has an address inside the tunnel; nil if this host shares no encrypted network with it.
func (m *Map) HostBehind(tunnel netip.Addr) *Host {
	if m == nil {
		return nil
	}
	return m.behind[tunnel]
}

// Encrypted returns the other hosts that have a key and share an encrypted network with this one, by name.
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
