package ib

import "vrdma.dev/vrdma/internal/abi"

// Service is the transport service of a queue pair.
type Service uint8

const (
	RC Service = iota + 1 // reliable connected
	UC                    // unreliable connected
	UD                    // unreliable datagram
)

// String returns the usual abbreviation.
func (s Service) String() string {
	switch s {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return "none"
}

// ServiceOf returns the transport service of an ABI queue pair type. It returns false for a type that
// programs cannot create here.
func ServiceOf(qpType uint8) (Service, bool) {
	switch qpType {
	case abi.QPTypeRC:
		return RC, true
	case abi.QPTypeUC:
		return UC, true
	case abi.QPTypeUD:
		return UD, true
	}
	return 0, false
}

// QPType returns the ABI queue pair type of a transport service.
func (s Service) QPType() uint8 {
	switch s {
	case RC:
		return abi.QPTypeRC
	case UC:
		return abi.QPTypeUC
	}
	return abi.QPTypeUD
}

// State is the state of a queue pair.
type State uint8

const (
	StateReset State = abi.QPStateReset
	StateInit  State = abi.QPStateInit
	StateRTR   State = abi.QPStateRTR
	StateRTS   State = abi.QPStateRTS
	StateSQD   State = abi.QPStateSQD
	StateSQE   State = abi.QPStateSQE
	StateError State = abi.QPStateErr
)

// Access is a set of rights to memory, or to a queue pair.
type Access uint32

const (
	AccessLocalWrite   Access = abi.AccessLocalWrite
	AccessRemoteWrite  Access = abi.AccessRemoteWrite
	AccessRemoteRead   Access = abi.AccessRemoteRead
	AccessRemoteAtomic Access = abi.AccessRemoteAtomic
	AccessMWBind       Access = abi.AccessMWBind
	AccessZeroBased    Access = abi.AccessZeroBased
	AccessFlushGlobal  Access = abi.AccessFlushGlobal
	AccessFlushPersist Access = abi.AccessFlushPersistent
)

// AttrMask is the set of attributes that a change of a queue pair sets.
type AttrMask uint32

const (
	MaskState           AttrMask = abi.QPMaskState
	MaskCurState        AttrMask = abi.QPMaskCurState
	MaskSQDAsyncNotify  AttrMask = abi.QPMaskEnSQDAsyncNotify
	MaskAccess          AttrMask = abi.QPMaskAccessFlags
	MaskPKey            AttrMask = abi.QPMaskPKeyIndex
	MaskPort            AttrMask = abi.QPMaskPort
	MaskQKey            AttrMask = abi.QPMaskQKey
	MaskAV              AttrMask = abi.QPMaskAV
	MaskMTU             AttrMask = abi.QPMaskPathMTU
	MaskTimeout         AttrMask = abi.QPMaskTimeout
	MaskRetryCount      AttrMask = abi.QPMaskRetryCnt
	MaskRNRRetry        AttrMask = abi.QPMaskRNRRetry
	MaskRQPSN           AttrMask = abi.QPMaskRQPSN
	MaskMaxRDAtomic     AttrMask = abi.QPMaskMaxQPRDAtomic
	MaskAltPath         AttrMask = abi.QPMaskAltPath
	MaskMinRNRTimer     AttrMask = abi.QPMaskMinRNRTimer
	MaskSQPSN           AttrMask = abi.QPMaskSQPSN
	MaskMaxDestRDAtomic AttrMask = abi.QPMaskMaxDestRDAtomic
	MaskPathMigState    AttrMask = abi.QPMaskPathMigState
	MaskCap             AttrMask = abi.QPMaskCap
	MaskDestQPN         AttrMask = abi.QPMaskDestQPN
)
