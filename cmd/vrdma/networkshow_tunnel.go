package main

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// tunnelDevice is the WireGuard device of a Linux machine, one for all encrypted networks.
const tunnelDevice = "wg-vrdma"

// at is where VXLAN of the network finds a host, from h: an address inside the tunnel if the network is
// encrypted. Another one would send in the clear.
func (m *membership) at(h, other *tenant.Host) netip.Addr {
	switch {
	case m.network.Spec.Encryption:
		return overlay.TunnelAddr(other.Spec.PublicKey)
	case h == other:
		return h.Spec.Addresses[0]
	}
	return reachable(h, other)
}

// tunnel prints what a Linux machine needs for an encrypted network.
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

// tunnelRoom is how much smaller a vxlan device's packets are over WireGuard: its 80 bytes, and IPv6
// instead of IPv4 below VXLAN.
func (m *membership) tunnelRoom() int {
	if m.network.Spec.Encryption {
		return 80 + 20
	}
	return 0
}
