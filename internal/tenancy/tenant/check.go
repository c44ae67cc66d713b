package tenant

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/printable"
)

// check returns all errors of one object by itself.
func check(o Object) Errors {
	c := &checker{object: o}
	c.metadata(o.Meta(), o.Key().Kind)
	switch o := o.(type) {
	case *Tenant:
		c.tenant(&o.Spec)
	case *Network:
		c.network(&o.Spec)
	case *NIC:
		c.nic(&o.Spec)
	case *Policy:
		c.policy(&o.Spec)
	case *Host:
		c.host(&o.Spec)
	case *Fault:
		c.fault(o)
	}
	return c.errs
}

// A checker collects the errors of an object.
type checker struct {
	object Object
	errs   Errors
}

func (c *checker) wrong(field, format string, args ...any) {
	e := &Error{Key: c.object.Key(), Field: field, Text: fmt.Sprintf(format, args...)}
	c.object.Meta().from.locate(e)
	c.errs = append(c.errs, e)
}

var (
	dnsLabel   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey   = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
	hostName   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?$`)
)

// Valid reports whether an object can have this key.
func (k Key) Valid() bool {
	switch k.Kind {
	case KindHost:
		return hostName.MatchString(k.Name) && k.Tenant == ""
	case KindTenant:
		return dnsLabel.MatchString(k.Name) && k.Tenant == ""
	}
	return newObject(k.Kind) != nil && dnsLabel.MatchString(k.Name) && dnsLabel.MatchString(k.Tenant)
}

const isDNSLabel = "a name is a DNS label: at most 63 of a-z, 0-9 and -, neither first nor last a -"

func (c *checker) metadata(m *Metadata, kind Kind) {
	if kind != KindHost {
		c.name("metadata.name", m.Name)
	} else if !hostName.MatchString(m.Name) {
		c.wrong("metadata.name", "%q is not a host's name: write one like node-7 or node7.example.com", m.Name)
	}
	switch {
	case kind == KindHost && m.Tenant != "":
		c.wrong("metadata.tenant", "a Host belongs to no tenant: leave it out")
	case kind == KindHost:
	case kind == KindTenant && m.Tenant != "":
		c.wrong("metadata.tenant", "%q: a Tenant has no tenant: leave it out", m.Tenant)
	case kind == KindFault && m.Tenant == DefaultTenant: // the default NIC can fail, too
	case kind == KindTenant && m.Name == DefaultTenant, kind != KindTenant && m.Tenant == DefaultTenant:
		c.wrong("metadata", "tenant %q is reserved for programs that name no NIC: choose another name", DefaultTenant)
	case kind != KindTenant && m.Tenant == "":
		c.wrong("metadata", "says no tenant: write metadata: {name: %s, tenant: TENANT}", m.Name)
	case kind != KindTenant:
		c.name("metadata.tenant", m.Tenant)
	}
	c.labels("metadata.labels", m.Labels)
}

func (c *checker) name(field, name string) bool {
	switch {
	case name == "":
		c.wrong(field, "is missing: %s", isDNSLabel)
	case !dnsLabel.MatchString(name):
		c.wrong(field, "%q: %s", name, isDNSLabel)
	default:
		return true
	}
	return false
}

func (c *checker) labels(field string, labels map[string]string) {
	for k, v := range labels {
		if !labelKey.MatchString(k) {
			c.wrong(field, "%q cannot be the name of a label: write it like role or example.com/role", k)
		}
		if !labelValue.MatchString(v) {
			c.wrong(join(field, k), "%q cannot be the value of a label: at most 63 letters, digits, -, _ and .", v)
		}
	}
}

// count rejects numbers below 0, which Parse does not return but a store or another client may contain, and above most.
func (c *checker) count(field string, n, most int) {
	if n < 0 || n > most {
		c.wrong(field, "%d is not from 0 to %d", n, most)
	}
}

// Largest values. They are small enough that products in the schedule and the accounts do not overflow.
const (
	mostWeight = 10000
	mostCount  = 1<<31 - 1
	mostID     = 1<<32 - 2
)

func (c *checker) tenant(s *TenantSpec) {
	c.count("spec.weight", s.Weight, mostWeight)
	q := &s.Quota
	for _, limit := range []struct {
		name string
		n    int
	}{
		{"nics", q.NICs}, {"devices", q.Devices}, {"queuePairs", q.QueuePairs}, {"completionQueues", q.CompletionQueues},
		{"connections", q.Connections}, {"commands", q.Commands}, {"connectionRequests", q.ConnectionRequests},
	} {
		c.count("spec.quota."+limit.name, limit.n, mostCount)
	}
	c.rate("spec.rate", &s.Rate)
	c.who("spec.administrators", &s.Administrators)
	if s.Administrators.Container != "" || s.Administrators.Namespace != "" {
		c.wrong("spec.administrators", "can be users and groups only: write {uids: [...], gids: [...]}")
	}
	for i, name := range s.Namespaces {
		field := fmt.Sprintf("spec.namespaces[%d]", i)
		if c.name(field, name) && slices.Contains(s.Namespaces[:i], name) {
			c.wrong(field, "%q is there twice", name)
		}
	}
}

func (c *checker) rate(field string, r *Rate) {
	c.count(field+".messages.out", r.Messages.Out, mostCount)
	c.count(field+".messages.in", r.Messages.In, mostCount)
	if r.Burst != 0 && r.Out == 0 && r.In == 0 {
		c.wrong(field+".burst", "%s is a burst of no rate: say out or in, too", r.Burst)
	}
}

func (c *checker) who(field string, w *Who) {
	for i, id := range w.UIDs {
		c.count(fmt.Sprintf("%s.uids[%d]", field, i), id, mostID)
	}
	for i, id := range w.GIDs {
		c.count(fmt.Sprintf("%s.gids[%d]", field, i), id, mostID)
	}
	for name, path := range map[string]string{"container": w.Container, "namespace": w.Namespace} {
		if path != "" && (path[0] != '/' || !printable.Is(path)) {
			c.wrong(field+"."+name, "%q is not a path from the root: begin it with /", path)
		}
	}
}

// VNIs: 0 asks for one, which then is from firstVNI on, so that people can have the small ones.
const (
	lastVNI  = 1<<24 - 1
	firstVNI = 4096
)

func (c *checker) network(s *NetworkSpec) {
	vxlan := s.Way == "" || s.Way == WayVXLAN
	switch {
	case s.VNI > lastVNI:
		c.wrong("spec.vni", "%d is too large: a VNI is 1 to %d; leave it out to have one allocated", s.VNI, lastVNI)
	case s.VNI != 0 && !vxlan:
		c.wrong("spec.vni", "a network of way %s has no VNI: leave it out", s.Way)
	}
	if s.Way == WayNamespace && len(s.Subnets) > 0 {
		c.wrong("spec.subnets", "in a network of way namespace a NIC has the addresses of the container that it is in: leave subnets out")
	}
	if vxlan && len(s.Subnets) == 0 {
		c.wrong("spec", "has no subnets: write subnets: [10.1.0.0/24]")
	}
	if s.Encryption && !vxlan {
		c.wrong("spec.encryption", "a network of way %s is not encrypted: use way vxlan, or leave it out", s.Way)
	}
	c.subnets(s.Subnets)
	c.mtu(s)
}

func (c *checker) mtu(s *NetworkSpec) {
	least := 576
	for _, p := range s.Subnets {
		if p.Addr().Is6() {
			least = 1280
		}
	}
	if s.MTU != 0 && (s.MTU < least || s.MTU > 65535) {
		c.wrong("spec.mtu", "%d is not from %d to 65535; leave it out to have what the underlay leaves", s.MTU, least)
	}
}

func (c *checker) subnets(list []netip.Prefix) {
	for i, p := range list {
		field := fmt.Sprintf("spec.subnets[%d]", i)
		if why := improperSubnet(p); why != "" {
			c.wrong(field, "%s %s", p, why)
			continue
		}
		for _, q := range list[:i] {
			if p.Overlaps(q) {
				c.wrong(field, "%s overlaps %s of the same network: delete one of them", p, q)
			}
		}
	}
}

func (c *checker) nic(s *NICSpec) {
	if s.Network == "" {
		c.wrong("spec", "names no network: write network: NAME, of a network of the same tenant")
	} else {
		c.name("spec.network", s.Network)
	}
	c.addresses(s)
	if s.Host != "" && !hostName.MatchString(s.Host) {
		c.wrong("spec.host", "%q is not a host's name; leave it out for anywhere", s.Host)
	}
	c.who("spec.open", &s.Open)
	c.rate("spec.rate", &s.Rate)
	if s.Class == ClassLatency && s.Rate.Out == 0 {
		c.wrong("spec.class", "latency needs a rate, because it goes before all others: write rate: {out: 100Mbit}, or what it needs")
	}
	if s.Rate.Out != 0 && s.Guarantee > s.Rate.Out {
		c.wrong("spec.guarantee", "%s is more than the NIC's own rate.out, %s", s.Guarantee, s.Rate.Out)
	}
	for name, n := range map[string]int{
		"pds": s.Limits.PDs, "cqs": s.Limits.CQs, "qps": s.Limits.QPs, "mrs": s.Limits.MRs, "mws": s.Limits.MWs,
		"srqs": s.Limits.SRQs, "ahs": s.Limits.AHs, "channels": s.Limits.Channels,
	} {
		c.count("spec.limits."+name, n, mostCount)
	}
}

func (c *checker) addresses(s *NICSpec) {
	if s.Address.IsValid() && len(s.Addresses) > 0 {
		c.wrong("spec.address", "%s, and addresses, too: write one of the two", s.Address)
		return
	}
	var families [2]bool
	for i, a := range s.addresses() {
		field := s.addressField(i)
		family := 0
		if a.Is6() {
			family = 1
		}
		switch {
		case !a.IsValid() || a.Is4In6() || a.Zone() != "" || !ordinary(a):
			c.wrong(field, "%s cannot be the address of a NIC: choose one of the network's subnets", a)
		case families[family]:
			c.wrong(field, "%s is the second address of its family: a NIC has one IPv4 and one IPv6 address at most", a)
		}
		families[family] = true
	}
}

// Addresses returns the NIC's addresses, from spec.address or spec.addresses.
func (n *NIC) Addresses() []netip.Addr { return n.Spec.addresses() }

// addresses returns address as a list, or addresses if address is not set.
func (s *NICSpec) addresses() []netip.Addr {
	if s.Address.IsValid() {
		return []netip.Addr{s.Address}
	}
	return s.Addresses
}

// addressField returns the field that declares the i-th address.
func (s *NICSpec) addressField(i int) string {
	if s.Address.IsValid() {
		return "spec.address"
	}
	return fmt.Sprintf("spec.addresses[%d]", i)
}

func (c *checker) policy(s *PolicySpec) {
	if len(s.Allow) == 0 && len(s.Deny) == 0 {
		c.wrong("spec", "neither allows nor denies anything: write allow or deny, a list of rules")
	}
	if s.NICs.Network != "" {
		c.name("spec.nics.network", s.NICs.Network)
	}
	for i, name := range s.NICs.Names {
		c.name(fmt.Sprintf("spec.nics.names[%d]", i), name)
	}
	c.labels("spec.nics.labels", s.NICs.Labels)
	for i := range s.Allow {
		c.rule("spec.allow", i, s, &s.Allow[i])
	}
	for i := range s.Deny {
		c.rule("spec.deny", i, s, &s.Deny[i])
	}
}

// mostFaults is how many rules a Fault may have: the loop asks each of them about each packet.
const mostFaults = 32

func (c *checker) fault(o *Fault) {
	s := &o.Spec
	switch {
	case len(s.Rules) == 0:
		c.wrong("spec", "has no rules: write rules: [\"drop,probability=1%%\"]")
	case len(s.Rules) > mostFaults:
		c.wrong("spec.rules", "%d rules are too many: a Fault has up to %d", len(s.Rules), mostFaults)
	}
	if o.Metadata.Tenant == DefaultTenant && (s.NICs.Network != "" || len(s.NICs.Names) > 0 || len(s.NICs.Labels) > 0) {
		c.wrong("spec.nics", "tenant %s has one NIC: leave nics out", DefaultTenant)
	}
	if s.NICs.Network != "" {
		c.name("spec.nics.network", s.NICs.Network)
	}
	for i, name := range s.NICs.Names {
		c.name(fmt.Sprintf("spec.nics.names[%d]", i), name)
	}
	c.labels("spec.nics.labels", s.NICs.Labels)
}

func (c *checker) rule(list string, i int, s *PolicySpec, r *Rule) {
	// Fields are spelled only where something is wrong: there may be ten thousand rules.
	field := func(name string) string { return fmt.Sprintf("%s[%d].%s", list, i, name) }
	p := &r.Peer
	switch {
	case p.Network != "" && p.Network != s.NICs.Network:
		c.wrong(field("peer.network"), "%q is not the network of the policy's own NICs (spec.nics.network: %q): networks cannot reach each other yet", p.Network, s.NICs.Network)
	case strings.Contains(p.NIC, "/"):
		c.wrong(field("peer.nic"), "%q: NICs of other tenants and networks cannot be reached yet: write the name of a NIC of the same network", p.NIC)
	case p.NIC != "" && !dnsLabel.MatchString(p.NIC):
		c.wrong(field("peer.nic"), "%q: %s", p.NIC, isDNSLabel)
	}
	if len(p.Labels) > 0 {
		c.labels(field("peer.labels"), p.Labels)
	}
	if p.Prefix.IsValid() && p.Prefix != p.Prefix.Masked() {
		c.wrong(field("peer.prefix"), "%s has bits set behind its length: write %s", p.Prefix, p.Prefix.Masked())
	}
	if r.Service != nil {
		if wrong := r.Service.wrong(); wrong != "" {
			c.wrong(field("service"), "%s", wrong)
		}
	}
}
