package transport

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
