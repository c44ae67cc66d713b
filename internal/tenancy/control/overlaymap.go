package control

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// An overlayMap tells the Provisioner which host has which address of a virtual network.
type overlayMap struct {
	cfg          *Config
	journal      *Journal
	snapshots    *snapshots
	health       *storeHealth
	registration *registration
	states       *nicStates
	again        wakeup
	lost         atomic.Bool // the Provisioner could not apply the last map

	mu         sync.Mutex        // guards the fields below
	networks   []overlay.Network // of the last map that was applied
	complained []string          // problems of the last map, which have been recorded
}

// networksOf returns the networks of which this host has members, with the host of every address, and what was left
// out.
func (m *overlayMap) networksOf(s *snapshot) (networks []overlay.Network, problems []string) {
	if m.registration.reason() != "" {
		return nil, nil
	}
	here := make(map[tenant.Key]bool)
	for _, key := range m.states.provisioned() {
		n := s.world.NIC(key.Tenant, key.Name)
		if n == nil || s.where(n, m.cfg.Host, m.health.shared()) != m.cfg.Host {
			continue
		}
		here[n.NetworkKey()] = true
	}
	if len(here) == 0 {
		return nil, nil
	}
	hosts, problems := m.underlay(s)
	for key := range here {
		o := s.world.Network(key.Tenant, key.Name)
		if o == nil || o.Spec.VNI == 0 || o.Spec.Way != "" && o.Spec.Way != tenant.WayVXLAN {
			continue
		}
		network := overlay.Network{VNI: o.Spec.VNI, Name: key.Path(), Encrypted: o.Spec.Encryption}
		for _, n := range s.world.NICs(key) {
			host := hosts[s.where(n, m.cfg.Host, m.health.shared())]
			if host == nil {
				continue // it has not been opened anywhere, or its host is not known
			}
			for _, a := range n.Spec.Addresses {
				network.Members = append(network.Members, overlay.Member{Addr: a, MAC: macOf(n), Host: host, NIC: n.Key().Path()})
			}
		}
		networks = append(networks, network)
	}
	slices.SortFunc(networks, func(a, b overlay.Network) int { return cmp.Compare(a.VNI, b.VNI) })
	return networks, problems
}

// macOf is the Ethernet address of a NIC, which all its addresses share.
func macOf(n *tenant.NIC) overlay.MAC {
	if n.Spec.MAC != (tenant.MAC{}) {
		return overlay.MAC(n.Spec.MAC)
	}
	return overlay.MACOf(n.Spec.Addresses[0])
}

// underlay is all hosts by name. Of several hosts with the same address one is used: this one, then the first that runs
// vrdma.
func (m *overlayMap) underlay(s *snapshot) (hosts map[string]*overlay.Host, problems []string) {
	hosts = make(map[string]*overlay.Host)
	taken := make(map[netip.Addr]string)
	admit := func(o *tenant.Host) {
		name := o.Metadata.Name
		if hosts[name] != nil {
			return
		}
		for _, a := range o.Spec.Addresses {
			if by, is := taken[a]; is {
				problems = append(problems, fmt.Sprintf("%v says that it has address %v, and so does host %s: it is left out until one of them is right", o.Key(), a, by))
				return
			}
		}
		for _, a := range o.Spec.Addresses {
			taken[a] = name
		}
		hosts[name] = &overlay.Host{
			Name: name, Addrs: o.Spec.Addresses, Port: uint16(o.Spec.Port), Self: name == m.cfg.Host, Linux: o.Linux(), Features: o.Spec.Features,
			SourcePorts: overlay.NewPortSet(o.Spec.SourcePorts),
			Key:         o.Spec.PublicKey, TunnelPort: uint16(o.Spec.TunnelPort),
		}
	}
	admit(m.registration.self())
	for _, o := range m.registration.hosts(s) {
		admit(o)
	}
	for _, o := range s.world.Objects(tenant.KindHost) {
		admit(o.(*tenant.Host))
	}
	return hosts, problems
}

// update gives the Provisioner a new map, if the map has changed. retry calls it again after a failure.
func (m *overlayMap) update() (warnings []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	networks, problems := m.networksOf(m.snapshots.now.Load())
	if !m.lost.Load() && slices.EqualFunc(networks, m.networks, sameNetwork) {
		m.complain(problems)
		return nil
	}
	next, err := overlay.NewMap(networks)
	if err != nil {
		m.complain(append(problems, "the hosts' map: "+err.Error()))
		return nil
	}
	if err := try(m.cfg.Log, func() error { return m.cfg.Provisioner.Connect(next) }); err != nil {
		why := "the way to other hosts: " + err.Error()
		m.complain(append(problems, why))
		if !m.lost.Swap(true) {
			m.again.wake()
		}
		return []string{why + "; it is tried again"}
	}
	m.lost.Store(false)
	m.complain(problems)
	m.networks = networks
	return nil
}

// complain records problems that are new. mu is held.
func (m *overlayMap) complain(problems []string) {
	for _, text := range problems {
		if !slices.Contains(m.complained, text) {
			m.journal.Record(events.Event{Verb: events.Failed, Reason: text})
		}
	}
	m.complained = problems
}

func sameNetwork(a, b overlay.Network) bool {
	return a.VNI == b.VNI && a.Name == b.Name && a.Encrypted == b.Encrypted && slices.EqualFunc(a.Members, b.Members, func(x, y overlay.Member) bool {
		return x.Addr == y.Addr && x.MAC == y.MAC && x.NIC == y.NIC && sameHost(x.Host, y.Host)
	})
}

func sameHost(a, b *overlay.Host) bool {
	return a == b || a.Name == b.Name && slices.Equal(a.Addrs, b.Addrs) && a.Port == b.Port && a.Self == b.Self && a.Linux == b.Linux &&
		a.Features == b.Features && a.SourcePorts.Equal(b.SourcePorts) && a.Key == b.Key && a.TunnelPort == b.TunnelPort
}
