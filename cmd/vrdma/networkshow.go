package main

import (
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func networkCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "network",
		Short: "show the members of a virtual network",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return usage("say what: vrdma network show TENANT/NETWORK") },
	}
	c.AddCommand(networkShowCommand(o))
	return c
}

func networkShowCommand(o *options) *cobra.Command {
	var linux, static bool
	var of string
	c := &cobra.Command{
		Use:   "show TENANT/NETWORK",
		Short: "list the members of a network and their hosts",
		Long: `Lists the members of a network and their hosts. With --linux it prints commands for each NIC
on a host of type linux. They make a Linux machine with the kernel's vxlan and rxe a member. The machine then learns the other members from their packets; with --static it is
configured with all of them. Print and run the commands again after a host changed, with
--static also after a NIC changed. Only the operator sees hosts.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := objectKey(tenant.KindNetwork, args[0], of, false)
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			m, err := readMembership(place.Socket, k)
			if err != nil {
				return objectsError(place, err)
			}
			if m.network == nil {
				return fmt.Errorf("there is no network %s that you may see", k.Path())
			}
			if linux || static {
				return m.commands(c.OutOrStdout(), static)
			}
			return m.print(c.OutOrStdout())
		},
	}
	c.Flags().StringVarP(&of, "tenant", "t", "", "the tenant of a name without one")
	c.Flags().BoolVar(&linux, "linux", false, "print the commands for Linux machines that are members")
	c.Flags().BoolVar(&static, "static", false, "with --linux: configure every member, so that the machine need not learn")
	return c
}

// A membership is a network, its NICs, and the hosts.
type membership struct {
	network *tenant.Network
	nics    []*tenant.NIC
	where   map[string]string // a NIC's host by the NIC's name; "": on no host yet
	hosts   map[string]*tenant.Host
	states  map[string]control.State // of hosts
	alone   string                   // the only host, which has every NIC without spec.host; "": there are several hosts
}

func readMembership(socket string, k tenant.Key) (*membership, error) {
	m := &membership{where: make(map[string]string), hosts: make(map[string]*tenant.Host), states: make(map[string]control.State)}
	for _, which := range []control.Selection{
		{Kind: tenant.KindNetwork, Tenant: k.Tenant, Name: k.Name}, {Kind: tenant.KindNIC, Tenant: k.Tenant}, {Kind: tenant.KindHost},
	} {
		reply, err := control.Get(socket, which)
		if err != nil {
			return nil, err
		}
		for _, it := range reply.Items {
			if err := m.take(it, k.Name); err != nil {
				return nil, err
			}
		}
	}
	for name, at := range m.where {
		if at == "" {
			m.where[name] = m.alone
		}
	}
	return m, nil
}

func (m *membership) take(it control.Item, network string) error {
	o, err := tenant.Unmarshal(it.Object)
	if err != nil {
		return err
	}
	switch o := o.(type) {
	case *tenant.Network:
		m.network = o
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

// print lists the members.
func (m *membership) print(w io.Writer) error {
	encrypted := ""
	if m.network.Spec.Encryption {
		encrypted = ", encrypted"
	}
	fmt.Fprintf(w, "network %s, VNI %d, %s%s\n\n", m.network.Key().Path(), m.network.Spec.VNI, listText(m.network.Spec.Subnets), encrypted)
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

// commands prints the commands that make Linux machines members.
func (m *membership) commands(w io.Writer, static bool) error {
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
		return fmt.Errorf("no NIC of %s is on a host of type linux: declare a Host with type: linux, and a NIC with host: its name", m.network.Key())
	}
	return nil
}

// machine prints the commands for one Linux machine.
func (m *membership) machine(w io.Writer, n *tenant.NIC, h *tenant.Host, static bool) {
	vni, dev := m.network.Spec.VNI, fmt.Sprintf("vx%d", m.network.Spec.VNI)
	fmt.Fprintf(w, "# on host %s, for NIC %s\n", h.Metadata.Name, n.Key().Path())
	if m.network.Spec.Encryption {
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
func (m *membership) neighbours(w io.Writer, n *tenant.NIC, h *tenant.Host, dev string) {
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
func (m *membership) others(h *tenant.Host) (list []*tenant.Host) {
	for _, at := range m.where {
		if o := m.hosts[at]; o != nil && o != h && !slices.Contains(list, o) {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, func(a, b *tenant.Host) int { return strings.Compare(a.Metadata.Name, b.Metadata.Name) })
	return list
}

// mtu returns the network's MTU, or what an underlay of 1500 bytes or less leaves.
func (m *membership) mtu(h *tenant.Host) int {
	if m.network.Spec.MTU != 0 {
		return m.network.Spec.MTU
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
func (m *membership) bits(a netip.Addr) int {
	for _, p := range m.network.Spec.Subnets {
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
