package tenant

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/device/fault"
)

// APIVersion is that of every object.
const APIVersion = "vrdma.io/v1"

// DefaultTenant is the tenant of the NIC that exists when nothing is declared. The name is reserved.
const DefaultTenant = "default"

// A Kind is a kind of object, as files and the command line spell it.
type Kind string

const (
	KindTenant  Kind = "Tenant"
	KindNetwork Kind = "Network"
	KindNIC     Kind = "NIC"
	KindPolicy  Kind = "Policy"
	KindHost    Kind = "Host"
	KindFault   Kind = "Fault"
)

// A Key identifies an object. Names are unique per kind and tenant.
type Key struct {
	Kind   Kind   `json:"kind"`
	Tenant string `json:"tenant,omitempty"` // empty for a Tenant and a Host
	Name   string `json:"name"`             // a DNS label; of a Host a host's name
}

// Metadata identifies an object.
type Metadata struct {
	// Name is a DNS label: at most 63 of a-z, 0-9 and "-". It is unique among the objects of its kind and tenant.
	Name string `json:"name"`
	// Tenant owns the object; a Tenant and a Host have none. "default" is reserved, but for a Fault of the default NIC.
	Tenant string `json:"tenant,omitempty"`
	// Labels are names and values that policies and `vrdma get -l` select by.
	Labels map[string]string `json:"labels,omitempty"`

	from source // of what Parse returns; a world has none
}

// An Object is a *Tenant, *Network, *NIC, *Policy, *Host or *Fault. Objects of a World are not changed.
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
	// Weight is the tenant's share of the daemon's time relative to other tenants that want it, from 1 to 10000. Default: 1.
	Weight int `json:"weight,omitempty"`
	// Quota limits what the tenant's NICs and programs hold together. Default: no limit.
	Quota Quota `json:"quota,omitzero"`
	// Rate caps all of the tenant's NICs together. Default: no cap.
	Rate Rate `json:"rate,omitzero"`
	// Administrators may change the tenant's NICs and policies within its quota. Default: nobody.
	Administrators Who `json:"administrators,omitzero"`
	// Namespaces are the Kubernetes namespaces whose pods belong to the tenant. A namespace belongs to one tenant.
	Namespaces []string `json:"namespaces,omitempty"`
}

// A Quota limits a tenant; 0 is no limit.
type Quota struct {
	// NICs is the number of declared NICs.
	NICs int `json:"nics,omitempty"`
	// Devices is the number of devices that are open at a time.
	Devices int `json:"devices,omitempty"`
	// QueuePairs is the number of queue pairs of all programs.
	QueuePairs int `json:"queuePairs,omitempty"`
	// CompletionQueues is the number of completion queues of all programs.
	CompletionQueues int `json:"completionQueues,omitempty"`
	// Rings is the size of all queues, in bytes.
	Rings Bytes `json:"rings,omitempty"`
	// Memory is the size of registered memory, in bytes.
	Memory Bytes `json:"memory,omitempty"`
	// Connections is the number of rdma_cm connections.
	Connections int `json:"connections,omitempty"`
	// Commands is the number of verbs and rdma_cm commands per second.
	Commands int `json:"commands,omitempty"`
	// ConnectionRequests is the number of connection requests per second.
	ConnectionRequests int `json:"connectionRequests,omitempty"`
}

// A Rate caps traffic in both directions; 0 is no cap.
type Rate struct {
	// Out caps payload that leaves, in bits per second.
	Out BitRate `json:"out,omitempty"`
	// In caps payload that arrives, in bits per second.
	In       BitRate `json:"in,omitempty"`
	Messages struct {
		// Out caps messages that leave, per second.
		Out int `json:"out,omitempty"`
		// In caps messages that arrive, per second.
		In int `json:"in,omitempty"`
	} `json:"messages,omitzero"`
	// Burst is the size of what may pass at once after a pause, in bytes. Default: 1 ms of the rate, at least 64 KiB.
	Burst Bytes `json:"burst,omitempty"`
}

// Who names users of the machine. A user or a group is enough. Container and Namespace are for a NIC only.
type Who struct {
	// UIDs are numeric user IDs.
	UIDs []int `json:"uids,omitempty"`
	// GIDs are numeric group IDs.
	GIDs []int `json:"gids,omitempty"`
	// Container is a control group's path, or its beginning; it must match in addition.
	Container string `json:"container,omitempty"`
	// Namespace is the path of a network namespace; it must match in addition.
	Namespace string `json:"namespace,omitempty"`
}

