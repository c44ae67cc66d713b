package transport

import "vrdma.dev/vrdma/internal/abi"

// Status is the status of a completion, with the numbers of the completion ring.
type Status uint8

const (
	Success        Status = abi.WCStatusSuccess
	LocLenErr      Status = abi.WCStatusLocLenErr
	LocQPOpErr     Status = abi.WCStatusLocQPOpErr
	LocEECOpErr    Status = abi.WCStatusLocEECOpErr
	LocProtErr     Status = abi.WCStatusLocProtErr
	WRFlushErr     Status = abi.WCStatusWRFlushErr
	MWBindErr      Status = abi.WCStatusMWBindErr
	BadRespErr     Status = abi.WCStatusBadRespErr
	LocAccessErr   Status = abi.WCStatusLocAccessErr
	RemInvReqErr   Status = abi.WCStatusRemInvReqErr
	RemAccessErr   Status = abi.WCStatusRemAccessErr
	RemOpErr       Status = abi.WCStatusRemOpErr
	RetryExcErr    Status = abi.WCStatusRetryExcErr
	RNRRetryExcErr Status = abi.WCStatusRNRRetryExcErr
	LocRDDViolErr  Status = abi.WCStatusLocRDDViolErr
	RemInvRDReqErr Status = abi.WCStatusRemInvRDReqErr
	RemAbortErr    Status = abi.WCStatusRemAbortErr
	InvEECNErr     Status = abi.WCStatusInvEECNErr
	InvEECStateErr Status = abi.WCStatusInvEECStateErr
	FatalErr       Status = abi.WCStatusFatalErr
	RespTimeoutErr Status = abi.WCStatusRespTimeoutErr
	GeneralErr     Status = abi.WCStatusGeneralErr
)

// WROp is the operation of a work request, with the numbers of the send ring.
type WROp uint8

const (
	WRWrite       WROp = abi.WRWrite
	WRWriteImm    WROp = abi.WRWriteImm
	WRSend        WROp = abi.WRSend
	WRSendImm     WROp = abi.WRSendImm
	WRRead        WROp = abi.WRRead
	WRCmpSwap     WROp = abi.WRCmpSwap
	WRFetchAdd    WROp = abi.WRFetchAdd
	WRLocalInv    WROp = abi.WRLocalInv
	WRBindMW      WROp = abi.WRBindMW
	WRSendInv     WROp = abi.WRSendInv
	WRFlush       WROp = abi.WRFlush
	WRAtomicWrite WROp = abi.WRAtomicWrite
)

// Send flags.
const (
	FlagFence     = abi.WRFlagFence
	FlagSignaled  = abi.WRFlagSignaled
	FlagSolicited = abi.WRFlagSolicited
	FlagInline    = abi.WRFlagInline
)

// MaxSGE is the maximum length of a scatter/gather list.
const MaxSGE = 32

// MaxMessage is the maximum message length: 2^31 bytes by the specification.
const MaxMessage = 1 << 31

// SGE is one entry of a scatter/gather list.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWQE is a private copy of a posted send work request. It is copied from the shared ring once, checked, and
// not read from the ring again while it is in use.
type SendWQE struct {
	Pos        uint32 `cbor:"1,keyasint,omitempty"` // free-running position in the send queue
	WRID       uint64 `cbor:"2,keyasint,omitempty"`
	Op         WROp   `cbor:"3,keyasint,omitempty"`
	Flags      uint8  `cbor:"4,keyasint,omitempty"`
	Imm        uint32 `cbor:"5,keyasint,omitempty"` // immediate value as in memory (big endian bytes), or the rkey to invalidate
	RKey       uint32 `cbor:"6,keyasint,omitempty"`
	RemoteAddr uint64 `cbor:"7,keyasint,omitempty"`
	CompareAdd uint64 `cbor:"8,keyasint,omitempty"`
	Swap       uint64 `cbor:"9,keyasint,omitempty"` // also the 8 bytes of an atomic write, as in memory
	// UD
	RemoteQPN  uint32 `cbor:"10,keyasint,omitempty"`
	RemoteQKey uint32 `cbor:"11,keyasint,omitempty"`
	AH         uint32 `cbor:"12,keyasint,omitempty"`
	// Bind: RemoteAddr is the window's address, RKey its new rkey.
	MWRKey   uint32 `cbor:"13,keyasint,omitempty"`
	MRLKey   uint32 `cbor:"14,keyasint,omitempty"`
	MWLength uint64 `cbor:"15,keyasint,omitempty"`
	MWAccess uint32 `cbor:"16,keyasint,omitempty"`
	// Data
	Length uint32      `cbor:"17,keyasint,omitempty"` // total bytes
	Bad    Status      `cbor:"18,keyasint,omitempty"` // if not Success, the NIC found the request malformed: fail it with this status
	NumSGE uint8       `cbor:"19,keyasint,omitempty"`
	SGE    [MaxSGE]SGE `cbor:"-"`
}

// Plain reports whether w is a well-formed SEND or WRITE.
func (w *SendWQE) Plain() bool {
	return w.Bad == Success && w.Length <= MaxMessage && !w.Op.isRD() && !w.Op.isLocal()
}

// RecvWQE is a private copy of a posted receive.
type RecvWQE struct {
	WRID   uint64      `cbor:"1,keyasint,omitempty"`
	Length uint32      `cbor:"2,keyasint,omitempty"`
	Bad    Status      `cbor:"3,keyasint,omitempty"`
	NumSGE uint8       `cbor:"4,keyasint,omitempty"`
	SGE    [MaxSGE]SGE `cbor:"-"`
}

// RecvResult is the result of a completed receive.
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
