package overlay

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
)

// DefaultPort is VXLAN's UDP port.
const DefaultPort = 4789

// MaxVNI is the largest VNI; 0 is not a VNI.
const MaxVNI = 1<<24 - 1

// A MAC is an Ethernet address.
type MAC [6]byte

// MACOf returns the Ethernet address of a vrdma NIC, derived from its first address, so that every vrdma host knows it
// without a request. It is locally administered.
func MACOf(a netip.Addr) MAC {
	m := MAC{0x02, 0x56}
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		copy(m[2:], b[:])
		return m
	}
	h := fnv.New32a()
	b := a.As16()
	h.Write(b[:])
	binary.BigEndian.PutUint32(m[2:], h.Sum32())
	return m
}

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// A Host is a machine that has members of networks. It is immutable; a new Map may have another Host with the same name.
type Host struct {
	Name string
	// Addrs are its addresses in the underlay, at most one per family.
	Addrs []netip.Addr
	// Port is the port at which it receives VXLAN; 0 means DefaultPort.
	Port uint16
	// Self means that it is this daemon's host.
	Self bool
	// Linux means that it uses the kernel's vxlan device. It needs answers to its MAC requests, and enforces no
	// membership.
	Linux bool
	// Features are the features of package wire that a vrdma host understands.
	Features uint32
	// SourcePorts are the UDP ports from which a vrdma host sends VXLAN; nil: any. No other program of that host can send
	// from them, so that datagrams from other ports are forged.
	SourcePorts *PortSet
	// Key is its public WireGuard key; zero: none.
	Key [32]byte
	// TunnelPort is the port at which it receives WireGuard; 0 means DefaultTunnelPort.
	TunnelPort uint16
}

// A Network is one virtual network with its members on all hosts.
type Network struct {
	VNI  uint32
	Name string // TENANT/NAME
	// Encrypted means that its packets are sent only through tunnels and accepted only from tunnels.
	Encrypted bool
	Members   []Member
}

// A Member is an address of a network.
type Member struct {
	Addr netip.Addr
	MAC  MAC // MACOf its NIC's first address, unless declared otherwise
	Host *Host
	NIC  string // TENANT/NAME
}

// A Map contains all networks that have members on this host, at one moment. It is immutable.
type Map struct {
	networks map[uint32]*network
	byName   map[string]*network
	hosts    map[netip.Addr]*Host // by underlay address
	behind   map[netip.Addr]*Host // by address inside the tunnel, for encrypted networks only
}

type network struct {
	Network
	at    map[netip.Addr]*Member
	hosts []*Host // hosts of its members except this one, by name
}

// NewMap returns a map. It rejects ambiguous networks and members.
func NewMap(networks []Network) (*Map, error) {
	m := &Map{networks: make(map[uint32]*network, len(networks)), byName: make(map[string]*network, len(networks)), hosts: make(map[netip.Addr]*Host), behind: make(map[netip.Addr]*Host)}
	for _, n := range networks {
		if n.VNI == 0 || n.VNI > MaxVNI {
			return nil, fmt.Errorf("network %s has VNI %d: it is from 1 to %d", n.Name, n.VNI, MaxVNI)
		}
		if o := m.networks[n.VNI]; o != nil {
			return nil, fmt.Errorf("networks %s and %s both have VNI %d", o.Name, n.Name, n.VNI)
		}
		if m.byName[n.Name] != nil {
			return nil, fmt.Errorf("network %s is there twice", n.Name)
		}
		w := &network{Network: n, at: make(map[netip.Addr]*Member, len(n.Members))}
		for i := range n.Members {
			if err := m.admit(w, &n.Members[i]); err != nil {
				return nil, err
			}
		}
		slices.SortFunc(w.hosts, func(a, b *Host) int { return cmp.Compare(a.Name, b.Name) })
		m.networks[n.VNI], m.byName[n.Name] = w, w
	}
	return m, nil
}

// admit adds a member.
func (m *Map) admit(w *network, e *Member) error {
	if e.Host == nil || !e.Addr.IsValid() {
		return fmt.Errorf("member %s of network %s has no host or no address", e.NIC, w.Name)
	}
	if o := w.at[e.Addr]; o != nil {
		return fmt.Errorf("members %s and %s of network %s both have address %v", o.NIC, e.NIC, w.Name, e.Addr)
	}
	w.at[e.Addr] = e
	for _, a := range e.Host.Addrs {
		switch o := m.hosts[a]; {
		case o == nil:
			m.hosts[a] = e.Host
		case o != e.Host:
			return fmt.Errorf("hosts %s and %s both have address %v", o.Name, e.Host.Name, a)
		}
	}
	if !e.Host.Self && !slices.Contains(w.hosts, e.Host) {
		w.hosts = append(w.hosts, e.Host)
	}
	if w.Encrypted {
		return m.admitKey(e.Host)
	}
	return nil
}

// Find returns the member that has an address in a network, or nil. A nil map is empty.
func (m *Map) Find(vni uint32, a netip.Addr) *Member {
	if m == nil {
		return nil
	}
	if n := m.networks[vni]; n != nil {
		return n.at[a]
	}
	return nil
}

// An Address is an address of a network.
type Address struct {
	VNI  uint32
	Addr netip.Addr
}

// Relocated returns the addresses that are on another host than in an older map.
func (m *Map) Relocated(old *Map) (out []Address) {
	if m == nil || old == nil {
		return nil
	}
	for vni, n := range m.networks {
		for a, e := range n.at {
			if was := old.Find(vni, a); was != nil && was.Host != e.Host && was.Host.Name != e.Host.Name {
				out = append(out, Address{vni, a})
			}
		}
	}
	return out
}

// VNI returns the VNI of the network with a name; 0 if it is unknown.
func (m *Map) VNI(name string) uint32 {
	if m == nil || m.byName[name] == nil {
		return 0
	}
	return m.byName[name].VNI
}

// Network returns the network with a VNI; nil if this host has no member of it.
func (m *Map) Network(vni uint32) *Network {
	if m == nil || m.networks[vni] == nil {
		return nil
	}
	return &m.networks[vni].Network
}

// Hosts returns the other hosts that have members of a network, by name.
func (m *Map) Hosts(vni uint32) []*Host {
	if m == nil || m.networks[vni] == nil {
		return nil
	}
	return m.networks[vni].hosts
}

// IsMember reports whether a host has members of a network.
func (m *Map) IsMember(vni uint32, h *Host) bool { return slices.Contains(m.Hosts(vni), h) }

// Networks returns all networks, in no order.
func (m *Map) Networks() (out []*Network) {
	if m == nil {
		return nil
	}
	for _, n := range m.networks {
		out = append(out, &n.Network)
	}
	return out
}

// Elsewhere reports whether a network has members on other hosts.
func (m *Map) Elsewhere() bool {
	if m == nil {
		return false
	}
	for _, n := range m.networks {
		if len(n.hosts) > 0 {
			return true
		}
	}
	return false
}

// HostAt returns the host that has an address in the underlay; nil if this host shares no network with it.
func (m *Map) HostAt(underlay netip.Addr) *Host {
	if m == nil {
		return nil
	}
	return m.hosts[underlay]
}
