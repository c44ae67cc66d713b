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

// MaxVNI is the largest number of a network; 0 is none.
const MaxVNI = 1<<24 - 1

// A MAC is an Ethernet address.
type MAC [6]byte

// MACOf returns the Ethernet address of a NIC of ours, by its first address: every vrdma host knows it
// without asking. It is locally administered.
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

// A Host is a machine that has members of networks. It does not change; a Map may be replaced by one
// with another Host of that name.
type Host struct {
	Name string
	// Addrs are its addresses in the underlay, at most one a family.
	Addrs []netip.Addr
	// Port is where it takes VXLAN; 0 means DefaultPort.
	Port uint16
	// Self: it is this daemon.
	Self bool
	// Linux: it is the kernel's vxlan device. It has to be answered when it asks for a MAC, and it
	// enforces nothing.
	Linux bool
	// Features are those of package wire that a vrdma host understands.
	Features uint32
	// Key is its public key, of the WireGuard tunnel; zero: it has none.
	Key [32]byte
	// TunnelPort is where it takes WireGuard; 0 means DefaultTunnelPort.
	TunnelPort uint16
}

// A Network is one virtual network and who is in it, on all hosts.
type Network struct {
	VNI  uint32
	Name string // TENANT/NAME
	// Encrypted: its packets leave through tunnels only, and only those from tunnels are taken.
	Encrypted bool
	Members   []Member
}

// A Member is an address of a network.
type Member struct {
	Addr netip.Addr
	MAC  MAC // MACOf its NIC's first address, unless it was declared otherwise
	Host *Host
	NIC  string // TENANT/NAME
}

// A Map is all networks of which this host has members, at one moment. It is not changed.
type Map struct {
	networks map[uint32]*network
	byName   map[string]*network
	hosts    map[netip.Addr]*Host // by underlay address
	behind   map[netip.Addr]*Host // by address inside the tunnel, of encrypted networks only
}

type network struct {
	Network
	at    map[netip.Addr]*Member
	hosts []*Host // of its members, without this one, by name
}

// NewMap makes a map. It refuses what would be ambiguous.
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

// admit takes a member in.
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

// Find returns the member that has an address in a network; nil: none has. A nil map has nobody.
func (m *Map) Find(vni uint32, a netip.Addr) *Member {
	if m == nil {
		return nil
	}
	if n := m.networks[vni]; n != nil {
		return n.at[a]
	}
	return nil
}

// VNI returns the number of the network of a name; 0: it is not known.
func (m *Map) VNI(name string) uint32 {
	if m == nil || m.byName[name] == nil {
		return 0
	}
	return m.byName[name].VNI
}

// Network is that of a number; nil: this host has no member of it.
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

// Networks returns all of them, in no order.
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

// HostAt returns the host that has an address in the underlay; nil: none that this host shares a network
// with.
func (m *Map) HostAt(underlay netip.Addr) *Host {
	if m == nil {
		return nil
	}
	return m.hosts[underlay]
}
