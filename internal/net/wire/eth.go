package wire

import "encoding/binary"

// This file has the extended transport headers of requests (IBA 9.3); aeth.go has those of responses.

// RETH is the RDMA extended transport header: the remote memory of a WRITE, READ, flush or atomic
// write.
type RETH []byte

// RETHSize is the length of a RETH.
const RETHSize = 16

const (
	rethVA     = 0
	rethRKey   = 8
	rethLength = 12
)

// IsValid reports whether r can be read.
func (r RETH) IsValid() bool { return len(r) >= RETHSize }

// VA returns the virtual address.
func (r RETH) VA() uint64 { return binary.BigEndian.Uint64(r[rethVA:]) }

// SetVA sets the virtual address.
func (r RETH) SetVA(v uint64) { binary.BigEndian.PutUint64(r[rethVA:], v) }

// RKey returns the remote key.
func (r RETH) RKey() uint32 { return binary.BigEndian.Uint32(r[rethRKey:]) }

// SetRKey sets the remote key.
func (r RETH) SetRKey(v uint32) { binary.BigEndian.PutUint32(r[rethRKey:], v) }

// Length returns the length of the whole message.
func (r RETH) Length() uint32 { return binary.BigEndian.Uint32(r[rethLength:]) }

// SetLength sets the length of the message.
func (r RETH) SetLength(v uint32) { binary.BigEndian.PutUint32(r[rethLength:], v) }

// AtomicETH is the atomic extended transport header.
type AtomicETH []byte

// AtomicETHSize is the length of an AtomicETH.
const AtomicETHSize = 28

const (
	atomicVA      = 0
	atomicRKey    = 8
	atomicSwap    = 12
	atomicCompare = 20
)

// IsValid reports whether a can be read.
func (a AtomicETH) IsValid() bool { return len(a) >= AtomicETHSize }

// VA returns the virtual address.
func (a AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(a[atomicVA:]) }

// SetVA sets the virtual address.
func (a AtomicETH) SetVA(v uint64) { binary.BigEndian.PutUint64(a[atomicVA:], v) }

// RKey returns the remote key.
func (a AtomicETH) RKey() uint32 { return binary.BigEndian.Uint32(a[atomicRKey:]) }

// SetRKey sets the remote key.
func (a AtomicETH) SetRKey(v uint32) { binary.BigEndian.PutUint32(a[atomicRKey:], v) }

// Swap returns the value to swap in, or to add.
func (a AtomicETH) Swap() uint64 { return binary.BigEndian.Uint64(a[atomicSwap:]) }

// SetSwap sets the value to swap in or to add.
func (a AtomicETH) SetSwap(v uint64) { binary.BigEndian.PutUint64(a[atomicSwap:], v) }

// Compare returns the value to compare with.
func (a AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(a[atomicCompare:]) }

// SetCompare sets the value to compare with.
func (a AtomicETH) SetCompare(v uint64) { binary.BigEndian.PutUint64(a[atomicCompare:], v) }

// DETH is the datagram extended transport header: information about the sender of a UD packet.
type DETH []byte

// DETHSize is the length of a DETH.
const DETHSize = 8

const (
	dethQKey     = 0
	dethReserved = 4
	dethSrcQP    = 5
)

// IsValid reports whether d can be read.
func (d DETH) IsValid() bool { return len(d) >= DETHSize }

// QKey returns the queue key.
func (d DETH) QKey() uint32 { return binary.BigEndian.Uint32(d[dethQKey:]) }

// SetQKey sets the queue key.
func (d DETH) SetQKey(v uint32) { binary.BigEndian.PutUint32(d[dethQKey:], v) }

// SrcQP returns the number of the queue pair that sent the packet.
func (d DETH) SrcQP() uint32 { return uint24(d[dethSrcQP:]) }

// SetSrcQP sets the sender's queue pair number.
func (d DETH) SetSrcQP(v uint32) { putUint24(d[dethSrcQP:], v) }

// ImmDt is four bytes of immediate data, in the byte order of the sender's memory.
type ImmDt []byte

// ImmDtSize is the length of an ImmDt.
const ImmDtSize = 4

// IsValid reports whether i can be read.
func (i ImmDt) IsValid() bool { return len(i) >= ImmDtSize }

// Data returns the immediate data in network byte order.
func (i ImmDt) Data() uint32 { return binary.BigEndian.Uint32(i) }

// SetData sets the immediate data.
func (i ImmDt) SetData(v uint32) { binary.BigEndian.PutUint32(i, v) }

// IETH is the invalidate extended transport header: the key that a SEND with invalidate invalidates.
type IETH []byte

// IETHSize is the length of an IETH.
const IETHSize = 4

// IsValid reports whether i can be read.
func (i IETH) IsValid() bool { return len(i) >= IETHSize }

// RKey returns the key to invalidate.
func (i IETH) RKey() uint32 { return binary.BigEndian.Uint32(i) }

// SetRKey sets the key to invalidate.
func (i IETH) SetRKey(v uint32) { binary.BigEndian.PutUint32(i, v) }

// FETH is the flush extended transport header (IBA annex A19): the placement type and the range of a
// flush.
type FETH []byte

// FETHSize is the length of a FETH.
const FETHSize = 4

// Values of the placement and selectivity fields.
const (
	FlushGlobal     = 1 // placement: globally visible
	FlushPersistent = 2 // placement: survives a power failure

	FlushRange  = 0 // selectivity: the range of the RETH
	FlushRegion = 1 // selectivity: the whole memory region
)

const (
	fethPlacement   = 0x0f
	fethSelectivity = 0x30
	fethSelShift    = 4
)

// IsValid reports whether f can be read.
func (f FETH) IsValid() bool { return len(f) >= FETHSize }

// Bits returns the header as a number. Bits outside of placement and selectivity are reserved.
func (f FETH) Bits() uint32 { return binary.BigEndian.Uint32(f) }

// SetBits sets the whole header.
func (f FETH) SetBits(v uint32) { binary.BigEndian.PutUint32(f, v) }

// Placement returns a set of FlushGlobal and FlushPersistent.
func (f FETH) Placement() uint8 { return f[3] & fethPlacement }

// SetPlacement sets the placement type.
func (f FETH) SetPlacement(v uint8) { f[3] = f[3]&^fethPlacement | v&fethPlacement }

// Selectivity returns FlushRange or FlushRegion.
func (f FETH) Selectivity() uint8 { return f[3] & fethSelectivity >> fethSelShift }

// SetSelectivity sets the selectivity level.
func (f FETH) SetSelectivity(v uint8) {
	f[3] = f[3]&^fethSelectivity | v<<fethSelShift&fethSelectivity
}
