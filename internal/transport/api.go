package transport

import "vrdma/internal/memory"

// Time is nanoseconds on the caller's monotonic clock. Zero means "never" where
// a deadline is meant.
type Time int64

// Type is the transport service of a queue pair.
type Type uint8

const (
	RC Type = iota + 1
	UC
	UD
)

// State of a queue pair, numbered as enum ib_qp_state.
type State uint8

const (
	Reset State = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Error
)

// Status of a completion, numbered as enum ibv_wc_status.
type Status uint8

const (
	Success Status = iota
	LocLenErr
	LocQPOpErr
	LocEECOpErr
	LocProtErr
	WRFlushErr
	MWBindErr
	BadRespErr
	LocAccessErr
	RemInvReqErr
	RemAccessErr
	RemOpErr
	RetryExcErr
	RNRRetryExcErr
	LocRDDViolErr
	RemInvRDReqErr
	RemAbortErr
	InvEECNErr
	InvEECStateErr
	FatalErr
	RespTimeoutErr
	GeneralErr
)

// Later is what a Host answers, and no completion shows: the memory cannot be reached at
// once. Nothing has happened, or what has is remembered by the host, which has the queue
// pair ask again, with the same arguments, when it can say more.
const Later Status = 0xff

// WROp is a work request's operation, numbered as enum ibv_wr_opcode.
type WROp uint8

const (
	WRWrite       WROp = 0
	WRWriteImm    WROp = 1
	WRSend        WROp = 2
	WRSendImm     WROp = 3
	WRRead        WROp = 4
	WRCmpSwap     WROp = 5
	WRFetchAdd    WROp = 6
	WRLocalInv    WROp = 7
	WRBindMW      WROp = 8
	WRSendInv     WROp = 9
	WRFlush       WROp = 14
	WRAtomicWrite WROp = 15
)

// Send flags, numbered as enum ibv_send_flags.
const (
	FlagFence     = 1 << 0
	FlagSignaled  = 1 << 1
	FlagSolicited = 1 << 2
	FlagInline    = 1 << 3
)

// Access rights that a remote operation needs, numbered as IBV_ACCESS_*.
type Access uint32

const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3
	AccessMWBind       Access = 1 << 4
	AccessZeroBased    Access = 1 << 5
	AccessFlushGlobal  Access = 1 << 8
	AccessFlushPersist Access = 1 << 9
)

// MaxSGE is the most entries a scatter/gather list has.
const MaxSGE = 32

// MaxMessage is the longest message: 2^31 bytes by the specification.
const MaxMessage = 1 << 31

// SGE is one entry of a scatter/gather list.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWQE is a private copy of a posted send work request: made once from the
// shared ring, checked, and never read from there again while it is in use.
type SendWQE struct {
	Pos        uint32 // free-running position in the send queue
	WRID       uint64
	Op         WROp
	Flags      uint8
	Imm        uint32 // immediate as it stands in memory (big endian bytes), or the rkey to invalidate
	RKey       uint32
	RemoteAddr uint64
	CompareAdd uint64
	Swap       uint64 // the 8 bytes of an atomic write too, as they stand in memory
	// UD
	RemoteQPN  uint32
	RemoteQKey uint32
	AH         uint32
	// Bind: RemoteAddr is the window's address, RKey its new rkey.
	MWRKey   uint32
	MRLKey   uint32
	MWLength uint64
	MWAccess uint32
	// Data
	Length uint32 // total bytes
	Bad    Status // not Success: the NIC found the request itself malformed; fail it with this
	NumSGE uint8
	SGE    [MaxSGE]SGE
}

// RecvWQE is a private copy of a posted receive.
type RecvWQE struct {
	WRID   uint64
	Length uint32
	Bad    Status
	NumSGE uint8
	SGE    [MaxSGE]SGE
}

// RecvResult is what a completed receive reports.
type RecvResult struct {
	Status    Status
	Op        RecvOp
	ByteLen   uint32
	HasImm    bool
	HasInv    bool
	HasGRH    bool
	Solicited bool
	Imm       uint32 // immediate or invalidated rkey
	SrcQP     uint32
}

