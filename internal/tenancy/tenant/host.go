package tenant

import (
	"encoding/base64"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/printable"
)

// A Host is a machine with members of networks. A daemon writes the Host of its own machine. An operator declares
// only hosts of type linux: machines with a vxlan device of the kernel, which enforce no policy.
type Host struct {
	Metadata Metadata `json:"metadata"`
	Spec     HostSpec `json:"spec"`
}

type HostSpec struct {
	// Type is linux for a host that an operator declares; a daemon writes vrdma. Default: vrdma.
	Type HostType `json:"type,omitempty"`
	// Address is the host's address in the underlay.
	Address netip.Addr `json:"address,omitzero"`
	// Addresses are at most one IPv4 and one IPv6 address in the underlay, instead of address.
	//
	// In a World, and as a daemon writes it, all addresses are here, IPv4 first.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Port is the UDP port for VXLAN. Default: 4789.
	Port int `json:"port,omitempty"`
	// PublicKey is the host's WireGuard public key. Without it the host cannot be in an encrypted network.
	PublicKey PublicKey `json:"publicKey,omitzero"`
	// TunnelPort is the UDP port for WireGuard. Default: 51820.
	TunnelPort int `json:"tunnelPort,omitempty"`

	// SourcePorts are the UDP ports from which the host sends VXLAN; the daemon writes them. Other hosts drop datagrams from
	// other ports, because a user of the host has forged them.
	SourcePorts []uint16 `json:"sourcePorts,omitempty"`
	// Version is that of the daemon, which writes it.
	Version string `json:"version,omitempty"`
	// Features are the protocol extensions between vrdma hosts; the daemon writes them.
	Features uint32 `json:"features,omitempty"`
	// Capacity is what the host has; the daemon writes it.
	Capacity Capacity `json:"capacity,omitzero"`
}

// Capacity is what a host has.
type Capacity struct {
	// Processors is their number.
	Processors int `json:"processors,omitempty"`
	// Memory is what all programs together may register, in bytes.
	Memory Bytes `json:"memory,omitempty"`
	// MTU is that of the underlay.
	MTU int `json:"mtu,omitempty"`
}

// mostVersion bounds the bytes of a version.
const mostVersion = 256

// mostSourcePorts bounds the source ports of a host, which a receiver searches for every batch of packets.
const mostSourcePorts = 64

// A HostType says which implementation of VXLAN a host has: vrdma, or the kernel's (linux).
type HostType string

const (
	HostVRDMA HostType = "vrdma"
	HostLinux HostType = "linux"
)

// Linux reports whether the host has type linux. Such a host enforces no policy.
func (o *Host) Linux() bool { return o.Spec.Type == HostLinux }

// normalHost returns a copy of o in the form of a World: all addresses are in Addresses, IPv4 first.
func normalHost(o *Host) *Host {
	copied := *o
	copied.Spec.Addresses = slices.Clone(o.Spec.addresses())
	slices.SortFunc(copied.Spec.Addresses, netip.Addr.Compare)
	copied.Spec.Address = netip.Addr{}
	return &copied
}

// addresses returns address as a list, or addresses if address is not set.
func (s *HostSpec) addresses() []netip.Addr {
	if s.Address.IsValid() {
		return []netip.Addr{s.Address}
	}
	return s.Addresses
}

func (c *checker) host(s *HostSpec) {
	if s.Address.IsValid() && len(s.Addresses) > 0 {
		c.wrong("spec.address", "%s, and addresses, too: write one of the two", s.Address)
		return
	}
	if len(s.addresses()) == 0 {
		c.wrong("spec", "has no address: write address: with the one at which other hosts reach it")
	}
	var families [2]bool
	for i, a := range s.addresses() {
		field := "spec.address"
		if !s.Address.IsValid() {
			field = fmt.Sprintf("spec.addresses[%d]", i)
		}
		family := 0
		if a.Is6() {
			family = 1
		}
		switch {
		case !a.IsValid() || a.Is4In6() || a.Zone() != "" || !ordinary(a):
			c.wrong(field, "%s cannot be the address of a host: write the one at which other hosts reach it", a)
		case families[family]:
			c.wrong(field, "%s is the second address of its family: a host has one IPv4 and one IPv6 address at most", a)
		}
		families[family] = true
	}
	if s.Port < 0 || s.Port > 65535 {
		c.wrong("spec.port", "%d is not a UDP port: it is from 1 to 65535; leave it out for 4789", s.Port)
	}
	if s.TunnelPort < 0 || s.TunnelPort > 65535 {
		c.wrong("spec.tunnelPort", "%d is not a UDP port: it is from 1 to 65535; leave it out for 51820", s.TunnelPort)
	}
	if len(s.SourcePorts) > mostSourcePorts {
		c.wrong("spec.sourcePorts", "%d are too many: a daemon has at most %d", len(s.SourcePorts), mostSourcePorts)
	}
	if len(s.Version) > mostVersion || !printable.Is(s.Version) {
		c.wrong("spec.version", "%.*q is not a version: want at most %d printable characters", mostVersion, s.Version, mostVersion)
	}
	c.count("spec.capacity.processors", s.Capacity.Processors, mostCount)
	c.count("spec.capacity.mtu", s.Capacity.MTU, mostCount)
	if s.Type == HostLinux && (len(s.SourcePorts) > 0 || s.Version != "" || s.Features != 0 || s.Capacity != (Capacity{})) {
		c.wrong("spec", "version, features, capacity and sourcePorts are of hosts that run vrdma: leave them out")
	}
}

