package transport

import "vrdma.dev/vrdma/internal/ib"

// This file converts the request in W into bursts and sends them.

// sendData sends the next burst of a SEND or WRITE.
func (r *requester) sendData(c *reqCall, budget int) int {
	w := &r.W
	mtu := c.Attr.MTU
	left := w.Length - r.Off
	n := min(left, r.most(c.common))
	if budget < int(n) {
		n = max(uint32(budget), mtu)
	}
	if c.Conf.Type == ib.RC {
		// Compare in packets: the window times the MTU may overflow 32 bits.
		room := r.room(c.common)
		if n/mtu >= room {
			n = room * mtu
		}
	}
	if n >= left {
		n = left
	} else {
		n -= n % mtu
	}
	sc := c.sc
	sc.OutData.Reset()
	if n > 0 {
		if st := c.h.Gather(w, r.Off, n, &sc.OutData); st != Success {
			if st != Later {
				r.failHere(c, st)
			}
			return 0
		}
		n = uint32(sc.OutData.Len())
	}
	b := &sc.Out
	c.address(b, sendKind(w.Op))
	b.First = r.Off == 0
	b.Last = n == left
	b.Packets = packetsOf(n, mtu)
	if w.Op == WRWrite || w.Op == WRWriteImm {
		b.VA, b.RKey, b.Length = w.RemoteAddr, w.RKey, w.Length
	}
	b.Imm = w.Imm
	b.Solicited = b.Last && w.Flags&FlagSolicited != 0 && w.Op != WRWrite
	b.Data = &sc.OutData
	r.Unasked += b.Packets
	if c.Conf.Type != ib.RC {
		r.Unasked = 0
	} else if b.AckReq = r.asks(c, b); b.AckReq {
		r.Unasked = 0
	}
	if b.First {
		r.begin(packetsOf(w.Length, mtu))
	}
	r.Off += n
	return r.emit(c, b, b.Packets, b.Last, max(int(n), minCost))
}

// sendRD sends a READ, an atomic or a flush: one packet that takes the PSNs of its response.
func (r *requester) sendRD(c *reqCall) int {
	w := &r.W
	b := &c.sc.Out
	c.address(b, sendKind(w.Op))
	b.First, b.Last, b.AckReq, b.Packets = true, true, true, 1
	b.VA, b.RKey, b.Length = w.RemoteAddr, w.RKey, 8
	psns, done := uint32(1), true
	switch w.Op {
	case WRRead:
		b.VA += uint64(r.Off)
		b.Length = w.Length - r.Off
		psns = packetsOf(b.Length, c.Attr.MTU)
		if psns > 1 {
			if n := r.piece(c.common, psns); n < psns {
				psns, done = n, false
				b.Length = n * c.Attr.MTU
				r.Off += b.Length
			}
		}
		r.begin(packetsOf(w.Length, c.Attr.MTU))
	case WRCmpSwap:
		b.Compare, b.Swap = w.CompareAdd, w.Swap
	case WRFetchAdd:
		b.Swap = w.CompareAdd
	case WRAtomicWrite:
		b.Swap = w.Swap
	case WRFlush:
		b.Length, b.Imm = w.Length, w.Imm
	}
	if w.Op != WRRead {
		r.begin(1)
	}
	r.RDOut++
	r.Unasked = 0
	return r.emit(c, b, psns, done, minCost)
}

// emit sends b, which takes psns sequence numbers, and advances, to the next request if done is true. It
// updates the whole state before it calls the link, because the peer may be this queue pair itself.
func (r *requester) emit(c *reqCall, b *Burst, psns uint32, done bool, cost int) int {
	b.PSN = r.PSN
	if old := ib.PSNDist(r.PSN, r.Max); old != 0 && old <= ib.PSNHalf {
		c.Count.Retransmitted += uint64(b.Packets)
	}
	next := ib.PSNAdd(r.PSN, psns)
	if c.Path.Remote {
		r.depart(c, b, psns)
	}
	if ib.PSNDist(r.Una, next) > ib.PSNDist(r.Una, r.Max) {
		r.Max = next
		if done {
			c.countMessage(&c.Count.SentMessages, b)
		}
	}
	r.PSN = next
	if done {
		r.Pos++
		r.Loaded = false
		c.Count.RDMASends++
	}
	if r.Loss.RetransAt == 0 && c.Conf.Type == ib.RC {
		r.restartTimer(c.common, c.now)
	}
	c.transmit(b)
	if !c.running() {
		return 0
	}
	if done && c.Conf.Type != ib.RC {
		r.completeUnreliable(c)
	}
	return cost
}

// depart records that b, which takes psns sequence numbers, is sent to another host.
func (r *requester) depart(c *reqCall, b *Burst, psns uint32) {
	if c.Conf.Type != ib.RC {
		c.Pace.spend(c.now, b)
		return
	}
	r.CC.spend(c.now, psns*c.Attr.MTU)
	if b.AckReq && r.PSN == r.Max {
		r.CC.measure(c.now, ib.PSNAdd(r.PSN, b.Packets))
	}
}
