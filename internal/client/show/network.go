package show

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Membership is a network, its NICs, and the hosts.
type Membership struct {
	Network *tenant.Network
	nics    []*tenant.NIC
	where   map[string]string // a NIC's host by the NIC's name; "": on no host yet
	hosts   map[string]*tenant.Host
	states  map[string]control.State // of hosts
	alone   string                   // the only host, which has every NIC without spec.host; "": there are several hosts
}

// NewMembership returns the members of a network. items are the network, the NICs of its tenant, and all hosts.
func NewMembership(network string, items []control.Item) (*Membership, error) {
	m := &Membership{where: make(map[string]string), hosts: make(map[string]*tenant.Host), states: make(map[string]control.State)}
	for _, it := range items {
		if err := m.take(it, network); err != nil {
			return nil, err
		}
	}
	for name, at := range m.where {
		if at == "" {
			m.where[name] = m.alone
		}
	}
	return m, nil
}

func (m *Membership) take(it control.Item, network string) error {
	o, err := tenant.Unmarshal(it.Object)
	if err != nil {
		return err
	}
	switch o := o.(type) {
	case *tenant.Network:
		m.Network = o
	case *tenant.NIC:
		if o.Spec.Network != network {
			return nil
		}
		m.nics = append(m.nics, o)
		if m.where[o.Metadata.Name] = o.Spec.Host; o.Spec.Host == "" && it.Status != nil {
			m.where[o.Metadata.Name] = it.Status.Host
		}
	case *tenant.Host:
		m.hosts[o.Metadata.Name] = o
		if it.Status != nil {
			if m.states[o.Metadata.Name] = it.Status.State; it.Status.Alone {
				m.alone = o.Metadata.Name
			}
		}
	}
	return nil
}

// Print lists the members.
func (m *Membership) Print(w io.Writer) error {
	encrypted := ""
	if m.Network.Spec.Encryption {
		encrypted = ", encrypted"
	}
	fmt.Fprintf(w, "network %s, VNI %d, %s%s\n\n", m.Network.Key().Path(), m.Network.Spec.VNI, listText(m.Network.Spec.Subnets), encrypted)
	rows := [][]string{{"NIC", "ADDRESSES", "HOST", "UNDERLAY", "STATE"}}
	for _, n := range m.nics {
		at := m.where[n.Metadata.Name]
		row := []string{n.Key().Path(), listText(n.Spec.Addresses), cmp.Or(at, "nowhere yet"), "-", "-"}
		if h := m.hosts[at]; h != nil {
			row[3], row[4] = listText(h.Spec.Addresses), string(m.states[at])
			if h.Linux() {
				row[4] = "linux: enforces nothing"
			}
		}
		rows = append(rows, row)
	}
	p := &rowPrinter{w: w, shown: make([]column, len(rows[0]))}
	return p.flush(rows)
}

// Commands prints the commands that make Linux machines members.
func (m *Membership) Commands(w io.Writer, static bool) error {
	some := false
	for _, n := range m.nics {
		h := m.hosts[m.where[n.Metadata.Name]]
		if h == nil || !h.Linux() {
			continue
		}
		some = true
		m.machine(w, n, h, static)
	}
	if !some {
		return fmt.Errorf("no NIC of %s is on a host of type linux: declare a Host with type: linux, and a NIC with host: its name", m.Network.Key())
	}
	return nil
}

// machine prints the commands for one Linux machine.
func (m *Membership) machine(w io.Writer, n *tenant.NIC, h *tenant.Host, static bool) {
	vni, dev := m.Network.Spec.VNI, fmt.Sprintf("vx%d", m.Network.Spec.VNI)
	fmt.Fprintf(w, "# on host %s, for NIC %s\n", h.Metadata.Name, n.Key().Path())
	if m.Network.Spec.Encryption {
		m.tunnel(w, h)
	}
	learning := ""
	if static {
		learning = " nolearning"
	}
	fmt.Fprintf(w, "ip link add %s address %s mtu %d type vxlan id %d dstport %d local %v%s\n", dev, macText(n), m.mtu(h)-m.tunnelRoom(), vni, port(h), m.at(h, h), learning)
	for _, a := range n.Spec.Addresses {
		fmt.Fprintf(w, "ip addr add %v/%d dev %s\n", a, m.bits(a), dev)
	}
	fmt.Fprintf(w, "ip link set %s up\n", dev)
	if static {
		m.neighbours(w, n, h, dev)
	} else {
		for _, other := range m.others(h) {
			fmt.Fprintf(w, "bridge fdb append 00:00:00:00:00:00 dev %s dst %v%s\n", dev, m.at(h, other), portText(h, other))
		}
	}
	fmt.Fprintf(w, "rdma link add rxe_%s type rxe netdev %s\n", dev, dev)
}

