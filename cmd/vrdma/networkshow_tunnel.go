package main

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// tunnelDevice is the WireGuard device of a Linux machine for all encrypted networks.
const tunnelDevice = "wg-vrdma"

// at returns the address of a host in the network's VXLAN, seen from h. In an encrypted network it is the
// address inside the tunnel: any other address would send in the clear.
func (m *membership) at(h, other *tenant.Host) netip.Addr {
	switch {
	case m.network.Spec.Encryption:
		return overlay.TunnelAddr(other.Spec.PublicKey)
	case h == other:
		return h.Spec.Addresses[0]
	}
	return reachable(h, other)
}

// tunnel prints the WireGuard commands of a Linux machine for an encrypted network.
func (m *membership) tunnel(w io.Writer, h *tenant.Host) {
	fmt.Fprintln(w, "# The network is encrypted: its packets go through WireGuard. KEYFILE is the file of the private key")
	fmt.Fprintf(w, "# that belongs to %s. Add peers to the device if it is there already.\n", h.Spec.PublicKey)
	fmt.Fprintf(w, "ip link add %s type wireguard\n", tunnelDevice)
	fmt.Fprintf(w, "wg set %s listen-port %d private-key KEYFILE\n", tunnelDevice, cmp.Or(h.Spec.TunnelPort, overlay.DefaultTunnelPort))
	fmt.Fprintf(w, "ip addr add %v/128 dev %s\n", m.at(h, h), tunnelDevice)
	fmt.Fprintf(w, "ip link set %s up\n", tunnelDevice)
	for _, o := range m.others(h) {
		if o.Spec.PublicKey == (tenant.PublicKey{}) {
			fmt.Fprintf(w, "# host %s has no key yet\n", o.Metadata.Name)
			continue
		}
		end := netip.AddrPortFrom(reachable(h, o), uint16(cmp.Or(o.Spec.TunnelPort, overlay.DefaultTunnelPort)))
		fmt.Fprintf(w, "wg set %s peer %s endpoint %v allowed-ips %v/128\n", tunnelDevice, o.Spec.PublicKey, end, m.at(h, o))
		fmt.Fprintf(w, "ip route replace %v/128 dev %s\n", m.at(h, o), tunnelDevice)
	}
}

// tunnelRoom returns the bytes that WireGuard takes from a vxlan device's MTU: its own 80, and 20 for IPv6
// instead of IPv4 below VXLAN.
func (m *membership) tunnelRoom() int {
	if m.network.Spec.Encryption {
		return 80 + 20
	}
	return 0
}
