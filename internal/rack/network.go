package rack

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"vrdma/internal/nic"
	"vrdma/internal/tenant"
	"vrdma/internal/vnic"
)

// network is how a NIC reaches the others of its network. It implements vnic.Routes. An address
// that no NIC there has is unreachable at once: nobody waits for somebody who cannot answer, and
// whether another network has the address is not told.
type network struct {
	table   *vnic.Table
	name    string
	subnets []netip.Prefix
	of      *vnic.NIC
}

// From implements vnic.Routes: packets leave from the NIC's address in the subnet of to, or
// failing that from its first of the family.
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

// Reach implements vnic.Routes.
func (n *network) Reach(_, to netip.Addr, _ time.Duration) error {
	if n.table.At(n.name, to.As16()) == nil {
		return syscall.ENETUNREACH
	}
	return nil
}

// vxlanHeaders is what a packet of an overlay has around it: IPv6, UDP, VXLAN, Ethernet.
const vxlanHeaders = 40 + 8 + 8 + 14

// mtu is that of a network's NICs, numbered as enum ib_mtu: what fits into the packets that the
// network says, or that the underlay leaves.
func mtu(n *tenant.Network, underlay int) uint8 {
	bytes := n.Spec.MTU
	switch {
	case bytes != 0:
	case underlay == 0:
		return nic.LargestMTU // there is nothing that it would have to fit into
	case n.Spec.Way == tenant.WayHost:
		bytes = underlay
	default:
		bytes = underlay - vxlanHeaders
	}
	return nic.MTUWithin(bytes)
}