// Check returns the errors of a Host that a daemon has written; nil if it is valid.
func (o *Host) Check() error { return check(o).err() }

func (b *builder) putHost(p *put, o *Host) {
	if !o.Linux() {
		b.wrong(p, "spec.type", "a host that runs vrdma is written by its daemon, which has its name from --host-name: declare others, with type: linux")
		return
	}
	for _, other := range b.next.objects {
		h, is := other.(*Host)
		if !is || h.Metadata.Name == o.Metadata.Name {
			continue
		}
		for _, a := range o.Spec.Addresses {
			if slices.Contains(h.Spec.Addresses, a) {
				b.wrong(p, "spec", "%s is the address of %s: correct one of them", a, h.Key())
			}
		}
	}
	if p.bad && b.kept {
		return
	}
	b.insert(p)
}

// outsiders checks NICs on Linux hosts: those of the change, those on its hosts, and those of its
// networks.
func (b *builder) outsiders() {
	for _, p := range b.puts {
		if p.bad {
			continue
		}
		switch o := p.made.(type) {
		case *NIC:
			if field, why := b.next.unfitOutside(o); why != "" {
				b.wrong(p, field, "%s", why)
				if b.kept {
					b.remove(o.Key())
				}
			}
		case *Host:
			for _, k := range b.next.nicsOn(o.Metadata.Name) {
				b.unfitMember(p, "spec", k)
			}
		case *Network:
			for _, n := range b.next.members(o.Key()) {
				b.unfitMember(p, "spec.encryption", n.Key())
			}
		}
	}
}

// unfitMember adds an error about a NIC that is not in the change, and that the change makes invalid.
func (b *builder) unfitMember(p *put, field string, k Key) {
	if b.byKey[k] != nil || b.kept {
		return
	}
	if _, why := b.next.unfitOutside(b.next.NIC(k.Tenant, k.Name)); why != "" {
		b.wrong(p, field, "%s would be wrong: %s", k, why)
	}
}

// unfitOutside returns an error of a NIC on a Linux host, or of the MAC of a NIC on a host that runs vrdma.
func (w *World) unfitOutside(n *NIC) (field, why string) {
	h, s := w.Host(n.Spec.Host), &n.Spec
	if h == nil {
		if s.MAC != (MAC{}) {
			return "spec.mac", fmt.Sprintf("%s: only NICs of declared Linux hosts have one: declare Host %s with type: linux, or leave it out", s.MAC, cmpName(s.Host))
		}
		return "", ""
	}
	network := w.NetworkOf(n)
	switch {
	case network == nil:
		return "", ""
	case network.way() != WayVXLAN:
		return "spec.host", fmt.Sprintf("%s runs Linux, and %s has way %s: only networks with way vxlan reach it", h.Key(), network.Key(), network.way())
	case network.Spec.Encryption && h.Spec.PublicKey == (PublicKey{}):
		return "spec.host", fmt.Sprintf("%s is encrypted, and %s has no tunnel: set up WireGuard there and write publicKey in the spec of the host, or choose another network", network.Key(), h.Key())
	case s.Rate != (Rate{}), s.Guarantee != 0, s.Class != "", s.Limits != (Limits{}), !s.Open.empty():
		return "spec", fmt.Sprintf("%s runs Linux and enforces nothing: leave out rate, guarantee, class, limits and open", h.Key())
	}
	return "", ""
}

func cmpName(host string) string {
	if host == "" {
		return "NAME"
	}
	return host
}

func (w *Who) empty() bool {
	return len(w.UIDs)+len(w.GIDs) == 0 && w.Container == "" && w.Namespace == ""
}

// nicsOn are the NICs that are pinned to a host, in order.
func (w *World) nicsOn(host string) (list []Key) {
	for k, o := range w.objects {
		if n, is := o.(*NIC); is && n.Spec.Host == host {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, Key.Compare)
	return list
}

// A MAC is an Ethernet address; a file says 02:56:0a:01:00:07.
type MAC [6]byte

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m *MAC) UnmarshalText(text []byte) error {
	a, err := net.ParseMAC(string(text))
	if err != nil || len(a) != len(m) || a[0]&1 != 0 || MAC(a) == (MAC{}) {
		return fmt.Errorf("%q is not the Ethernet address of a device: write it like 02:56:0a:01:00:07, as ip link show prints it", text)
	}
	*m = MAC(a)
	return nil
}

// A PublicKey is WireGuard's; a file has it as wg pubkey prints it.
type PublicKey [32]byte

func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

func (k *PublicKey) UnmarshalText(text []byte) error {
	b, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil || len(b) != len(k) {
		return fmt.Errorf("%q is not a public key: write what wg pubkey prints, 44 letters", text)
	}
	*k = PublicKey(b)
	return nil
}

// A Duration is a time span; a file says 90s, 5m, 1h.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a time span: write it like 90s, 5m or 1h", text)
	}
	*d = Duration(v)
	return nil
}
