package netlink

import "net/netip"

// Source is what there is to tell, to the one program that asks.
type Source interface {
	Device() Device
	// Port is the device's only one.
	Port() Port
	// Chardev finds a node by the name of its interface ("uverbs", "rdma_cm").
	Chardev(name string) (Chardev, bool)
	// Counters are those of the port.
	Counters() []Counter
	// Counts is how many objects of each kind the asker may see.
	Counts() Counts
	// Resources calls yield with the objects of a kind that the asker may see, some at
	// a time, until it returns false.
	Resources(k Kind, yield func([]Resource) bool)
}

// Device describes the device.
type Device struct {
	Index          uint32
	Name           string
	Ports          uint32
	CapFlags       uint64
	NodeGUID       uint64 // in host byte order, as is the next
	SystemGUID     uint64
	NodeType       uint8
	Protocol       string
	UverbsDriverID uint32 // enum rdma_driver_id
}

// Port describes a port.
type Port struct {
	CapFlags         uint64
	State, PhysState uint8
	NetDev           string // empty: none that the asker can see
	NetDevIndex      uint32
}

// A Chardev is a device node.
type Chardev struct {
	Name         string
	ABI          uint64
	Major, Minor uint32
	OfDevice     bool // it belongs to a device, by whose index it has to be asked for
}

// A Counter of the port.
type Counter struct {
	Name  string
	Value uint64
}

// Kind is a kind of object.
type Kind uint8

// Kinds, in the order of `rdma resource show`.
const (
	PD Kind = iota
	CQ
	QP
	CMID
	MR
	Ctx
	SRQ
	kinds
)

// Counts is a number for each kind.
type Counts [kinds]uint64

// A Resource is an object. Which fields count depends on its kind.
type Resource struct {
	ID      uint32 // what it is found by: of a queue pair its number
	Pid     uint32 // of its program, as the asker counts
	Context uint32 // the open device that it belongs to
	PD      uint32
	Users   uint64
	CQE     uint32
	Length  uint64

	Port              uint32 // 0: none yet
	QPN, RemoteQPN    uint32 // of an identifier; 0: it has none
	RecvPSN, SendPSN  uint32
	Type, State, Path uint8
	Connected         bool // a queue pair with a peer: RC, UC
	PortSpace         uint32
	Src, Dst          netip.AddrPort
	QPs               []uint32 // that use a shared receive queue
}
