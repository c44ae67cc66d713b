package tenant

import "net/netip"

// APIVersion is that of every object.
const APIVersion = "vrdma.io/v1"

// DefaultTenant is the name of the tenant that is there when nothing is declared. Nobody can
// declare one of that name.
const DefaultTenant = "default"

// A Kind is a kind of object, as files and the command line spell it.
type Kind string

const (
	KindTenant  Kind = "Tenant"
	KindNetwork Kind = "Network"
	KindNIC     Kind = "NIC"
	KindPolicy  Kind = "Policy"
	KindHost    Kind = "Host"
)

// A Key names an object: kinds, and tenants, have names of their own.
type Key struct {
	Kind   Kind   `json:"kind"`
	Tenant string `json:"tenant,omitempty"` // empty for a Tenant and a Host
	Name   string `json:"name"`             // a DNS label; of a Host a host's name
}

// Metadata is what all objects have.
type Metadata struct {
	Name   string            `json:"name"`
	Tenant string            `json:"tenant,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`

	from source // of what Parse returns; a world has none
}

// An Object is a *Tenant, *Network, *NIC, *Policy or *Host. Objects of a World are not changed.
type Object interface {
	Key() Key
	Meta() *Metadata
}

// A Tenant owns networks, NICs and policies.
type Tenant struct {
	Metadata Metadata   `json:"metadata"`
	Spec     TenantSpec `json:"spec"`
}

type TenantSpec struct {
	// Weight is its share of the daemon where others want it too; 0 means 1.
	Weight int   `json:"weight,omitempty"`
	Quota  Quota `json:"quota,omitzero"`
	// Rate caps all of its NICs together.
	Rate Rate `json:"rate,omitzero"`
	// Administrators may change its NICs and policies, within its quota.
	Administrators Who `json:"administrators,omitzero"`
	// Namespaces are those of Kubernetes whose pods are the tenant's.
	Namespaces []string `json:"namespaces,omitempty"`
}

// A Quota is how much a tenant may have; 0 is no limit of its own.
type Quota struct {
	NICs               int   `json:"nics,omitempty"`
	Devices            int   `json:"devices,omitempty"` // open at a time
	QueuePairs         int   `json:"queuePairs,omitempty"`
	CompletionQueues   int   `json:"completionQueues,omitempty"`
	Rings              Bytes `json:"rings,omitempty"`  // bytes of queues
	Memory             Bytes `json:"memory,omitempty"` // registered bytes
	Connections        int   `json:"connections,omitempty"`
	Commands           int   `json:"commands,omitempty"`           // a second
	ConnectionRequests int   `json:"connectionRequests,omitempty"` // a second
}

// A Rate caps what leaves and what comes in; 0 is no cap.
type Rate struct {
	Out      BitRate `json:"out,omitempty"`
	In       BitRate `json:"in,omitempty"`
	Messages struct {
		Out int `json:"out,omitempty"` // a second
		In  int `json:"in,omitempty"`
	} `json:"messages,omitzero"`
	// Burst is how much may pass at once after a pause; 0: one millisecond of the rate, and
	// 64 KiB at least.
	Burst Bytes `json:"burst,omitempty"`
}

// Who names users of the machine.
type Who struct {
	UIDs []int `json:"uids,omitempty"`
	GIDs []int `json:"gids,omitempty"`
	// For a NIC only: by the control group's path, as a prefix, and by the network namespace's
	// path. Each one that is given has to hold.
	Container string `json:"container,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// A Network is where NICs reach each other. Its addresses mean nothing outside of it.
type Network struct {
	Metadata Metadata    `json:"metadata"`
	Spec     NetworkSpec `json:"spec"`
}

type NetworkSpec struct {
	VNI     uint32         `json:"vni,omitempty"` // 0: allocated
	Subnets []netip.Prefix `json:"subnets,omitempty"`
	MTU     int            `json:"mtu,omitempty"`     // of packets inside; 0: what the underlay leaves
	Default Verdict        `json:"default,omitempty"` // between its NICs, where no policy says: allow
	Way     Way            `json:"way,omitempty"`     // vxlan
	// Encryption: its packets go through tunnels between hosts.
	Encryption bool `json:"encryption,omitempty"`
}

// A Way is how a network reaches other hosts.
type Way string

const (
	WayVXLAN     Way = "vxlan"
	WayHost      Way = "host"
	WayNamespace Way = "namespace"
)

// A Verdict is allow or deny.
type Verdict string

const (
	Allow Verdict = "allow"
	Deny  Verdict = "deny"
)

// A NIC is one virtual NIC.
type NIC struct {
	Metadata Metadata `json:"metadata"`
	Spec     NICSpec  `json:"spec"`
}

type NICSpec struct {
	Network string `json:"network"`
	// Address is one address, Addresses are one of each family; a family that the network has
	// and that is not given is allocated if neither is. In a World all of them, the allocated ones
	// too, are in Addresses, IPv4 first.
	Address   netip.Addr   `json:"address,omitzero"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	Host      string       `json:"host,omitempty"` // empty is anywhere
	// MAC is that of the device of a Linux host; not given: the one that follows from its first
	// address. Other NICs have none.
	MAC  MAC  `json:"mac,omitzero"`
	Open Who  `json:"open,omitzero"` // who may open it
	Rate Rate `json:"rate,omitzero"`
	// Guarantee is what it has whatever others do.
	Guarantee BitRate `json:"guarantee,omitempty"`
	// Class latency is served first; needs a rate.
	Class      Class       `json:"class,omitempty"`
	Limits     Limits      `json:"limits,omitzero"`
	Types      []QPType    `json:"types,omitempty"`      // empty: all
	Operations []Operation `json:"operations,omitempty"` // empty: all
}

