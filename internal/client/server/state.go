package server

import (
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
)

// This file has the state of a Server as data; package state has the rules for the structs. freeze.go writes it, thaw.go
// reads it. What a listener itself consists of is not there: the next daemon makes its listeners from its own
// configuration and store, and finds these by their paths.
//
// Tools (vrdma status, top, trace, pcap …) are not there either: their connections end.

// An FD names a descriptor that travels beside the state: its index there plus one. 0 is none.
type FD uint32

// State is the state of a Server.
type State struct {
	NICs      []NICState        `cbor:"1,keyasint,omitempty"`
	Listeners []ListenerState   `cbor:"2,keyasint,omitempty"`
	Names     map[uint64]string `cbor:"3,keyasint,omitempty"` // of workloads, by cookie
	Tools     []FD              `cbor:"4,keyasint,omitempty"` // connections at the control socket that have not said hello
}

// NICState is the state of a NIC that belongs to no session.
type NICState struct {
	Name    string           `cbor:"1,keyasint,omitempty"`
	Device  nic.NICState     `cbor:"2,keyasint,omitempty"`
	Manager *rdmacm.CMAState `cbor:"3,keyasint,omitempty"`
	Before  []byte           `cbor:"4,keyasint,omitempty"` // registry.NIC's Before, as JSON
}

// ListenerState is the state of a listener, and of the connections there.
type ListenerState struct {
	Socket    string            `cbor:"1,keyasint,omitempty"`
	LastID    uint64            `cbor:"2,keyasint,omitempty"` // of sessions
	Ended     map[uint64]string `cbor:"3,keyasint,omitempty"` // workloads that have ended, and their names
	Processes []ProcessState    `cbor:"4,keyasint,omitempty"`
	Netlink   []ConnState       `cbor:"5,keyasint,omitempty"`
	New       []FD              `cbor:"6,keyasint,omitempty"` // connections that have not said hello
	Clients   []uint64          `cbor:"7,keyasint,omitempty"` // likewise, of programs in a virtual machine: ClientEnd.Number
}

// ConnState is a connection and what its client said of itself.
type ConnState struct {
	Socket  FD     `cbor:"1,keyasint,omitempty"`
	Program string `cbor:"2,keyasint,omitempty"`
	Label   string `cbor:"3,keyasint,omitempty"`
	Since   int64  `cbor:"4,keyasint,omitempty"` // Unix time in nanoseconds
	Client  uint64 `cbor:"5,keyasint,omitempty"` // ClientEnd.Number; not 0: the connection is in the state of its virtual machine
}

// ProcessState is the state of a process.
type ProcessState struct {
	Conn      ConnState           `cbor:"1,keyasint,omitempty"`
	Token     protocol.Token      `cbor:"2,keyasint,omitempty"`
	Space     memory.SpaceState   `cbor:"3,keyasint,omitempty"`
	Files     []FD                `cbor:"4,keyasint,omitempty"` // of Space
	Apart     string              `cbor:"5,keyasint,omitempty"` // why foreign memory cannot be reached
	Workload  uint64              `cbor:"6,keyasint,omitempty"`
	Container string              `cbor:"7,keyasint,omitempty"`
	Manager   *rdmacm.ClientState `cbor:"8,keyasint,omitempty"`
	Sessions  []SessionState      `cbor:"9,keyasint,omitempty"`
	Channels  []ChannelState      `cbor:"10,keyasint,omitempty"`
	Faults    string              `cbor:"11,keyasint,omitempty"` // rules of vrdma run --fault; they count anew
	Moves     bool                `cbor:"12,keyasint,omitempty"` // its library can let go of the daemon
}

// SessionState is the state of an open device.
type SessionState struct {
	Conn     ConnState            `cbor:"1,keyasint,omitempty"`
	ID       uint64               `cbor:"2,keyasint,omitempty"`
	Since    int64                `cbor:"3,keyasint,omitempty"` // Unix time in nanoseconds
	Arena    FD                   `cbor:"4,keyasint,omitempty"` // 0: the pages of a virtual machine
	Doorbell FD                   `cbor:"5,keyasint,omitempty"`
	Async    SinkState            `cbor:"6,keyasint,omitempty"`
	Sinks    map[uint32]SinkState `cbor:"7,keyasint,omitempty"` // by channel
	Device   *nic.SessionState    `cbor:"8,keyasint,omitempty"`
	Mail     MailState            `cbor:"9,keyasint,omitempty"`
	Commands uint64               `cbor:"10,keyasint,omitempty"`
	Told     bool                 `cbor:"11,keyasint,omitempty"` // the log has reported memory that cannot be reached
	Opened   bool                 `cbor:"12,keyasint,omitempty"` // GET_CONTEXT has succeeded
}

// ChannelState is the state of an event channel of rdma_cm.
type ChannelState struct {
	Conn   ConnState `cbor:"1,keyasint,omitempty"`
	ID     uint64    `cbor:"2,keyasint,omitempty"`
	Name   uint32    `cbor:"3,keyasint,omitempty"`
	Signal SinkState `cbor:"4,keyasint,omitempty"`
	Mail   MailState `cbor:"5,keyasint,omitempty"`
	Ahead  bool      `cbor:"6,keyasint,omitempty"` // the channel gives answers ahead
}

// SinkState is the descriptors of an eventfile.Socket, or the number of a Sink.
type SinkState struct {
	Own    FD     `cbor:"1,keyasint,omitempty"`
	Peer   FD     `cbor:"2,keyasint,omitempty"`
	Number uint32 `cbor:"3,keyasint,omitempty"` // 0: it is the descriptors
}

// MailState is the state of a mailbox. It is shut.
type MailState struct {
	Wanted bool `cbor:"1,keyasint,omitempty"`
	Ahead  bool `cbor:"2,keyasint,omitempty"`
	Served int  `cbor:"3,keyasint,omitempty"`
	File   FD   `cbor:"4,keyasint,omitempty"` // 0: there is no mailbox yet
}