// neighbours prints the commands for every other member.
func (m *Membership) neighbours(w io.Writer, n *tenant.NIC, h *tenant.Host, dev string) {
	for _, o := range m.nics {
		other := m.hosts[m.where[o.Metadata.Name]]
		if o == n || other == nil || other == h {
			continue
		}
		for _, a := range o.Spec.Addresses {
			mac := overlay.MACOf(a).String()
			if other.Linux() {
				mac = macText(o)
			}
			fmt.Fprintf(w, "bridge fdb append %s dev %s dst %v%s\n", mac, dev, m.at(h, other), portText(h, other))
			fmt.Fprintf(w, "ip neigh replace %v lladdr %s dev %s nud permanent\n", a, mac, dev)
		}
	}
}

// others returns the other hosts with members, sorted by name.
func (m *Membership) others(h *tenant.Host) (list []*tenant.Host) {
	for _, at := range m.where {
		if o := m.hosts[at]; o != nil && o != h && !slices.Contains(list, o) {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b *tenant.Host) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return list
}

// mtu returns the network's MTU, or what an underlay of 1500 bytes or less leaves.
func (m *Membership) mtu(h *tenant.Host) int {
	if m.Network.Spec.MTU != 0 {
		return m.Network.Spec.MTU
	}
	least := 1500
	for _, o := range m.others(h) {
		if o.Spec.Capacity.MTU != 0 {
			least = min(least, o.Spec.Capacity.MTU)
		}
	}
	if h.Spec.Addresses[0].Is6() {
		return least - overlay.Outer6
	}
	return least - overlay.Outer4
}

// bits returns the prefix length of an address's subnet.
func (m *Membership) bits(a netip.Addr) int {
	for _, p := range m.Network.Spec.Subnets {
		if p.Contains(a) {
			return p.Bits()
		}
	}
	return a.BitLen()
}

// reachable returns an address of to in the family of from's first address, if there is one.
func reachable(from, to *tenant.Host) netip.Addr {
	for _, a := range to.Spec.Addresses {
		if a.Is4() == from.Spec.Addresses[0].Is4() {
			return a
		}
	}
	return to.Spec.Addresses[0]
}

func port(h *tenant.Host) int { return cmp.Or(h.Spec.Port, overlay.DefaultPort) }

func portText(from, to *tenant.Host) string {
	if port(from) == port(to) {
		return ""
	}
	return fmt.Sprintf(" port %d", port(to))
}

// macText returns the Ethernet address of a NIC on a Linux host.
func macText(n *tenant.NIC) string {
	if n.Spec.MAC != (tenant.MAC{}) {
		return n.Spec.MAC.String()
	}
	return overlay.MACOf(n.Spec.Addresses[0]).String()
}

// tunnelDevice is the WireGuard device of a Linux machine for all encrypted networks.
const tunnelDevice = "wg-vrdma"

// at returns the address of a host in the network's VXLAN, seen from h. In an encrypted network it is the
// address inside the tunnel: any other address would send in the clear.
func (m *Membership) at(h, other *tenant.Host) netip.Addr {
	switch {
	case m.Network.Spec.Encryption:
		return overlay.TunnelAddr(other.Spec.PublicKey)
	case h == other:
		return h.Spec.Addresses[0]
	}
	return reachable(h, other)
}

// tunnel prints the WireGuard commands of a Linux machine for an encrypted network.
func (m *Membership) tunnel(w io.Writer, h *tenant.Host) {
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
func (m *Membership) tunnelRoom() int {
	if m.Network.Spec.Encryption {
		return 80 + 20
	}
	return 0
}