// A Class says how a NIC is served.
type Class string

const (
	ClassBulk    Class = "bulk" // the default
	ClassLatency Class = "latency"
)

// Limits are how many objects of a kind one opened device may have; 0 leaves the daemon's.
type Limits struct {
	PDs      int   `json:"pds,omitempty"`
	CQs      int   `json:"cqs,omitempty"`
	QPs      int   `json:"qps,omitempty"`
	MRs      int   `json:"mrs,omitempty"`
	MWs      int   `json:"mws,omitempty"`
	SRQs     int   `json:"srqs,omitempty"`
	AHs      int   `json:"ahs,omitempty"`
	Channels int   `json:"channels,omitempty"`
	Memory   Bytes `json:"memory,omitempty"`
}

// A QPType is a type of queue pair.
type QPType string

const (
	RC QPType = "rc"
	UC QPType = "uc"
	UD QPType = "ud"
)

// An Operation is what one side does to the other; bind and flush go with write.
type Operation string

const (
	Send   Operation = "send"
	Write  Operation = "write"
	Read   Operation = "read"
	Atomic Operation = "atomic"
)

// A Policy allows and denies. Deny wins. An allow list makes the NICs that the policy is about
// refuse everything else in the directions that it names.
type Policy struct {
	Metadata Metadata   `json:"metadata"`
	Spec     PolicySpec `json:"spec"`
}

type PolicySpec struct {
	NICs  Selector `json:"nics"`
	Allow []Rule   `json:"allow,omitempty"`
	Deny  []Rule   `json:"deny,omitempty"`
	// MaxStaleness is how old what is known of the store may be for new connections of these
	// NICs; 0: of any age.
	MaxStaleness Duration `json:"maxStaleness,omitempty"`
}

// A Selector is the NICs of a network that have a name, or all of the labels. An empty one is
// every NIC of the tenant.
type Selector struct {
	Network string            `json:"network,omitempty"`
	Names   []string          `json:"names,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// A Rule matches a connection. What it leaves out matches everything.
type Rule struct {
	Direction  Direction   `json:"direction,omitempty"` // empty: both
	Peer       Peer        `json:"peer,omitzero"`
	Service    *Service    `json:"service,omitempty"`
	Types      []QPType    `json:"types,omitempty"`
	Operations []Operation `json:"ops,omitempty"`
}

// A Direction is that of the connection: who asks for it.
type Direction string

const (
	In  Direction = "in"
	Out Direction = "out"
)

// A Peer is NICs of the same network: each field that is given has to hold.
type Peer struct {
	NIC    string            `json:"nic,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	Prefix netip.Prefix      `json:"prefix,omitzero"`
	// Network has to be the NICs' own: other networks cannot be reached yet.
	Network string `json:"network,omitempty"`
}

// A Service is what the connection is to: ports of rdma_cm's port space, or, in a file the word
// manual, a queue pair that was brought up without rdma_cm.
type Service struct {
	Manual bool        `json:"-"`
	Space  string      `json:"space,omitempty"` // tcp, udp, ib
	Ports  []PortRange `json:"ports,omitempty"` // 7471, "18000-18999"
}

// A PortRange is ports from First to Last.
type PortRange struct{ First, Last uint64 }

func (o *Tenant) Key() Key  { return Key{Kind: KindTenant, Name: o.Metadata.Name} }
func (o *Network) Key() Key { return Key{KindNetwork, o.Metadata.Tenant, o.Metadata.Name} }
func (o *NIC) Key() Key     { return Key{KindNIC, o.Metadata.Tenant, o.Metadata.Name} }
func (o *Policy) Key() Key  { return Key{KindPolicy, o.Metadata.Tenant, o.Metadata.Name} }
func (o *Host) Key() Key    { return Key{Kind: KindHost, Name: o.Metadata.Name} }

func (o *Tenant) Meta() *Metadata  { return &o.Metadata }
func (o *Network) Meta() *Metadata { return &o.Metadata }
func (o *NIC) Meta() *Metadata     { return &o.Metadata }
func (o *Policy) Meta() *Metadata  { return &o.Metadata }
func (o *Host) Meta() *Metadata    { return &o.Metadata }
