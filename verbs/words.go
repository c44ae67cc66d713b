package verbs

import (
	"fmt"
	"net/netip"

	"vrdma.dev/vrdma/internal/abi"
)

// A GID is the address of a port: an IPv6 address, or an IPv4 address mapped into one.
type GID [16]byte

// GIDOf returns the GID of an IP address.
func GIDOf(a netip.Addr) GID { return a.As16() }

// Addr returns the IP address of a GID.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

func (g GID) String() string { return g.Addr().String() }

// An MTU is the maximum payload of one packet in bytes: 256, 512, 1024, 2048 or 4096.
type MTU int

// mtuOf converts a value of enum ib_mtu.
func mtuOf(n uint8) MTU {
	if n < 1 || n > 5 {
		return 0
	}
	return MTU(128 << n)
}

// number returns the MTU as a value of enum ib_mtu, or 0 if it has none.
func (m MTU) number() uint8 {
	for n := uint8(1); n <= 5; n++ {
		if m == MTU(128<<n) {
			return n
		}
	}
	return 0
}

// A Type is the transport service of a queue pair.
type Type uint8

const (
	RC Type = abi.QPTypeRC // reliable connection
	UC Type = abi.QPTypeUC // unreliable connection
	UD Type = abi.QPTypeUD // unreliable datagram
)

func (t Type) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case UD:
		return "UD"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// A State is the state of a queue pair.
type State uint8

const (
	Reset State = abi.QPStateReset
	Init  State = abi.QPStateInit
	RTR   State = abi.QPStateRTR // ready to receive
	RTS   State = abi.QPStateRTS // ready to send
	SQD   State = abi.QPStateSQD // send queue drained
	SQE   State = abi.QPStateSQE // send queue error
	Err   State = abi.QPStateErr
)

func (s State) String() string {
	names := [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Access is a set of rights to memory, or to a queue pair.
type Access uint32

const (
	LocalWrite   Access = abi.AccessLocalWrite
	RemoteWrite  Access = abi.AccessRemoteWrite
	RemoteRead   Access = abi.AccessRemoteRead
	RemoteAtomic Access = abi.AccessRemoteAtomic
	BindWindows  Access = abi.AccessMWBind
	ZeroBased    Access = abi.AccessZeroBased

	FlushGlobal     Access = abi.AccessFlushGlobal     // peers may flush their writes to global visibility
	FlushPersistent Access = abi.AccessFlushPersistent // peers may flush their writes to persistent memory

	// RemoteAll gives peers all remote rights, and LocalWrite, which remote writes need.
	RemoteAll = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic
)

// An Op is the opcode of a work request: enum ibv_wr_opcode.
type Op uint32

const (
	Write           Op = abi.WRWrite
	WriteImm        Op = abi.WRWriteImm
	Send            Op = abi.WRSend
	SendImm         Op = abi.WRSendImm
	Read            Op = abi.WRRead
	CompareSwap     Op = abi.WRCmpSwap
	FetchAdd        Op = abi.WRFetchAdd
	LocalInvalidate Op = abi.WRLocalInv
	BindWindow      Op = abi.WRBindMW
	SendInvalidate  Op = abi.WRSendInv
	Flush           Op = abi.WRFlush
	AtomicWrite     Op = abi.WRAtomicWrite
)

func (o Op) String() string {
	names := [...]string{"write", "write with immediate", "send", "send with immediate", "read", "compare and swap",
		"fetch and add", "local invalidate", "bind window", "send with invalidate", Flush: "flush", AtomicWrite: "atomic write"}
	if int(o) < len(names) && names[o] != "" {
		return names[o]
	}
	return fmt.Sprintf("operation %d", uint32(o))
}

// Flags of a work request.
type Flags uint32

const (
	Fence     Flags = abi.WRFlagFence     // start only after all earlier reads and atomics have completed
	Signaled  Flags = abi.WRFlagSignaled  // generate a completion
	Solicited Flags = abi.WRFlagSolicited // the receive wakes a receiver that waits for solicited completions
	inline    Flags = abi.WRFlagInline
)
