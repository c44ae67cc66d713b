package cm

import (
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// State is where a connection stands; doc.go has the picture.
type State uint8

// States.
const (
	Closed  State = iota // over; the Conn is no longer known
	ReqSent              // active: waits for REP
	RepRcvd              // active: the owner has to say Ready
	ReqRcvd              // passive: the owner has to Accept or Reject
	RepSent              // passive: waits for RTU
	Established
	DreqSent // we disconnect, and wait for DREP
	DreqRcvd // the peer disconnects, and waits for our DREP
	TimeWait // over, remembered until no message of it can be under way
	SidrReqSent
	SidrReqRcvd
)

var stateNames = [...]string{
	"CLOSED", "REQ_SENT", "REP_RCVD", "REQ_RCVD", "REP_SENT", "ESTABLISHED", "DREQ_SENT", "DREQ_RCVD", "TIMEWAIT",
	"SIDR_REQ_SENT", "SIDR_REQ_RCVD",
}

func (s State) String() string { return stateNames[s] }

// Path is the way between two hosts.
type Path struct {
	SGID, DGID   ib.GID
	MTU          uint8 // code: 5 is 4096
	AckTimeout   uint8 // code: 4.096 µs << it
	Rate         uint8
	TrafficClass uint8
	HopLimit     uint8
	FlowLabel    uint32
}

// Params are what one side of a connection says about its queue pair.
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

// ECE is what one side offers of a vendor's enhanced connection establishment (Linux's
// struct ib_ece): passed on, never looked at.
type ECE struct {
	Vendor   uint32 // 24 bits
	Modifier uint32
}

// Event is what happened to a connection.
type Event struct {
	Kind    EventKind
	Reason  uint16 // Rejected: of the REJ; SidrReplied: the status
	Params  Params // Replied: what the peer said, as it concerns us
	QKey    uint32 // SidrReplied
	Private []byte // Replied, Rejected, SidrReplied; valid during the call
}

// EventKind tells events apart.
type EventKind uint8

// Kinds of event.
const (
	Replied      EventKind = iota + 1 // REP came: Ready or Reject
	Connected                         // RTU came
	Rejected                          // REJ came
	Unreachable                       // nobody answered
	Disconnected                      // by the peer, or the peer has agreed
	Vanished                          // we disconnect, and the peer does not answer
	Exited                            // TimeWait is over
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
	// Ignore is not on the wire: the request is dropped, and the peer will repeat it.
	Ignore = 0xffff
)

// Statuses of a SIDRREP.
const (
	SidrSuccess     = 0
	SidrUnsupported = 1
	SidrRejected    = 2
	SidrIgnore      = 0xff // not on the wire: the question is dropped, and will be repeated
)

// A Conn is one connection, or one question about a service. The owner reads its
// fields and changes none but Owner.
type Conn struct {
	Owner any // the user's; nil: nobody is told anything more

	State    State
	LocalID  uint32
	RemoteID uint32
	Service  uint64
	Path     Path
	Active   bool

	Transport uint8 // the transport service, as a REQ names it: wire.ServiceRC …

	LocalQPN, RemoteQPN uint32
	SQPSN, RQPSN        uint32
	ResponderResources  uint8
	InitiatorDepth      uint8
	RetryCount          uint8
	RNRRetryCount       uint8

	tid     uint64
	retries uint8 // how often a message is repeated
	patient bool  // the peer has asked us to wait

	message  wire.MAD // repeated until it is answered
	left     uint8    // how often yet
	tries    uint8    // how often it was
	interval ib.Time
	deadline ib.Time // 0: none
	slot     int     // in the heap of deadlines, 1 + index
}

// remote names a connection as the peer does. The peer is known by its address, not by the
// device that it names in its messages: anybody can name any.
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
