package nic

import (
	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// A request is the fixed part of a work request, copied out of shared memory word by
// word. Fields are taken from the copy by their offset in struct rxe_send_wqe or
// rxe_recv_wqe (package abi). The machines that we serve are little-endian.
type request [abi.SendMWAccess/8 + 1]uint64

func (r *request) u64(off int) uint64 { return r[off/8] }
func (r *request) u32(off int) uint32 { return uint32(r[off/8] >> (off % 8 * 8)) }
func (r *request) u8(off int) uint8   { return uint8(r[off/8] >> (off % 8 * 8)) }

// A dmaInfo says where the data of a request is: struct rxe_dma_info.
type dmaInfo [(abi.SendNumSGE-abi.SendDMALength)/8 + 1]uint64

func (p *dmaInfo) length() uint32 { return uint32(p[0]) }
func (p *dmaInfo) numSGE() uint32 {
	const off = abi.SendNumSGE - abi.SendDMALength
	return uint32(p[off/8] >> (off % 8 * 8))
}

// parseSend copies the work request in slot into w and checks its shape. typ is the
// queue pair's service, maxSGE its list's capacity.
func parseSend(slot []byte, typ ib.Service, maxSGE uint32, w *transport.SendWQE) {
	var r request
	words(r[:], slot)
	var d dmaInfo
	words(d[:], slot[abi.SendDMALength:])

	op := r.u32(abi.SendOpcode)
	w.WRID = r.u64(abi.SendWRID)
	w.Flags = r.u8(abi.SendFlags)
	w.Imm = r.u32(abi.SendImm)
	w.Bad = transport.Success
	w.NumSGE = 0
	w.Length = 0
	if op > 255 || !transport.WROp(op).Valid(typ) {
		w.Op = transport.WRSend
		w.Bad = transport.LocQPOpErr
		return
	}
	w.Op = transport.WROp(op)

	switch w.Op {
	case transport.WRWrite, transport.WRWriteImm, transport.WRRead, transport.WRAtomicWrite:
		w.RemoteAddr, w.RKey = r.u64(abi.SendRemoteAddr), r.u32(abi.SendRKey)
	case transport.WRFlush:
		// The request has no data. Its length is in the field for the length of data. Type and
		// level have the encoding of the FETH.
		w.RemoteAddr, w.RKey = r.u64(abi.SendRemoteAddr), r.u32(abi.SendFlushRKey)
		w.Imm = uint32(r.u8(abi.SendFlushType))&0xf | uint32(r.u8(abi.SendFlushLevel))&3<<4
		w.Flags &^= transport.FlagInline
		if w.Length = d.length(); w.Length > transport.MaxMessage {
			w.Length, w.Bad = 0, transport.LocLenErr
		}
		return
	case transport.WRCmpSwap, transport.WRFetchAdd:
		w.RemoteAddr, w.RKey = r.u64(abi.SendRemoteAddr), r.u32(abi.SendAtomicRKey)
		w.CompareAdd, w.Swap = r.u64(abi.SendCompareAdd), r.u64(abi.SendSwap)
	case transport.WRSend, transport.WRSendImm:
		w.RemoteQPN, w.RemoteQKey, w.AH = r.u32(abi.SendRemoteQPN)&ib.QPNMask, r.u32(abi.SendRemoteQKey), r.u32(abi.SendAHNum)
	case transport.WRBindMW:
		w.RemoteAddr, w.MWLength = r.u64(abi.SendMWAddr), r.u64(abi.SendMWLength)
		w.MRLKey, w.MWRKey = r.u32(abi.SendMWMRLKey), r.u32(abi.SendMWMWRKey)
		w.RKey, w.MWAccess = r.u32(abi.SendMWRKey), r.u32(abi.SendMWAccess)
		return
	case transport.WRLocalInv:
		return
	}
	parseData(slot, d.length(), d.numSGE(), maxSGE, w)
}

// parseData reads where the data is: in the slot, or where the list says.
func parseData(slot []byte, length, numSGE, maxSGE uint32, w *transport.SendWQE) {
	if w.Op == transport.WRAtomicWrite && numSGE == 0 {
		var v [1]uint64
		words(v[:], slot[abi.SendInline:])
		w.Swap, w.Length = v[0], 8
		w.Flags |= transport.FlagInline
		return
	}
	if w.Flags&transport.FlagInline != 0 {
		if !w.Op.Inline() || length > uint32(len(slot)-abi.SendWQESize) {
			w.Bad = transport.LocQPOpErr
			return
		}
		w.Length = length
		return
	}
	// The extended builders of the stock provider set the inline length without
	// the flag; a list of no entries with a length is inline data.
	if numSGE == 0 && length > 0 {
		if length > uint32(len(slot)-abi.SendWQESize) {
			w.Bad = transport.LocQPOpErr
			return
		}
		w.Flags |= transport.FlagInline
		w.Length = length
		return
	}
	n, total, ok := parseSGE(slot[abi.SendSGE:], numSGE, maxSGE, &w.SGE)
	if !ok {
		w.Bad = transport.LocQPOpErr
		return
	}
	if total > transport.MaxMessage {
		w.Bad = transport.LocLenErr
		return
	}
	w.NumSGE, w.Length = n, uint32(total)
}

// parseSGE copies a scatter/gather list and sums it: the stock provider's own sum
// is wrong in one of its builders.
func parseSGE(b []byte, num, maxSGE uint32, list *[transport.MaxSGE]transport.SGE) (uint8, uint64, bool) {
	if num > maxSGE || num > transport.MaxSGE || int(num)*abi.SGESize > len(b) {
		return 0, 0, false
	}
	var total uint64
	for i := range num {
		var e [2]uint64
		words(e[:], b[i*abi.SGESize:])
		s := &list[i]
		s.Addr, s.Length, s.LKey = e[0], uint32(e[1]), uint32(e[1]>>32)
		total += uint64(s.Length)
	}
	return uint8(num), total, true
}

// parseRecv copies the receive in slot into w.
func parseRecv(slot []byte, maxSGE uint32, w *transport.RecvWQE) {
	var id [1]uint64
	words(id[:], slot[abi.RecvWRID:])
	var d dmaInfo
	words(d[:], slot[abi.RecvDMALength:])
	w.WRID = id[0]
	w.Bad = transport.Success
	n, total, ok := parseSGE(slot[abi.RecvSGE:], d.numSGE(), maxSGE, &w.SGE)
	if !ok || total > 1<<32-1 {
		w.NumSGE, w.Length, w.Bad = 0, 0, transport.LocQPOpErr
		return
	}
	w.NumSGE, w.Length = n, uint32(total)
}
