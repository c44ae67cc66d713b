package cm

import (
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// State is the state of a connection; doc.go has the diagram.
type State uint8

// States. Their numbers are part of ConnState.
const (
	Closed  State = iota // ended; the manager does not know the Conn any more
	ReqSent              // active: waits for REP
	RepRcvd              // active: the owner must call Ready
	ReqRcvd              // passive: the owner must call Accept or Reject
	RepSent              // passive: waits for RTU
	Established
	DreqSent // this side disconnects and waits for DREP
	DreqRcvd // the peer disconnects and waits for our DREP
	TimeWait // ended, kept until no message of it can be in flight
	SidrReqSent
	SidrReqRcvd
)

var stateNames = [...]string{
	"CLOSED", "REQ_SENT", "REP_RCVD", "REQ_RCVD", "REP_SENT", "ESTABLISHED", "DREQ_SENT", "DREQ_RCVD", "TIMEWAIT",
	"SIDR_REQ_SENT", "SIDR_REQ_RCVD",
}

func (s State) String() string { return stateNames[s] }

// Path is the path between two hosts.
type Path struct {
	SGID, DGID   ib.GID
	MTU          uint8 // code: 5 is 4096
	AckTimeout   uint8 // code: 4.096 µs << AckTimeout
	Rate         uint8
	TrafficClass uint8
	HopLimit     uint8
	FlowLabel    uint32
}

// Params are the parameters of one side's queue pair.
type Params struct {
	QPN, PSN           uint32
	ResponderResources uint8
	InitiatorDepth     uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	FlowControl        bool
	SRQ                bool
	ECE                ECE
	Private            []byte
}

// ECE is one side's offer for a vendor's enhanced connection establishment (Linux's struct ib_ece). It is passed on unchanged.
type ECE struct {
	Vendor   uint32 // 24 bits
	Modifier uint32
}

// Event is an event of a connection.
type Event struct {
	Kind    EventKind
	Reason  uint16 // Rejected: the REJ reason; SidrReplied: the status
	Params  Params // Replied: the peer's parameters, from this side's point of view
	QKey    uint32 // SidrReplied
	Private []byte // Replied, Rejected, SidrReplied; valid during the call
}

// EventKind is the kind of an event.
type EventKind uint8

// Kinds of event.
const (
	Replied      EventKind = iota + 1 // REP arrived: call Ready or Reject
	Connected                         // RTU arrived
	Rejected                          // REJ arrived
	Unreachable                       // no answer
	Disconnected                      // the peer disconnected, or confirmed our disconnect
	Vanished                          // no answer to our disconnect
	Exited                            // TimeWait has ended
	SidrReplied
)

// Reasons of a REJ (IBA 12.6.7.2).
const (
	RejectTimeout        = 4
	RejectInvalidCommID  = 6
	RejectInvalidService = 8
	RejectTransport      = 9
	RejectStale          = 10
	RejectConsumer       = 28
	// Ignore is not sent: the request is dropped, and the peer will repeat it.
	Ignore = 0xffff
)

// Statuses of a SIDRREP.
const (
	SidrSuccess     = 0
	SidrUnsupported = 1
	SidrRejected    = 2
	SidrIgnore      = 0xff // not sent: the request is dropped, and the peer will repeat it
)

// A Conn is one connection, or one SIDR request. The owner reads its fields and changes only Owner.
type Conn struct {
	Owner any // set by the user; nil: no further events

	State    State
	LocalID  uint32
	RemoteID uint32
	Service  uint64
	Path     Path
	Active   bool

	Transport uint8 // transport service as in a REQ: wire.ServiceRC …

	LocalQPN, RemoteQPN uint32
	SQPSN, RQPSN        uint32
	ResponderResources  uint8
	InitiatorDepth      uint8
	RetryCount          uint8
	RNRRetryCount       uint8

	tid     uint64
	retries uint8 // maximum repetitions of a message
	patient bool  // the peer has sent an MRA

	message  wire.MAD // repeated until it is answered
	left     uint8    // remaining repetitions
	tries    uint8    // repetitions so far
	interval ib.Time
	deadline ib.Time // 0: none
	slot     int     // 1 + index in the heap of deadlines
}

// remote is the peer's identification of a connection. A peer is identified by its address, not by the device in its messages, which can
// be forged.
type remote struct {
	at ib.GID
	id uint32
}

type peerQP struct {
	at  ib.GID
	qpn uint32
}

type question struct {
	from ib.GID
	id   uint32
}
