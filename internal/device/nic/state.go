package nic

import (
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// The state of NICs and sessions as data, in the format of package state: Freeze makes it, and Thaw makes the objects
// again, of the next daemon or on another loop. Objects name each other by handles. Rings, arm words and registered
// memory are not part of it: they lie in memory that stays.
//
//	Session ── Freeze ──▶ SessionState ── Marshal, Unmarshal ──▶ SessionState ── NIC.Thaw ──▶ Session ── Engine.Attach
//
// A reference to an object that may be missing is its handle plus one; 0 means that there is none.

// A SessionState is the state of a Session.
type SessionState struct {
	Opened   int64          `cbor:"1,keyasint,omitempty"` // Unix time in nanoseconds
	Arena    ArenaState     `cbor:"2,keyasint,omitzero"`
	Next     NextHandles    `cbor:"3,keyasint,omitzero"`
	PDs      []PDState      `cbor:"4,keyasint,omitempty"`
	MRs      []MRState      `cbor:"5,keyasint,omitempty"`
	MWs      []MWState      `cbor:"6,keyasint,omitempty"`
	CQs      []CQState      `cbor:"7,keyasint,omitempty"`
	SRQs     []SRQState     `cbor:"8,keyasint,omitempty"`
	QPs      []QPState      `cbor:"9,keyasint,omitempty"`
	AHs      []AHState      `cbor:"10,keyasint,omitempty"`
	Channels []ChannelState `cbor:"11,keyasint,omitempty"`
	Async    *ChannelState  `cbor:"12,keyasint,omitempty"` // nil: the session has no asynchronous events yet
	Stalls   uint32         `cbor:"13,keyasint,omitempty"` // see aside.go
	Round    uint32         `cbor:"14,keyasint,omitempty"` // see waiting.go
}

// NextHandles are the handles that new objects get, if they are free.
type NextHandles struct {
	PD      uint32 `cbor:"1,keyasint,omitempty"`
	MR      uint32 `cbor:"2,keyasint,omitempty"`
	MW      uint32 `cbor:"3,keyasint,omitempty"`
	CQ      uint32 `cbor:"4,keyasint,omitempty"`
	SRQ     uint32 `cbor:"5,keyasint,omitempty"`
	QP      uint32 `cbor:"6,keyasint,omitempty"`
	AH      uint32 `cbor:"7,keyasint,omitempty"`
	Channel uint32 `cbor:"8,keyasint,omitempty"`
}

// ArenaState is the state of an Arena. Its free space is what neither the rings of objects nor Released take.
type ArenaState struct {
	Released []MMap `cbor:"1,keyasint,omitempty"` // rings that are gone, their pages are not
}

// RingState is the place of a ring in the arena, and its shape.
type RingState struct {
	Offset   uint64 `cbor:"1,keyasint,omitempty"`
	Size     uint32 `cbor:"2,keyasint,omitempty"` // 0: there is no ring
	Mask     uint32 `cbor:"3,keyasint,omitempty"`
	Log2     uint32 `cbor:"4,keyasint,omitempty"` // of an element's size
	Consumed uint32 `cbor:"5,keyasint,omitempty"` // free running; of a work ring
}

// PDState is the state of a PD.
type PDState struct {
	Handle uint32 `cbor:"1,keyasint,omitempty"`
	Serial uint32 `cbor:"2,keyasint,omitempty"`
}

// MRState is the state of an MR.
type MRState struct {
	Handle uint32    `cbor:"1,keyasint,omitempty"`
	Serial uint32    `cbor:"2,keyasint,omitempty"`
	PD     uint32    `cbor:"3,keyasint,omitempty"`
	Key    uint32    `cbor:"4,keyasint,omitempty"`
	IOVA   uint64    `cbor:"5,keyasint,omitempty"`
	Length uint64    `cbor:"6,keyasint,omitempty"`
	Access ib.Access `cbor:"7,keyasint,omitempty"`
	Region uint64    `cbor:"8,keyasint,omitempty"` // memory.Region.ID
}

// MWState is the state of an MW.
type MWState struct {
	Handle uint32    `cbor:"1,keyasint,omitempty"`
	PD     uint32    `cbor:"2,keyasint,omitempty"`
	Type   uint8     `cbor:"3,keyasint,omitempty"`
	Key    uint32    `cbor:"4,keyasint,omitempty"`
	MR     uint32    `cbor:"5,keyasint,omitempty"` // plus one
	QP     uint32    `cbor:"6,keyasint,omitempty"` // plus one
	Addr   uint64    `cbor:"7,keyasint,omitempty"`
	Length uint64    `cbor:"8,keyasint,omitempty"`
	Access ib.Access `cbor:"9,keyasint,omitempty"`
}

// CQState is the state of a CQ.
type CQState struct {
	Handle     uint32    `cbor:"1,keyasint,omitempty"`
	Serial     uint32    `cbor:"2,keyasint,omitempty"`
	UserHandle uint64    `cbor:"3,keyasint,omitempty"`
	Ring       RingState `cbor:"4,keyasint,omitzero"`
	Prod       uint32    `cbor:"5,keyasint,omitempty"`
	Seen       uint32    `cbor:"6,keyasint,omitempty"`
	Channel    uint32    `cbor:"7,keyasint,omitempty"` // plus one
	Woken      uint32    `cbor:"8,keyasint,omitempty"` // see arm; a position, if HasWoken
	HasWoken   bool      `cbor:"9,keyasint,omitempty"`
	Urgent     uint32    `cbor:"10,keyasint,omitempty"`
	HasUrgent  bool      `cbor:"11,keyasint,omitempty"`
	Arm        []uint32  `cbor:"12,keyasint,omitempty"` // the arm line, if it is not in the arena
	Overrun    bool      `cbor:"13,keyasint,omitempty"`
	Events     uint32    `cbor:"14,keyasint,omitempty"`
	Async      uint32    `cbor:"15,keyasint,omitempty"`
}

// SRQState is the state of an SRQ.
type SRQState struct {
	Handle     uint32    `cbor:"1,keyasint,omitempty"`
	PD         uint32    `cbor:"2,keyasint,omitempty"`
	UserHandle uint64    `cbor:"3,keyasint,omitempty"`
	Num        uint32    `cbor:"4,keyasint,omitempty"`
	Ring       RingState `cbor:"5,keyasint,omitzero"`
	MaxSGE     uint32    `cbor:"6,keyasint,omitempty"`
	Limit      uint32    `cbor:"7,keyasint,omitempty"`
	Events     uint32    `cbor:"8,keyasint,omitempty"`
}

// AHState is the state of an AH.
type AHState struct {
	Handle uint32 `cbor:"1,keyasint,omitempty"`
	PD     uint32 `cbor:"2,keyasint,omitempty"`
	Attr   AHAttr `cbor:"3,keyasint,omitzero"`
	SGID   ib.GID `cbor:"4,keyasint,omitzero"`
}

// ChannelState is the state of an event queue. Its sink is the Restorer's.
type ChannelState struct {
	Handle  uint32 `cbor:"1,keyasint,omitempty"` // not of the asynchronous one
	Waiting []byte `cbor:"2,keyasint,omitempty"` // events that the sink had no space for: 8 or 16 bytes each
}

// QPState is the state of a QP.
type QPState struct {
	Handle     uint32            `cbor:"1,keyasint,omitempty"`
	UserHandle uint64            `cbor:"2,keyasint,omitempty"`
	PD         uint32            `cbor:"3,keyasint,omitempty"`
	SendCQ     uint32            `cbor:"4,keyasint,omitempty"`
	RecvCQ     uint32            `cbor:"5,keyasint,omitempty"`
	SRQ        uint32            `cbor:"6,keyasint,omitempty"` // plus one
	SQ         RingState         `cbor:"7,keyasint,omitzero"`
	RQ         RingState         `cbor:"8,keyasint,omitzero"`
	Cap        QPCap             `cbor:"9,keyasint,omitzero"`
	SigAll     bool              `cbor:"10,keyasint,omitempty"`
	Attr       QPAttr            `cbor:"11,keyasint,omitzero"`
	Transport  transport.QPState `cbor:"12,keyasint"` // has number and type
	Events     uint32            `cbor:"13,keyasint,omitempty"`
	LastSL     uint8             `cbor:"14,keyasint,omitempty"`
	Rang       bool              `cbor:"15,keyasint,omitempty"`
	Groups     []ib.GID          `cbor:"16,keyasint,omitempty"`
	Contact    ContactState      `cbor:"17,keyasint,omitzero"`
	Judged     bool              `cbor:"18,keyasint,omitempty"` // a Guard judged it: Contact is valid
	Revoked    bool              `cbor:"19,keyasint,omitempty"` // the current Guard ended it
	Denied     uint64            `cbor:"20,keyasint,omitempty"`
	Aside      AsideState        `cbor:"21,keyasint,omitzero"` // of this queue pair alone
}

// ContactState is an ib.Contact.
type ContactState struct {
	Type ib.Service `cbor:"1,keyasint,omitempty"`
	By   ib.Asker   `cbor:"2,keyasint,omitempty"`
	ID   uint64     `cbor:"3,keyasint,omitempty"`
}

// AsideState is a mark, see aside.go.
type AsideState struct {
	User  int     `cbor:"1,keyasint,omitempty"` // not of a queue pair's
	Until ib.Time `cbor:"2,keyasint,omitempty"` // relative to the time of Freeze
	Lasts ib.Time `cbor:"3,keyasint,omitempty"`
}

// A LoopState is the state of a Loop that no session has.
type LoopState struct {
	Asides []AsideState `cbor:"1,keyasint,omitempty"`
}

// A NICState is the state of a NIC without its sessions. Groups follow from queue pairs.
type NICState struct {
	Serial    uint32             `cbor:"1,keyasint,omitempty"`
	Retired   transport.Counters `cbor:"2,keyasint,omitzero"`
	Drops     []uint64           `cbor:"3,keyasint,omitempty"` // by Reason
	Connected uint64             `cbor:"4,keyasint,omitempty"`
	Loop      ib.Time            `cbor:"5,keyasint,omitempty"`
	Delays    []uint64           `cbor:"6,keyasint,omitempty"`
	Waited    ib.Time            `cbor:"7,keyasint,omitempty"` // sum of delays
	Refusals  []uint64           `cbor:"8,keyasint,omitempty"` // by Refusal
	Face      FaceState          `cbor:"9,keyasint,omitzero"`
}

// FaceState is a Face.
type FaceState struct {
	GIDs    []ib.GID `cbor:"1,keyasint,omitempty"`
	NetDevs []string `cbor:"2,keyasint,omitempty"`
	MTU     uint8    `cbor:"3,keyasint,omitempty"`
	Rows    []int    `cbor:"4,keyasint,omitempty"`
}