// A Network connects NICs of a tenant. Its addresses are private to it.
type Network struct {
	Metadata Metadata    `json:"metadata"`
	Spec     NetworkSpec `json:"spec"`
}

type NetworkSpec struct {
	// VNI is the VXLAN network identifier, from 1 to 16777215, unique to the network. It cannot change. Default: allocated from 4096.
	VNI uint32 `json:"vni,omitempty"`
	// Subnets are IPv4 and IPv6 prefixes, /30 or /126 and larger; required with way vxlan. They do not overlap within the network; other networks may use the same.
	Subnets []netip.Prefix `json:"subnets,omitempty"`
	// MTU is that of packets inside the network. Default: what the underlay leaves.
	MTU int `json:"mtu,omitempty"`
	// Default is the verdict between its NICs where no policy decides: allow or deny. Default: allow.
	Default Verdict `json:"default,omitempty"`
	// Way is the path to other hosts: vxlan, host (the host's own network) or namespace (the container's own network). It cannot change. Default: vxlan.
	Way Way `json:"way,omitempty"`
	// Encryption sends the network's packets through WireGuard tunnels between hosts; only with way vxlan. Default: false.
	Encryption bool `json:"encryption,omitempty"`
}

// A Way is the path of a network to other hosts.
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
	// Network is a network of the same tenant; required. It cannot change.
	Network string `json:"network"`
	// Address is the NIC's only address. It cannot change. Default: one of each family of the network is allocated.
	Address netip.Addr `json:"address,omitzero"`
	// Addresses are at most one IPv4 and one IPv6 address, instead of address. They cannot change.
	//
	// In a World all addresses are here, also the allocated ones, IPv4 first.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Host is the name of the host that has the NIC. Default: anywhere, that is, on every host until one is used.
	Host string `json:"host,omitempty"`
	// MAC is the Ethernet address of a NIC on a host of type linux. Default: derived from the first address.
	MAC MAC `json:"mac,omitzero"`
	// Open names the users, container or namespace that may open the NIC. Default: the users that may open the daemon's socket (--mode).
	Open Who `json:"open,omitzero"`
	// Rate caps the NIC. Default: no cap.
	Rate Rate `json:"rate,omitzero"`
	// Guarantee is the rate that the NIC gets whatever others send, at most rate.out. Default: none.
	Guarantee BitRate `json:"guarantee,omitempty"`
	// Class is bulk or latency; latency is served first and requires rate.out. Default: bulk.
	Class Class `json:"class,omitempty"`
	// Limits bound the objects of one opened device. A value above the daemon's limit has no effect.
	Limits Limits `json:"limits,omitzero"`
	// Types are the queue pair types that may be created: rc, uc, ud. Default: all.
	Types []QPType `json:"types,omitempty"`
	// Operations are the operations that the NIC may do and accept: send, write, read, atomic. Default: all.
	Operations []Operation `json:"operations,omitempty"`
}

// A Class is the order in which the loop serves NICs.
type Class string

const (
	ClassBulk    Class = "bulk" // the default
	ClassLatency Class = "latency"
)

// Limits bound the objects of one opened device; 0 leaves the daemon's limit.
type Limits struct {
	// PDs is the number of protection domains.
	PDs int `json:"pds,omitempty"`
	// CQs is the number of completion queues.
	CQs int `json:"cqs,omitempty"`
	// QPs is the number of queue pairs.
	QPs int `json:"qps,omitempty"`
	// MRs is the number of memory regions.
	MRs int `json:"mrs,omitempty"`
	// MWs is the number of memory windows.
	MWs int `json:"mws,omitempty"`
	// SRQs is the number of shared receive queues.
	SRQs int `json:"srqs,omitempty"`
	// AHs is the number of address handles.
	AHs int `json:"ahs,omitempty"`
	// Channels is the number of completion channels.
	Channels int `json:"channels,omitempty"`
	// Memory is the size of registered memory, in bytes.
	Memory Bytes `json:"memory,omitempty"`
}

// A QPType is a type of queue pair.
type QPType string

const (
	RC QPType = "rc"
	UC QPType = "uc"
	UD QPType = "ud"
)

// An Operation is an RDMA operation; bind and flush belong to write.
type Operation string

const (
	Send   Operation = "send"
	Write  Operation = "write"
	Read   Operation = "read"
	Atomic Operation = "atomic"
)

// A Policy allows and denies connections between NICs of a network. Deny wins over allow.
type Policy struct {
	Metadata Metadata   `json:"metadata"`
	Spec     PolicySpec `json:"spec"`
}

