package provision

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// network is how a NIC reaches the others of its network. It implements registry.Routes. An address that no NIC of the
// network has is unreachable at once. So no program waits for a peer that cannot answer, and the error does not tell
// whether another network has the address.
type network struct {
	table   *registry.Table
	name    string
	subnets []netip.Prefix
	of      *registry.NIC
}

// From implements registry.Routes. Packets leave from the NIC's address in the subnet of to, or from its first address
// of the family.
func (n *network) From(from, to netip.Addr) (netip.Addr, error) {
	if err := n.Reach(from, to, 0); err != nil {
		return netip.Addr{}, err
	}
	if !from.IsUnspecified() {
		return from, nil
	}
	var first netip.Addr
	for _, g := range n.of.Device.GIDs {
		a := g.GID.Addr()
		if a.Is4() != to.Is4() {
			continue
		}
		if slices.ContainsFunc(n.subnets, func(p netip.Prefix) bool { return p.Contains(a) && p.Contains(to) }) {
			return a, nil
		}
		if !first.IsValid() {
			first = a
		}
	}
	if !first.IsValid() {
		return first, syscall.ENETUNREACH
	}
	return first, nil
}

// Reach implements registry.Routes.
func (n *network) Reach(_, to netip.Addr, _ time.Duration) error {
	if n.table.At(n.name, to.As16()) != nil {
		return nil
	}
	if m := n.table.Map(); m.Find(m.VNI(n.name), to) != nil {
		return nil
	}
	return syscall.ENETUNREACH
}

// innerIPv6 is the number of bytes by which a packet with IPv6 inside is longer.
const innerIPv6 = wire.IPv6Size - wire.IPv4Size

// packetMTU is the length of packets of a network, from the IP header on.
func (r *Provisioner) packetMTU(n *tenant.Network) int {
	mtu := n.Spec.MTU
	if mtu == 0 && r.cfg.OverlayMTU != 0 {
		mtu = r.cfg.OverlayMTU - r.cfg.OverlayHead
		if n.Spec.Encryption {
			mtu -= r.cfg.TunnelHead
		}
	}
	if mtu == 0 {
		mtu = ethernetMTU
	}
	return max(mtu, leastMTU)
}

const (
	ethernetMTU = 1500
	leastMTU    = 576 // IPv4's
)

// mtu is the MTU of a network's NICs, as enum ib_mtu: the largest that fits into the packets of the network or of the
// underlay.
func (r *Provisioner) mtu(n *tenant.Network) uint8 {
	bytes, underlay := n.Spec.MTU, r.cfg.Underlay
	if n.Spec.Way != tenant.WayHost && n.Spec.Way != tenant.WayNamespace {
		if underlay = r.cfg.OverlayMTU; underlay != 0 {
			underlay -= r.cfg.OverlayHead
			if slices.ContainsFunc(n.Spec.Subnets, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
				underlay -= innerIPv6
			}
			if n.Spec.Encryption {
				underlay -= r.cfg.TunnelHead
			}
		}
	}
	switch {
	case bytes != 0:
	case underlay == 0:
		return nic.LargestMTU // there is no underlay
	default:
		bytes = underlay
	}
	return nic.MTUWithin(bytes)
}
