package nic

import (
	"vrdma/internal/transport"
)

// The layout of struct rxe_send_wqe and struct rxe_recv_wqe (rdma_user_rxe.h), in
// bytes. Only the words that mean something to us are read.
const (
	sendWQESize = 208 // before the scatter/gather list or the inline data
	recvWQESize = 40
	sgeSize     = 16

	sendHeadWords = 7   // wr_id … the operation's own words
	sendDMA       = 184 // struct rxe_dma_info
	recvDMA       = 16
)

// parseSend copies the work request in slot into w and checks its shape. typ is the
// queue pair's service, maxSGE its list's capacity.
func parseSend(slot []byte, typ transport.Type, maxSGE uint32, w *transport.SendWQE) {
	var h [sendHeadWords]uint64
	words(h[:], slot)
	var d [2]uint64
	words(d[:], slot[sendDMA:])

	op := uint32(h[1] >> 32)
	w.WRID = h[0]
	w.Flags = uint8(h[2])
	w.Imm = uint32(h[2] >> 32)
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
		w.RemoteAddr, w.RKey = h[3], uint32(h[4])
	case transport.WRFlush:
		// The length is where that of data would be, but there is none. Type and level
		// become what the FETH says.
		w.RemoteAddr, w.RKey = h[3], uint32(h[4]>>32)
		w.Imm = uint32(h[5])&0xf | uint32(h[5]>>8)&3<<4
		w.Flags &^= transport.FlagInline
		if w.Length = uint32(d[0]); w.Length > transport.MaxMessage {
			w.Length, w.Bad = 0, transport.LocLenErr
		}
		return
	case transport.WRCmpSwap, transport.WRFetchAdd:
		w.RemoteAddr, w.CompareAdd, w.Swap, w.RKey = h[3], h[4], h[5], uint32(h[6])
	case transport.WRSend, transport.WRSendImm:
		w.RemoteQPN, w.RemoteQKey, w.AH = uint32(h[3])&0xffffff, uint32(h[3]>>32), uint32(h[4]>>32)
	case transport.WRBindMW:
		w.RemoteAddr, w.MWLength = h[3], h[4]
		w.MRLKey, w.MWRKey = uint32(h[5]), uint32(h[5]>>32)
		w.RKey, w.MWAccess = uint32(h[6]), uint32(h[6]>>32)
		return
	case transport.WRLocalInv:
		return
	}
	parseData(slot, uint32(d[0]), uint32(d[1]>>32), maxSGE, w)
}

// parseData reads where the data is: in the slot, or where the list says.
func parseData(slot []byte, length, numSGE, maxSGE uint32, w *transport.SendWQE) {
	if w.Op == transport.WRAtomicWrite && numSGE == 0 {
		var v [1]uint64
		words(v[:], slot[sendWQESize:])
		w.Swap, w.Length = v[0], 8
		w.Flags |= transport.FlagInline
		return
	}
	if w.Flags&transport.FlagInline != 0 {
		if !w.Op.Inline() || length > uint32(len(slot)-sendWQESize) {
			w.Bad = transport.LocQPOpErr
			return
		}
		w.Length = length
		return
	}
	// The extended builders of the stock provider set the inline length without
	// the flag; a list of no entries with a length is inline data.
	if numSGE == 0 && length > 0 {
		if length > uint32(len(slot)-sendWQESize) {
			w.Bad = transport.LocQPOpErr
			return
		}
		w.Flags |= transport.FlagInline
		w.Length = length
		return
	}
	n, total, ok := parseSGE(slot[sendWQESize:], numSGE, maxSGE, &w.SGE)
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
	if num > maxSGE || num > transport.MaxSGE || int(num)*sgeSize > len(b) {
		return 0, 0, false
	}
	var total uint64
	for i := range num {
		var e [2]uint64
		words(e[:], b[i*sgeSize:])
		s := &list[i]
		s.Addr, s.Length, s.LKey = e[0], uint32(e[1]), uint32(e[1]>>32)
		total += uint64(s.Length)
	}
	return uint8(num), total, true
}

// parseRecv copies the receive in slot into w.
func parseRecv(slot []byte, maxSGE uint32, w *transport.RecvWQE) {
	var h [1]uint64
	words(h[:], slot)
	var d [2]uint64
	words(d[:], slot[recvDMA:])
	w.WRID = h[0]
	w.Bad = transport.Success
	n, total, ok := parseSGE(slot[recvWQESize:], uint32(d[1]>>32), maxSGE, &w.SGE)
	if !ok || total > 1<<32-1 {
		w.NumSGE, w.Length, w.Bad = 0, 0, transport.LocQPOpErr
		return
	}
	w.NumSGE, w.Length = n, uint32(total)
}