// RecvOp is the operation that consumed a receive.
type RecvOp uint8

const (
	RecvSend RecvOp = iota
	RecvWriteImm
)

// Kind says what a burst's packets are.
type Kind uint8

const (
	KindSend Kind = iota + 1
	KindSendImm
	KindSendInv
	KindWrite
	KindWriteImm
	KindReadReq
	KindCmpSwap
	KindFetchAdd
	KindAtomicWrite
	KindFlush
	// responses
	KindReadResp
	KindAtomicResp
	KindAck // ACK, NAK and RNR NAK: Syndrome tells
	// neither
	KindCNP // congestion notification: tells Dst that its packets were marked
)

// GID is an address: an IPv6 address or an IPv4 one mapped into it.
type GID [16]byte

// Burst is what passes between transport and link: one queue pair's run of
// consecutive packets of one message. A link that has to put it on a wire cuts it
// at the path MTU; the local link hands it over whole. A link that receives packets
// may hand them over one by one, or together what is consecutive and of one message.
//
// An atomic write carries its eight bytes in Swap, not in Data; a flush its type and
// selectivity in Imm. The response to both is an empty KindReadResp, as on the wire.
type Burst struct {
	Type       Type
	Kind       Kind
	First      bool // starts with the message's first packet
	Last       bool // ends with the message's last packet
	AckReq     bool // on the last packet of the burst
	Solicited  bool
	Migrated   bool
	CE         bool   // the mark Congestion Experienced, in bursts that arrived
	Src, Dst   uint32 // queue pair numbers
	SGID, DGID GID
	PKey       uint16
	MTU        uint32
	PSN        uint32 // of the first packet
	Packets    uint32 // a READ request is one, though it takes the PSNs of its response
	// RETH / AtomicETH, valid in First bursts of writes, reads, atomics, flushes
	VA            uint64
	RKey          uint32
	Length        uint32 // of the whole message
	Compare, Swap uint64 // Swap is the operand of fetch-and-add too
	Imm           uint32 // valid in Last bursts of *Imm and *Inv
	QKey          uint32 // UD
	// AETH / AtomicAckETH, valid in responses
	Syndrome uint8
	MSN      uint32
	Orig     uint64
	// Offset of the burst's first byte in the message is the sender's business
	// and never trusted by the receiver: it counts for itself.
	Data *memory.Span // payload; nil or empty when there is none
}

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
// Run or Respond (Out*) > Host.Send > the peer's Receive (In*).
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
	// Share is how many bytes the queue pair that runs may have on its way to another
	// host, in view of what others have; 0: as many as its path allows. The loop sets it.
	Share uint32
	// Extra is what Send cost of Run's budget beyond the burst itself: a datagram to a
	// group is copied for every member. The loop adds to it.
	Extra int
}

