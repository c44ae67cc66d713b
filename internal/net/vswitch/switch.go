package vswitch

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/net/overlay"
)

// Config has the dependencies of a Switch.
type Config struct {
	Log *slog.Logger
	// Hosts sends frames to other hosts; nil: there are none.
	Hosts Sender
}

// A Sender sends frames to other hosts.
type Sender interface {
	// SendFrame sends a frame to another host that has members of a network. It does not keep the frame and does not block. Several
	// goroutines may call it at a time.
	SendFrame(vni uint32, to *overlay.Host, frame []byte)
}

// A Switch is the switch of one daemon. Its networks are isolated from each other.
type Switch struct {
	cfg     Config
	members atomic.Pointer[overlay.Map]
	inbound inbound
	live    atomic.Int64 // ports with an attached device

	mu       sync.Mutex
	networks map[string]*network      // networks with ports
	tenants  map[string]*tenantLimits // tenants with ports
}

// New returns a switch without ports.
func New(c Config) *Switch {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Switch{cfg: c, networks: make(map[string]*network), tenants: make(map[string]*tenantLimits)}
}

// SetMap sets the map of members on other hosts.
func (s *Switch) SetMap(m *overlay.Map) { s.members.Store(m) }

// Close stops the switch's goroutines. All ports are removed before.
func (s *Switch) Close() { s.inbound.close() }

// A network is one virtual network on this host.
type network struct {
	name  string
	sw    *Switch
	flows flows

	mu    sync.RWMutex // guards the fields below
	ports map[netip.Addr]*Port
	count int     // number of ports
	live  []*Port // ports with an attached device; copied on write
}

// vni returns the network's VNI in the current map; 0 if no other host has members of it.
func (n *network) vni() uint32 { return n.sw.members.Load().VNI(n.name) }

// at returns the port that has an address, or nil.
func (n *network) at(a netip.Addr) *Port {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.ports[a]
}

// elsewhere returns the member on another host that has an address, or nil.
func (n *network) elsewhere(a netip.Addr) *overlay.Member {
	members := n.sw.members.Load()
	if e := members.Find(members.VNI(n.name), a); e != nil && !e.Host.Self {
		return e
	}
	return nil
}

// attached returns the ports with an attached device. The caller must not change the list.
func (n *network) attached() []*Port {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.live
}

func (n *network) setLive(p *Port, on bool) {
	if on {
		n.sw.live.Add(1)
	} else {
		n.sw.live.Add(-1)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	live := slices.DeleteFunc(slices.Clone(n.live), func(o *Port) bool { return o == p })
	if on {
		live = append(live, p)
	}
	n.live = live
}

// Plug adds a port for a NIC. No device is attached to it yet.
func (s *Switch) Plug(c PortConfig) (*Port, error) {
	if len(c.Addrs) == 0 || c.MTU < 576 {
		return nil, fmt.Errorf("NIC %s cannot be plugged in with %d addresses and an MTU of %d", c.NIC, len(c.Addrs), c.MTU)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.networks[c.Network]
	if n == nil {
		n = &network{name: c.Network, sw: s, ports: make(map[netip.Addr]*Port)}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range c.Addrs {
		if o := n.ports[a]; o != nil {
			return nil, fmt.Errorf("NICs %s and %s both have address %v", o.NIC, c.NIC, a)
		}
	}
	tenant := tenantOf(c.NIC)
	shared := s.tenants[tenant]
	if shared == nil {
		shared = new(tenantLimits)
		s.tenants[tenant] = shared
	}
	shared.ports++
	p := &Port{PortConfig: c, net: n, log: s.cfg.Log, shared: shared}
	p.linkLocal = linkLocal(p.MAC)
	for _, a := range c.Addrs {
		n.ports[a] = p
	}
	n.count++
	s.networks[c.Network] = n
	return p, nil
}

// tenantOf returns the tenant of a NIC.
func tenantOf(nic string) string {
	tenant, _, _ := strings.Cut(nic, "/")
	return tenant
}

// SetRate says how many bytes a second all ports of a tenant together may send and get, as Port.SetRate does of one. A tenant
// without ports has none.
func (s *Switch) SetRate(tenant string, sent, received, burst uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tenants[tenant]; t != nil {
		t.limits[out].set(sent, burst)
		t.limits[in].set(received, burst)
	}
}

// Unplug removes a port and disconnects the attached device.
func (p *Port) Unplug() {
	p.Detach()
	n, s := p.net, p.net.sw
	s.mu.Lock()
	defer s.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.DeleteFunc(n.ports, func(_ netip.Addr, o *Port) bool { return o == p })
	if n.count--; n.count == 0 {
		delete(s.networks, n.name)
	}
	if p.shared.ports--; p.shared.ports == 0 {
		delete(s.tenants, tenantOf(p.NIC))
	}
}

// network finds one by its number; nil: it has no ports here.
func (s *Switch) network(vni uint32) *network {
	net := s.members.Load().Network(vni)
	if net == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.networks[net.Name]
}
