package transport

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
)

// Later is what a NIC answers, and no completion shows: the memory cannot be reached at
// once. Nothing has happened, or what has is remembered by the NIC, which has the queue
// pair ask again, with the same arguments, when it can say more.
const Later Status = 0xff

// Event is an asynchronous event that the transport raises for a queue pair.
type Event uint8

const (
	EventFatal     Event = iota + 1 // IBV_EVENT_QP_FATAL
	EventReqErr                     // IBV_EVENT_QP_REQ_ERR
	EventAccessErr                  // IBV_EVENT_QP_ACCESS_ERR
	EventCommEst                    // IBV_EVENT_COMM_EST
	EventSQDrained                  // IBV_EVENT_SQ_DRAINED
	EventLastWQE                    // IBV_EVENT_QP_LAST_WQE_REACHED
)

// Scratch is working storage that a QP needs during a call and never after it: it
// keeps the data path free of allocation and the QP free of pointers. One Scratch
// serves every queue pair of one engine loop, because calls nest in one way only:
// Run or Respond (Out*) > Sender.Send > the peer's Receive (In*).
type Scratch struct {
	Out, In         Burst
	OutData, InData memory.Span
	Done            SendWQE // the work request being completed
	Result          RecvResult
	Buf             [40]byte
	stash           *stash // made when it is first needed
	// Held is set by the loop when a burst that was sent could not be delivered at once:
	// Run and Respond stop until they are called again.
	Held bool
	// HoldReads is set by the loop when no READ may be asked for: its NIC has more coming in
	// than it may have. ReadHeld is set when one was held back for that.
	HoldReads, ReadHeld bool
	// Share is how many bytes the queue pair that runs may have on its way to another
	// host, in view of what others have; 0: as many as its path allows. The loop sets it.
	Share uint32
	// Extra is what Send cost of Run's budget beyond the burst itself: a datagram to a
	// group is copied for every member. The loop adds to it.
	Extra int
}

// NIC is what a queue pair asks of its device: the sum of what its halves need. Every call
// returns at once, and none calls back into a queue pair. The QP passes itself to none of
// them: a NIC here is bound to one queue pair.
type NIC interface {
	SendQueue
	SendMemory
	RecvQueue
	RemoteMemory
	Events
}

// Env is the world around one queue pair, put together of what different owners provide: the
// NIC, the way to other queue pairs, and the loop's working storage.
//
//	requester ──▶ SendQueue   SendMemory     ┐
//	                                         ├──▶ Events   Sender
//	responder ──▶ RecvQueue   RemoteMemory   ┘
//
// It is made once for a queue pair and holds the interface of each half. To convert a NIC to
// these in every call would cost more, on the data path, than the calls through them.
type Env struct {
	requester requesterEnv
	responder responderEnv
	link      Sender
	scratch   *Scratch
}

// NewEnv makes the Env of one queue pair: n is its NIC, link carries its bursts away, sc is the
// working storage of the loop that owns it.
func NewEnv(n NIC, link Sender, sc *Scratch) Env { return Env{n, n, link, sc} }

// requesterEnv is what the requester needs of the NIC.
type requesterEnv interface {
	SendQueue
	SendMemory
	Events
}

// responderEnv is what the responder needs of the NIC.
type responderEnv interface {
	RecvQueue
	RemoteMemory
	Events
}

// SendQueue is the application's send queue and the completion queue behind it.
type SendQueue interface {
	// FetchSend copies the work request at position pos (free running) into w
	// and reports whether one is posted there.
	FetchSend(pos uint32, w *SendWQE) bool
	// CompleteSend ends the work request w. It gives the application the slots up to
	// w.Pos back and then writes a completion, if the request was signalled or st is an
	// error: an application that sees it finds the slot free. bytes is byte_len. Of w
	// only Pos, WRID, Op, Flags and Length are valid.
	CompleteSend(w *SendWQE, st Status, bytes uint32)
	// ResolveAH gives the addresses of an address handle (UD), source and destination.
	ResolveAH(ah uint32) (sgid, dgid ib.GID, ok bool)
}

// SendMemory is the memory that send work requests name, and its keys. Gather and
// ScatterSend may answer Later.
type SendMemory interface {
	// Gather fills s with n bytes of w's data from byte off on, after checking
	// the local keys and rights. It may fill in fewer, a multiple of 4 KiB, if the
	// others are not at hand.
	Gather(w *SendWQE, off, n uint32, s *memory.Span) Status
	// ScatterSend copies a response's data into w's list (READ, atomics).
	ScatterSend(w *SendWQE, off uint32, s *memory.Span) Status
	// LocalOp performs LOCAL_INV and BIND_MW.
	LocalOp(w *SendWQE) Status
}

// RecvQueue is the application's receive queue, its own or a shared one, and the completion
// queue behind it. ScatterRecv may answer Later.
type RecvQueue interface {
	// TakeRecv consumes the next receive of the RQ or SRQ.
	TakeRecv(w *RecvWQE) bool
	// ScatterRecv copies a request's data into the memory that the receive w names.
	ScatterRecv(w *RecvWQE, off uint32, s *memory.Span) Status
	// GRH says what the 40 bytes before a UD message hold, for b.
	GRH(b *Burst, out *[40]byte)
	// CompleteRecv writes w's completion.
	CompleteRecv(w *RecvWQE, r *RecvResult)
}

// RemoteMemory is the memory that the peer's requests name. WriteRemote, ReadRemote and
// Atomic may answer Later.
type RemoteMemory interface {
	// CheckRemote checks key, bounds and rights of a remote access.
	CheckRemote(rkey uint32, va uint64, n uint32, a ib.Access) Status
	// CheckKey checks key and rights of a remote access to all that the key names.
	CheckKey(rkey uint32, a ib.Access) Status
	// WriteRemote checks and copies s to va.
	WriteRemote(rkey uint32, va uint64, s *memory.Span) Status
	// ReadRemote checks and fills s with n bytes at va.
	ReadRemote(rkey uint32, va uint64, n uint32, s *memory.Span) Status
	// Atomic checks and performs one 8-byte operation (KindCmpSwap,
	// KindFetchAdd, KindAtomicWrite with the value in swap) and returns the
	// former value.
	Atomic(k Kind, rkey uint32, va uint64, compare, swap uint64) (uint64, Status)
	// InvalidateRemote ends the window (or region) behind rkey for SEND_WITH_INV.
	InvalidateRemote(rkey uint32) Status
}

// Sender is the way to other queue pairs, on this host or another.
type Sender interface {
	// Send hands b to the link. The link is done with b and its data when Send
	// returns. Requests and READ responses may be delivered inside Send. ACKs,
	// CNPs and atomic responses must not: the link queues them, in order, and
	// delivers them when Run, Respond or Receive of the sender has returned and
	// before Respond of the same queue pair is called again.
	Send(b *Burst)
}

// Events is where asynchronous events go.
type Events interface {
	// Event raises an asynchronous event.
	Event(e Event)
}
