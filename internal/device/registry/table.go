package registry

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
)

// A Table has the NICs of a daemon. Any goroutine may use it. Readers take no lock, because the loop reads it for every message.
type Table struct {
	mu  sync.Mutex // held during changes
	now atomic.Pointer[contents]

	removed func(*NIC) // guarded by mu; may be nil
}

// contents is an immutable version of the table.
type contents struct {
	list      []*NIC // in the order of Add
	byName    map[string]*NIC
	byDevice  map[*nic.NIC]*NIC
	byAddress map[address]*NIC
	hosts     *overlay.Map // nil: no network spans hosts
}

// An address is a GID in a network, or in the network namespace of one NIC.
type address struct {
	network string
	gid     ib.GID
}

var _ nic.Resolver = (*Table)(nil)

// NewTable returns an empty table.
func NewTable() *Table {
	t := &Table{}
	t.now.Store(index(nil, nil))
	return t
}

func index(list []*NIC, hosts *overlay.Map) *contents {
	c := &contents{
		list: list, byName: make(map[string]*NIC, len(list)), byDevice: make(map[*nic.NIC]*NIC, len(list)), byAddress: make(map[address]*NIC, len(list)),
		hosts: hosts,
	}
	for _, n := range list {
		c.byName[n.Name], c.byDevice[n.Device] = n, n
		for _, g := range n.Device.Face().GIDs {
			c.byAddress[address{n.domain(), g.GID}] = n
		}
	}
	return c
}

// Add adds n. Its name must be new, and so must its addresses in its network.
func (t *Table) Add(n *NIC) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.now.Load()
	if c.byName[n.Name] != nil {
		return fmt.Errorf("there is a vNIC %q already", n.Name)
	}
	for _, g := range n.Device.Face().GIDs {
		if o := c.byAddress[address{n.domain(), g.GID}]; o != nil {
			return fmt.Errorf("vNIC %q cannot have address %v: vNIC %q has it in network %q", n.Name, g.GID.Addr(), o.Name, n.Network)
		}
	}
	t.now.Store(index(append(slices.Clone(c.list), n), c.hosts))
	return nil
}

// SetFace changes the addresses of a NIC. It is called on the loop.
func (t *Table) SetFace(n *NIC, f nic.Face) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.Device.SetFace(f)
	c := t.now.Load()
	t.now.Store(index(c.list, c.hosts))
	n.Device.Reroute()
	if n.Manager != nil {
		n.Manager.Readdressed()
	}
}

// Remove removes NICs that no client has open.
func (t *Table) Remove(nics ...*NIC) {
	t.mu.Lock()
	defer t.mu.Unlock()
	gone := make(map[*NIC]bool, len(nics))
	for _, n := range nics {
		gone[n] = true
	}
	c := t.now.Load()
	t.now.Store(index(slices.DeleteFunc(slices.Clone(c.list), func(o *NIC) bool { return gone[o] }), c.hosts))
	for _, n := range nics {
		if t.removed != nil {
			t.removed(n)
		}
	}
}

// OnRemove sets a function that is called for removed NICs, so that their counters can be read a last time.
func (t *Table) OnRemove(f func(*NIC)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removed = f
}

// All returns the NICs, oldest first.
func (t *Table) All() []*NIC { return slices.Clone(t.now.Load().list) }

// Named returns the NIC with a name, or nil.
func (t *Table) Named(name string) *NIC { return t.now.Load().byName[name] }

// Names returns the names of all NICs, sorted.
func (t *Table) Names() []string { return slices.Sorted(maps.Keys(t.now.Load().byName)) }

// At returns the NIC that has an address in a network, or nil.
func (t *Table) At(network string, gid ib.GID) *NIC {
	return t.now.Load().byAddress[address{network, gid}]
}

// Reroute makes every NIC resolve its cached routes again. It is called on the loop after the table has changed.
func (t *Table) Reroute() {
	for _, n := range t.now.Load().list {
		n.Device.Reroute()
	}
}

// RerouteIn is Reroute for the NICs of one network.
func (t *Table) RerouteIn(network string) {
	for _, n := range t.now.Load().list {
		if n.Network == network {
			n.Device.Reroute()
		}
	}
}

// Resolve implements nic.Resolver: it returns how from reaches a GID, which may be a group.
func (t *Table) Resolve(from *nic.NIC, to ib.GID) nic.Way {
	c := t.now.Load()
	n := c.byDevice[from]
	if n == nil {
		return nic.Way{}
	}
	var way nic.Way
	if o := c.byAddress[address{n.domain(), to}]; o != nil {
		way.NIC = o.Device
	}
	// In a NIC's own namespace the kernel there has the routes, except to the NIC itself.
	if n.Namespace != ib.HostNetwork {
		way.To, way.Network = to.Addr(), n.Namespace
		return way
	}
	// In the host's network a GID is the IP address of a host or a group. In other networks it is an inner address, and leads to
	// another host if the map says so.
	if n.Network == HostNetwork {
		way.To = to.Addr()
		return way
	}
	vni := c.hosts.VNI(n.Network)
	if vni == 0 {
		return way
	}
	a := to.Addr()
	switch m := c.hosts.Find(vni, a); {
	case m != nil && !m.Host.Self:
		// A NIC without a fixed host has a socket on every host: the map says where it is.
		way = nic.Way{Network: ib.VirtualNetwork(vni), To: a}
	case way.NIC != nil, a.IsMulticast():
		way.Network, way.To = ib.VirtualNetwork(vni), a
	}
	return way
}

// SetMap sets the map of networks between hosts. It is called on the loop, and the NICs of those networks resolve their cached
// routes again.
func (t *Table) SetMap(m *overlay.Map) {
	t.mu.Lock()
	c := *t.now.Load()
	old := c.hosts
	c.hosts = m
	t.now.Store(&c)
	t.mu.Unlock()
	for _, n := range c.list {
		if vni := max(old.VNI(n.Network), m.VNI(n.Network)); vni != 0 {
			n.Device.Reroute()
		}
	}
}

// Map returns the last map; nil if there was none.
func (t *Table) Map() *overlay.Map { return t.now.Load().hosts }
