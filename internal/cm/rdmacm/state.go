package rdmacm

import "vrdma.dev/vrdma/internal/cm"

// This file has the state of a CMA and its clients as data; package state has the rules for the structs. freeze.go writes it, thaw.go
// reads it. Some of it is not there, because it follows from the rest:
//
//   - a port and its owners: from the IDs that have it
//   - how many requests wait at a listener, and whether an ID's request is unread: from the unread events
//   - the answers that a client got in advance: they and their revisions are in the client's mailbox, which stays as it is
//   - the events on the shelf: they are the first unread events. The state has their numbers, and the mailbox says which of them the
//     client has taken since.

// CMAState is the state of a CMA that belongs to no client.
type CMAState struct {
	NextPort uint16          `cbor:"1,keyasint,omitempty"` // start of the search for a free port
	Turns    uint64          `cbor:"2,keyasint,omitempty"` // number of binds so far
	Manager  cm.ManagerState `cbor:"3,keyasint,omitempty"` // connections without an ID
}

// ClientState is the state of a Client.
type ClientState struct {
	Pid         int            `cbor:"1,keyasint,omitempty"`
	UID         int            `cbor:"2,keyasint,omitempty"`
	Program     string         `cbor:"3,keyasint,omitempty"`
	Established uint64         `cbor:"4,keyasint,omitempty"`
	Channels    []ChannelState `cbor:"5,keyasint,omitempty"`
	NextChannel uint32         `cbor:"6,keyasint,omitempty"`
	IDs         []IDState      `cbor:"7,keyasint,omitempty"`
	NextID      uint32         `cbor:"8,keyasint,omitempty"`
	Groups      []GroupState   `cbor:"9,keyasint,omitempty"`
	NextGroup   uint32         `cbor:"10,keyasint,omitempty"`
	Vacant      []VacantState  `cbor:"11,keyasint,omitempty"`
}

// ChannelState is the state of a Channel.
type ChannelState struct {
	Name   uint32       `cbor:"1,keyasint,omitempty"`
	Raised bool         `cbor:"2,keyasint,omitempty"` // its signal is raised
	Events []EventState `cbor:"3,keyasint,omitempty"` // unread ones, the first first
	Shelf  *ShelfState  `cbor:"4,keyasint,omitempty"` // nil: none
}

// ShelfState says which of a channel's events are on its shelf.
type ShelfState struct {
	Next uint64 `cbor:"1,keyasint,omitempty"` // number of the first event
	Laid uint64 `cbor:"2,keyasint,omitempty"` // number of the first event that is not on the shelf
}

// EventState is an unread event: struct rdma_ucm_event_resp.
type EventState struct {
	Of        uint32 `cbor:"1,keyasint,omitempty"` // the ID whose events_reported counts it
	Child     bool   `cbor:"2,keyasint,omitempty"` // ID is the number of the requested ID, which exists
	UID       uint64 `cbor:"3,keyasint,omitempty"`
	ID        uint32 `cbor:"4,keyasint,omitempty"`
	Event     uint32 `cbor:"5,keyasint,omitempty"`
	Status    uint32 `cbor:"6,keyasint,omitempty"`
	Param     []byte `cbor:"7,keyasint,omitempty"` // without the zeros at its end
	ECEVendor uint32 `cbor:"8,keyasint,omitempty"`
	ECEMod    uint32 `cbor:"9,keyasint,omitempty"`
}

// IDState is the state of an ID.
type IDState struct {
	Name       uint32        `cbor:"1,keyasint,omitempty"`
	Serial     uint32        `cbor:"2,keyasint,omitempty"`
	Channel    uint32        `cbor:"3,keyasint,omitempty"`
	UID        uint64        `cbor:"4,keyasint,omitempty"`
	Space      uint16        `cbor:"5,keyasint,omitempty"`
	QPType     uint8         `cbor:"6,keyasint,omitempty"`
	State      State         `cbor:"7,keyasint,omitempty"`
	Src        []byte        `cbor:"8,keyasint,omitempty"` // netip.AddrPort.MarshalBinary; empty: not valid
	Dst        []byte        `cbor:"9,keyasint,omitempty"`
	Bound      bool          `cbor:"10,keyasint,omitempty"` // has the port of Src
	Turn       uint64        `cbor:"11,keyasint,omitempty"` // order among the owners of the port
	Device     bool          `cbor:"12,keyasint,omitempty"`
	SGID       []byte        `cbor:"13,keyasint,omitempty"` // empty: zero
	DGID       []byte        `cbor:"14,keyasint,omitempty"`
	Reuse      bool          `cbor:"15,keyasint,omitempty"`
	AFOnly     bool          `cbor:"16,keyasint,omitempty"`
	AFOnlySet  bool          `cbor:"17,keyasint,omitempty"`
	TOS        uint8         `cbor:"18,keyasint,omitempty"`
	AckTimeout uint8         `cbor:"19,keyasint,omitempty"`
	Life       uint8         `cbor:"20,keyasint,omitempty"`
	Conn       *cm.ConnState `cbor:"21,keyasint,omitempty"`
	Orphaned   bool          `cbor:"22,keyasint,omitempty"` // Conn sends no more events to the ID
	Counted    bool          `cbor:"23,keyasint,omitempty"` // charged as a connection
	Up         bool          `cbor:"24,keyasint,omitempty"`
	PSN        uint32        `cbor:"25,keyasint,omitempty"`
	QPN        uint32        `cbor:"26,keyasint,omitempty"`
	QKey       uint32        `cbor:"27,keyasint,omitempty"`
	SRQ        bool          `cbor:"28,keyasint,omitempty"`
	Backlog    uint32        `cbor:"29,keyasint,omitempty"`
	Passive    bool          `cbor:"30,keyasint,omitempty"`
	Reported   uint32        `cbor:"31,keyasint,omitempty"`
	Talking    bool          `cbor:"32,keyasint,omitempty"` // its peer has accepted datagrams
	Patience   int64         `cbor:"33,keyasint,omitempty"` // Resolving: nanoseconds until the resolution fails
}

// GroupState is the state of a Group.
type GroupState struct {
	Name     uint32 `cbor:"1,keyasint,omitempty"`
	ID       uint32 `cbor:"2,keyasint,omitempty"`
	UID      uint64 `cbor:"3,keyasint,omitempty"`
	Reported uint32 `cbor:"4,keyasint,omitempty"`
}

// VacantState is a port whose listener the client has just closed.
type VacantState struct {
	Space uint16 `cbor:"1,keyasint,omitempty"`
	Port  uint16 `cbor:"2,keyasint,omitempty"`
	Age   int64  `cbor:"3,keyasint,omitempty"` // nanoseconds
}