type PolicySpec struct {
	// NICs selects the NICs that the policy applies to. Default: every NIC of the tenant.
	NICs Selector `json:"nics"`
	// Allow lists rules. The selected NICs refuse everything else in the directions that the rules name. A policy has allow, deny or both.
	Allow []Rule `json:"allow,omitempty"`
	// Deny lists rules; deny wins over every allow.
	Deny []Rule `json:"deny,omitempty"`
	// MaxStaleness is how long the store may be unreachable before new connections of these NICs are refused, for example 90s. Default: for ever.
	MaxStaleness Duration `json:"maxStaleness,omitempty"`
}

// A Selector matches NICs; every field that is given must match.
type Selector struct {
	// Network is the network of the NICs.
	Network string `json:"network,omitempty"`
	// Names are names of NICs; one of them must match.
	Names []string `json:"names,omitempty"`
	// Labels are labels that the NIC has, all of them.
	Labels map[string]string `json:"labels,omitempty"`
}

// A Rule matches a connection. A field that is left out matches everything.
type Rule struct {
	// Direction is out if the selected NIC asks for the connection, in if the peer does. Default: both.
	Direction Direction `json:"direction,omitempty"`
	// Peer matches the other NIC.
	Peer Peer `json:"peer,omitzero"`
	// Service is {space, ports} of rdma_cm, or the word manual: queue pairs that programs connect without rdma_cm.
	Service *Service `json:"service,omitempty"`
	// Types are queue pair types: rc, uc, ud.
	Types []QPType `json:"types,omitempty"`
	// Operations are send, write (with it bind, flush and atomic write), read and atomic.
	Operations []Operation `json:"ops,omitempty"`
}

// A Fault makes something of NICs fail on purpose, for tests.
type Fault struct {
	Metadata Metadata  `json:"metadata"`
	Spec     FaultSpec `json:"spec"`
}

type FaultSpec struct {
	// NICs selects the NICs that the fault applies to. Default: every NIC of the tenant. A Fault of tenant default applies to the default NIC and selects nothing.
	NICs Selector `json:"nics,omitzero"`
	// Rules are what fails, at most 32, in the language of `vrdma run --fault`: see [faults.md](faults.md).
	Rules []fault.Rule `json:"rules"`
}

// A Direction says which side asks for the connection.
type Direction string

const (
	In  Direction = "in"
	Out Direction = "out"
)

// A Peer matches NICs of the same network; every field that is given must match.
type Peer struct {
	// NIC is the name of a NIC.
	NIC string `json:"nic,omitempty"`
	// Labels are labels that the NIC has, all of them.
	Labels map[string]string `json:"labels,omitempty"`
	// Prefix contains the NIC's address.
	Prefix netip.Prefix `json:"prefix,omitzero"`
	// Network must be the selected NICs' own network: networks do not reach each other.
	Network string `json:"network,omitempty"`
}

// A Service is the target of a connection: ports of an rdma_cm port space or, written as the word manual, a queue pair
// that a program connects without rdma_cm.
type Service struct {
	Manual bool `json:"-"`
	// Space is a port space of rdma_cm: tcp, udp or ib.
	Space string `json:"space,omitempty"`
	// Ports are numbers and ranges, for example [7471, "18000-18999"].
	Ports []PortRange `json:"ports,omitempty"`
}

// A PortRange is ports from First to Last.
type PortRange struct{ First, Last uint64 }

func (o *Tenant) Key() Key  { return Key{Kind: KindTenant, Name: o.Metadata.Name} }
func (o *Network) Key() Key { return Key{KindNetwork, o.Metadata.Tenant, o.Metadata.Name} }
func (o *NIC) Key() Key     { return Key{KindNIC, o.Metadata.Tenant, o.Metadata.Name} }
func (o *Policy) Key() Key  { return Key{KindPolicy, o.Metadata.Tenant, o.Metadata.Name} }
func (o *Fault) Key() Key   { return Key{KindFault, o.Metadata.Tenant, o.Metadata.Name} }
func (o *Host) Key() Key    { return Key{Kind: KindHost, Name: o.Metadata.Name} }

func (o *Tenant) Meta() *Metadata  { return &o.Metadata }
func (o *Network) Meta() *Metadata { return &o.Metadata }
func (o *NIC) Meta() *Metadata     { return &o.Metadata }
func (o *Policy) Meta() *Metadata  { return &o.Metadata }
func (o *Fault) Meta() *Metadata   { return &o.Metadata }
func (o *Host) Meta() *Metadata    { return &o.Metadata }
