package vm

import (
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// This file has the state of Sockets as data; package state has the rules for the structs. freeze.go writes it, thaw.go reads it. Rings,
// registered memory and the program's descriptors are in the guest, and stay. The sessions of its programs are in the state of package
// server, which names a conversation by conversation.Number.

// State is the state of a NIC's Sockets.
type State struct {
	NIC       string               `cbor:"1,keyasint,omitempty"`
	Listeners []server.FD          `cbor:"2,keyasint,omitempty"` // in the order of roles
	Line      *LineState           `cbor:"3,keyasint,omitempty"` // nil: not connected
	Bell      server.FD            `cbor:"4,keyasint,omitempty"` // 0: not connected
	Net       server.FD            `cbor:"5,keyasint,omitempty"` // 0: not connected
	Card      *vhostuser.ConnState `cbor:"6,keyasint,omitempty"` // of Net
	Guest     *GuestState          `cbor:"7,keyasint,omitempty"` // nil: no agent has been answered
}

// LineState is the connection of the port for commands and events.
type LineState struct {
	Socket server.FD      `cbor:"1,keyasint,omitempty"`
	Unread []byte         `cbor:"2,keyasint,omitempty"` // read from the socket, and not handled
	Unsent []byte         `cbor:"3,keyasint,omitempty"` // not written to the socket
	Next   *GreetingState `cbor:"4,keyasint,omitempty"` // of the next agent, not answered
}

// GreetingState is the greeting of an agent.
type GreetingState struct {
	Nonce   []byte `cbor:"1,keyasint,omitempty"`
	Version uint32 `cbor:"2,keyasint,omitempty"`
	Name    string `cbor:"3,keyasint,omitempty"`
}

// GuestState is the state of a guest.
type GuestState struct {
	Name          string                  `cbor:"1,keyasint,omitempty"`
	Workload      uint64                  `cbor:"2,keyasint,omitempty"`
	Handles       uint32                  `cbor:"3,keyasint,omitempty"` // the number given last
	Told          bool                    `cbor:"4,keyasint,omitempty"`
	Ending        bool                    `cbor:"5,keyasint,omitempty"`
	Tree          map[string]string       `cbor:"6,keyasint,omitempty"` // what the agent has of the device tree
	Regions       []vhostuser.RegionState `cbor:"7,keyasint,omitempty"` // memory that the card does not have any more
	Tables        []TableState            `cbor:"8,keyasint,omitempty"`
	Conversations []ConversationState     `cbor:"9,keyasint,omitempty"`
}

// TableState is a table of the guest's memory, the newest last.
type TableState struct {
	Card  []uint32 `cbor:"1,keyasint,omitempty"` // indices of regions of the card
	Older []uint32 `cbor:"2,keyasint,omitempty"` // indices of GuestState.Regions
}

// ConversationState is the state of a conversation.
type ConversationState struct {
	ID        uint32         `cbor:"1,keyasint,omitempty"`
	Pid       int            `cbor:"2,keyasint,omitempty"`
	Near      server.FD      `cbor:"3,keyasint,omitempty"` // 0: the session has ended
	Far       server.FD      `cbor:"4,keyasint,omitempty"` // 0: the session is going to end
	Greeted   bool           `cbor:"5,keyasint,omitempty"`
	Process   bool           `cbor:"6,keyasint,omitempty"`
	Queue     []RequestState `cbor:"7,keyasint,omitempty"`
	Pin       *PinState      `cbor:"8,keyasint,omitempty"` // of the current request
	Coming    *PinState      `cbor:"9,keyasint,omitempty"` // of the next request
	Arena     []RunState     `cbor:"10,keyasint,omitempty"`
	BellPort  bool           `cbor:"11,keyasint,omitempty"`
	Pages     []RunState     `cbor:"12,keyasint,omitempty"` // of the session's arena
	Full      bool           `cbor:"13,keyasint,omitempty"` // of its arenaPages
	Refused   bool           `cbor:"14,keyasint,omitempty"` // likewise: told
	Sinks     []SinkState    `cbor:"15,keyasint,omitempty"`
	Recalling bool           `cbor:"16,keyasint,omitempty"`
	Recalled  bool           `cbor:"17,keyasint,omitempty"`
	Asked     bool           `cbor:"18,keyasint,omitempty"`
	Returning []EventState   `cbor:"19,keyasint,omitempty"`
	Taken     []uint32       `cbor:"20,keyasint,omitempty"` // pins that the session has taken
}

// RequestState is a request that was not passed to the session.
type RequestState struct {
	Message []byte    `cbor:"1,keyasint,omitempty"`
	Pin     *PinState `cbor:"2,keyasint,omitempty"`
}

// PinState is a pin that no session has taken.
type PinState struct {
	ID   uint32     `cbor:"1,keyasint,omitempty"`
	Runs []RunState `cbor:"2,keyasint,omitempty"`
}

// RunState is a vmproto.Run.
type RunState struct {
	Addr uint64 `cbor:"1,keyasint,omitempty"`
	Size uint64 `cbor:"2,keyasint,omitempty"`
}

// SinkState is the state of a sink.
type SinkState struct {
	ID    uint32       `cbor:"1,keyasint,omitempty"`
	Sent  bool         `cbor:"2,keyasint,omitempty"`
	Held  bool         `cbor:"3,keyasint,omitempty"`
	Back  []EventState `cbor:"4,keyasint,omitempty"`
	Given int          `cbor:"5,keyasint,omitempty"`
}

// EventState is an event that the program has not read.
type EventState struct {
	Handle uint32 `cbor:"1,keyasint,omitempty"` // only in ConversationState.Returning
	Event  []byte `cbor:"2,keyasint,omitempty"`
}
