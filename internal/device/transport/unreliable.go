package transport

import "vrdma.dev/vrdma/internal/ib"

// This file is the UC responder, and UD. Nothing is acknowledged or sent again, and messages that do not fit
// are dropped without an answer (IBA 9.8, 9.9.4).

// receiveUnreliable returns the UC responder. A gap in the sequence loses the message in which it lies; the next
// message starts again.
func (rs *responder) receiveUnreliable(c *respCall, b *Burst) (taken bool) {
	if !rs.listening(c) || b.Kind.base() == 0 || b.Kind == KindSendInv {
		c.Count.Dropped++
		return true
	}
	if b.First {
		rs.Msg.Kind, rs.Drop = 0, false
	} else if rs.Drop || rs.Msg.Kind == 0 || b.PSN != rs.PSN {
		if b.PSN != rs.PSN {
			c.Count.OutOfSequence++
		}
		rs.dropMessage(c)
		return true
	}
	switch rs.place(c, b) {
	case faultNone:
	case faultLater:
		return false
	case faultRecv:
		st := LocProtErr
		if rs.R.Bad != Success {
			st = rs.R.Bad
		}
		rs.finishRecv(c, st)
		c.fail()
		return true
	default:
		rs.dropMessage(c)
		return true
	}
	if b.Last {
		rs.deliver(c, b)
	}
	return true
}

// dropMessage drops the message in progress. The next message uses the receive that it had taken.
func (rs *responder) dropMessage(c *respCall) {
	c.Count.Dropped++
	rs.Msg.Kind, rs.Drop = 0, true
}

// grhLength is the length of the header that precedes a UD message in the receive buffer.
const grhLength = 40

// acceptDatagram reports whether b is a valid datagram for this queue pair.
func (rs *responder) acceptDatagram(c *respCall, b *Burst) bool {
	if !rs.listening(c) || b.Kind != KindSend && b.Kind != KindSendImm || !b.First || !b.Last || b.Packets != 1 {
		c.Count.Dropped++
		return false
	}
	if b.QKey != c.Attr.QKey {
		c.Count.BadQKey++
		return false
	}
	return true
}

// receiveDatagram delivers a datagram that acceptDatagram has accepted.
func (rs *responder) receiveDatagram(c *respCall, b *Burst) (taken bool) {
	n := b.size()
	if !rs.HaveRecv {
		rs.HaveRecv = c.h.TakeRecv(&rs.R)
	}
	if !rs.HaveRecv || n > defaultMTU || rs.R.Bad == Success && rs.R.Length < grhLength+n {
		c.Count.Dropped++
		c.Count.NoReceive++
		return true
	}
	sc := c.sc
	c.h.GRH(b, &sc.Buf)
	sc.InData.Reset()
	sc.InData.Add(sc.Buf[:])
	if n > 0 {
		sc.InData.Append(b.Data)
	}
	st := rs.R.Bad
	if st == Success {
		st = c.h.ScatterRecv(&rs.R, 0, &sc.InData)
	}
	if st == Later {
		return false
	}
	if st != Success {
		rs.finishRecv(c, st)
		c.fail()
		return true
	}
	rs.HaveRecv = false
	c.Count.RDMARecvs++
	c.countMessage(&c.Count.RcvdMessages, b)
	sc.Result = RecvResult{
		ByteLen: grhLength + n, HasGRH: true, Imm: b.Imm, HasImm: b.Kind == KindSendImm,
		Solicited: b.Solicited, SrcQP: b.Src,
	}
	c.h.CompleteRecv(&rs.R, &sc.Result)
	return true
}

// managementQP is the number of the general services queue pair.
const managementQP = 1

// controlledQKey marks a Q_Key in a work request that stands for the queue pair's own Q_Key (IBA 10.2.4). Only
// a privileged queue pair may have such a Q_Key.
const controlledQKey = 1 << 31

// sendDatagram sends the UD message in W.
func (r *requester) sendDatagram(c *reqCall) int {
	w := &r.W
	sc := c.sc
	b := &sc.Out
	c.address(b, sendKind(w.Op))
	sgid, dgid, ok := c.h.ResolveAH(w.AH)
	if !ok {
		r.failHere(c, LocQPOpErr)
		return 0
	}
	if w.Length > c.Conf.MTU {
		// A message that is too long is not sent, and no error is reported (C10-93.1.1).
		c.Count.SendErrors++
		r.begin(1)
		r.Pos++
		r.Loaded = false
		r.completeUnreliable(c)
		return minCost
	}
	sc.OutData.Reset()
	if w.Length > 0 {
		if st := c.h.Gather(w, 0, w.Length, &sc.OutData); st != Success {
			if st != Later {
				r.failHere(c, st)
			}
			return 0
		}
	}
	b.SGID, b.DGID = sgid, dgid
	b.Dst, b.QKey = w.RemoteQPN&ib.PSNMask, w.RemoteQKey
	if w.RemoteQKey&controlledQKey != 0 {
		b.QKey = c.Attr.QKey
	}
	b.MTU = c.Conf.MTU
	b.First, b.Last, b.Packets = true, true, 1
	b.AckReq = c.Conf.Num == managementQP // as rxe does, though no peer acknowledges it
	b.Length, b.Imm, b.Data = w.Length, w.Imm, &sc.OutData
	b.Solicited = w.Flags&FlagSolicited != 0
	r.begin(1)
	return r.emit(c, b, 1, true, max(int(w.Length), minCost))
}
