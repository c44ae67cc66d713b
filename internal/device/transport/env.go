package transport

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
)

// Later means that the NIC cannot reach the memory at once. No completion ever has this status. The NIC
// has changed nothing, or remembers what it did. It makes the queue pair repeat the call with the same
// arguments when it has a result.
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

// Scratch is working storage that a QP needs only during a call. It keeps the data path free of
// allocations and the QP free of pointers. One Scratch serves all queue pairs of a loop, because calls
// nest in one way only: Run or Respond (Out*) > Sender.Send > the peer's Receive (In*).
type Scratch struct {
	Out, In         Burst
	OutData, InData memory.Span
	Done            SendWQE // the work request being completed
	Result          RecvResult
	Buf             [40]byte
	stash           *stash // allocated at first use
	// Held is set by the loop when it could not deliver a burst at once: Run and Respond stop until the
	// next call.
	Held bool
	// HoldReads is set by the loop when the queue pair must not request READ data, because its NIC is
	// over its limit for incoming data. The requester sets ReadHeld when it held back a READ.
	HoldReads, ReadHeld bool
	// Share is the limit of bytes in flight to other hosts for the running queue pair, given the traffic of
	// the others; 0 means that only the path limits it. The loop sets it.
	Share uint32
	// Extra is the cost of Send beyond the burst itself, charged to Run's budget: a multicast datagram is
	// copied for every member. The loop adds to it.
	Extra int
}

// NIC is the interface of a queue pair to its device. Every call returns at once, and none calls back
// into a queue pair. A value is bound to one queue pair.
type NIC interface {
	SendQueue
	SendMemory
	RecvQueue
	RemoteMemory
	Events
}

// Env is the environment of one queue pair: the NIC, the sender of bursts, and the loop's working storage.
//
//	requester ──▶ SendQueue   SendMemory     ┐
//	                                         ├──▶ Events   Sender
//	responder ──▶ RecvQueue   RemoteMemory   ┘
//
// It is created once per queue pair and holds one interface value for each half. Converting a NIC to
// these in every call would cost more, on the data path, than the calls through them.
type Env struct {
	requester requesterEnv
	responder responderEnv
	link      Sender
	scratch   *Scratch
}

// NewEnv returns the Env of one queue pair: n is its NIC, link sends its bursts, and sc is the working
// storage of the loop that owns it.
func NewEnv(n NIC, link Sender, sc *Scratch) Env { return Env{n, n, link, sc} }

// requesterEnv is the part of the NIC that the requester uses.
type requesterEnv interface {
	SendQueue
	SendMemory
	Events
}

// responderEnv is the part of the NIC that the responder uses.
type responderEnv interface {
	RecvQueue
	RemoteMemory
	Events
}

// SendQueue is the application's send queue and its completion queue.
type SendQueue interface {
	// FetchSend copies the work request at position pos (free running) into w
	// and reports whether one is posted there.
	FetchSend(pos uint32, w *SendWQE) bool
	// CompleteSend completes the work request w. It first releases the queue entries up to w.Pos, and then
	// writes a completion if the request was signaled or st is an error. So an application that sees the
	// completion finds the entry free. bytes is byte_len. Only Pos, WRID, Op, Flags and Length of w are valid.
	CompleteSend(w *SendWQE, st Status, bytes uint32)
	// ResolveAH returns the source and destination address of an address handle (UD).
	ResolveAH(ah uint32) (sgid, dgid ib.GID, ok bool)
}

// SendMemory is the memory that send work requests address. Gather and ScatterSend may return Later.
type SendMemory interface {
	// Gather fills s with n bytes of w's data from offset off on, after checking the local keys and
	// rights. It may return fewer bytes, a multiple of 4 KiB, if the rest is not available yet.
	Gather(w *SendWQE, off, n uint32, s *memory.Span) Status
	// ScatterSend copies the data of a response (READ, atomics) into w's scatter list.
	ScatterSend(w *SendWQE, off uint32, s *memory.Span) Status
	// LocalOp performs LOCAL_INV and BIND_MW.
	LocalOp(w *SendWQE) Status
}

// RecvQueue is the application's receive queue, its own or a shared one, and its completion queue.
// ScatterRecv may return Later.
type RecvQueue interface {
	// TakeRecv consumes the next receive of the RQ or SRQ.
	TakeRecv(w *RecvWQE) bool
	// ScatterRecv copies the data of a request into the memory that the receive w addresses.
	ScatterRecv(w *RecvWQE, off uint32, s *memory.Span) Status
	// GRH writes the 40 bytes that precede a UD message in the receive buffer.
	GRH(b *Burst, out *[40]byte)
	// CompleteRecv writes the completion of w.
	CompleteRecv(w *RecvWQE, r *RecvResult)
}

// RemoteMemory is the memory that the peer's requests address. WriteRemote, ReadRemote and Atomic may
// return Later.
type RemoteMemory interface {
	// CheckRemote checks key, bounds and rights of a remote access.
	CheckRemote(rkey uint32, va uint64, n uint32, a ib.Access) Status
	// CheckKey checks key and rights of a remote access to the whole region or window.
	CheckKey(rkey uint32, a ib.Access) Status
	// WriteRemote checks the access and copies s to va.
	WriteRemote(rkey uint32, va uint64, s *memory.Span) Status
	// ReadRemote checks the access and fills s with n bytes at va.
	ReadRemote(rkey uint32, va uint64, n uint32, s *memory.Span) Status
	// Atomic checks the access, executes one 8-byte operation (KindCmpSwap, KindFetchAdd, or
	// KindAtomicWrite with the value in swap) and returns the former value.
	Atomic(k Kind, rkey uint32, va uint64, compare, swap uint64) (uint64, Status)
	// InvalidateRemote invalidates the window or region of rkey, for SEND_WITH_INV.
	InvalidateRemote(rkey uint32) Status
}

// Sender sends bursts to other queue pairs, on this host or another.
type Sender interface {
	// Send passes b to the link, which does not use b or its data after Send returns. Send may deliver
	// requests and READ responses before it returns. It must queue ACKs, CNPs and atomic responses. It
	// delivers them in order, after the sender's Run, Respond or Receive has returned, and before the
	// next Respond of the same queue pair.
	Send(b *Burst)
}

// Events receives asynchronous events.
type Events interface {
	// Event raises an asynchronous event.
	Event(e Event)
}