// Host is the NIC as one queue pair sees it. Every call returns at once; none but
// Send calls back into a queue pair. The QP passes itself to none of them: a Host is
// bound to its queue pair.
//
// Those that touch registered memory (Gather, the Scatters, WriteRemote, ReadRemote,
// Atomic) may answer Later.
type Host interface {
	// Scratch is the working storage of the loop that owns the queue pair.
	Scratch() *Scratch

	// FetchSend copies the work request at position pos (free running) into w
	// and reports whether one is posted there.
	FetchSend(pos uint32, w *SendWQE) bool
	// RetireSend gives the application the slots before pos back.
	RetireSend(pos uint32)
	// CompleteSend ends a work request. It writes a completion if the request
	// was signalled or st is an error. bytes is byte_len. Of w only Pos, WRID,
	// Op, Flags and Length are valid. RetireSend(w.Pos+1) was called just
	// before, so an application that sees the completion finds the slot free.
	CompleteSend(w *SendWQE, st Status, bytes uint32)

	// TakeRecv consumes the next receive of the RQ or SRQ.
	TakeRecv(w *RecvWQE) bool
	// CompleteRecv writes w's completion.
	CompleteRecv(w *RecvWQE, r *RecvResult)

	// Gather fills s with n bytes of w's data from byte off on, after checking
	// the local keys and rights.
	Gather(w *SendWQE, off, n uint32, s *memory.Span) Status
	// ScatterSend copies a response's data into w's list (READ, atomics).
	ScatterSend(w *SendWQE, off uint32, s *memory.Span) Status
	// ScatterRecv copies a request's data into a receive's list.
	ScatterRecv(w *RecvWQE, off uint32, s *memory.Span) Status

	// CheckRemote checks key, bounds and rights of a remote access.
	CheckRemote(rkey uint32, va uint64, n uint32, a Access) Status
	// CheckKey checks key and rights of a remote access to all that the key names.
	CheckKey(rkey uint32, a Access) Status
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
	// LocalOp performs LOCAL_INV and BIND_MW.
	LocalOp(w *SendWQE) Status

	// ResolveAH gives the destination GID of an address handle (UD). It is called
	// just before Send; the source GID is the address handle's too, and the
	// host's to fill in there.
	ResolveAH(ah uint32) (dgid GID, ok bool)
	// GRH says what the 40 bytes before a UD message hold, for b.
	GRH(b *Burst, out *[40]byte)

	// Send hands b to the link. The link is done with b and its data when Send
	// returns. Requests and READ responses may be delivered inside Send. ACKs,
	// CNPs and atomic responses must not: the link queues them, in order, and
	// delivers them when Run, Respond or Receive of the sender has returned and
	// before Respond of the same queue pair is called again.
	Send(b *Burst)
	// Event raises an asynchronous event.
	Event(e Event)
}

// Attr is what MODIFY_QP sets, by value.
type Attr struct {
	State           State
	MTU             uint32 // bytes
	QKey            uint32
	RQPSN           uint32
	SQPSN           uint32
	DestQPN         uint32
	Access          Access
	PKey            uint16
	MaxRDAtomic     uint8 // initiator depth
	MaxDestRDAtomic uint8 // responder resources
	MinRNRTimer     uint8
	Timeout         uint8
	RetryCount      uint8
	RNRRetry        uint8
	SGID, DGID      GID
	SQDAsyncNotify  bool
}

// AttrMask says which fields of an Attr count, numbered as enum ib_qp_attr_mask.
type AttrMask uint32

const (
	MaskState           AttrMask = 1 << 0
	MaskCurState        AttrMask = 1 << 1
	MaskSQDAsyncNotify  AttrMask = 1 << 2
	MaskAccess          AttrMask = 1 << 3
	MaskPKey            AttrMask = 1 << 4
	MaskPort            AttrMask = 1 << 5
	MaskQKey            AttrMask = 1 << 6
	MaskAV              AttrMask = 1 << 7
	MaskMTU             AttrMask = 1 << 8
	MaskTimeout         AttrMask = 1 << 9
	MaskRetryCount      AttrMask = 1 << 10
	MaskRNRRetry        AttrMask = 1 << 11
	MaskRQPSN           AttrMask = 1 << 12
	MaskMaxRDAtomic     AttrMask = 1 << 13
	MaskAltPath         AttrMask = 1 << 14
	MaskMinRNRTimer     AttrMask = 1 << 15
	MaskSQPSN           AttrMask = 1 << 16
	MaskMaxDestRDAtomic AttrMask = 1 << 17
	MaskPathMigState    AttrMask = 1 << 18
	MaskCap             AttrMask = 1 << 19
	MaskDestQPN         AttrMask = 1 << 20
)

// Config is what a queue pair is born with.
type Config struct {
	Type     Type
	Num      uint32
	MaxBurst uint32 // bytes of payload in one burst; 0 means 64 KiB
	Window   uint32 // packets in flight; 0 means 8192
	MTU      uint32 // the port's MTU: limit of a UD message, and path MTU until MODIFY_QP sets one; 0 means 4096
	SRQ      bool   // receives come from a shared queue: they are not flushed, and LastWQE is raised
}
