package netlink

import "net/netip"

// Source is the data that one requesting program may see.
type Source interface {
	Device() Device
	// Port returns the device's only port.
	Port() Port
	// Chardev returns the device node of an interface ("uverbs", "rdma_cm").
	Chardev(name string) (Chardev, bool)
	// Counters returns the counters of the port.
	Counters() []Counter
	// Counts returns how many objects of each kind the program may see.
	Counts() Counts
	// Resources calls yield with the objects of a kind that the program may see, in batches, until yield returns false.
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
	NetDev           string // empty: none that the program can see
	NetDevIndex      uint32
}

// A Chardev is a device node.
type Chardev struct {
	Name         string
	ABI          uint64
	Major, Minor uint32
	OfDevice     bool // it belongs to a device, whose index the request must name
}

// A Counter is a counter of the port.
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

// A Resource is an object. Its kind decides which fields matter.
type Resource struct {
	ID      uint32 // identifier: for a queue pair its number
	Pid     uint32 // process ID of its program, in the requesting program's pid namespace
	Context uint32 // the open device to which it belongs
	PD      uint32
	Users   uint64
	CQE     uint32
	Length  uint64

	Port              uint32 // 0: none yet
	QPN, RemoteQPN    uint32 // in an identifier; 0: none
	RecvPSN, SendPSN  uint32
	Type, State, Path uint8
	Connected         bool // a queue pair with a peer (RC, UC)
	PortSpace         uint32
	Src, Dst          netip.AddrPort
	QPs               []uint32 // queue pairs that use a shared receive queue
}
