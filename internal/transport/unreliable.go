package transport

import "vrdma/internal/ib"

// The UC responder and all of UD: nothing is acknowledged, nothing is sent twice, and
// what does not fit is dropped in silence (IBA 9.8, 9.9.4).

// receiveUnreliable is the UC responder. A gap in the sequence loses the message it
// falls into; the next one starts afresh.
func (q *QP) receiveUnreliable(b *Burst, h Host) (taken bool) {
	rs := &q.resp
	if !q.listening(h) || b.Kind.base() == 0 || b.Kind == KindSendInv {
		q.count.Dropped++
		return true
	}
	if b.First {
		rs.Kind, rs.Drop = 0, false
	} else if rs.Drop || rs.Kind == 0 || b.PSN != rs.PSN {
		if b.PSN != rs.PSN {
			q.count.OutOfSequence++
		}
		q.dropMessage()
		return true
	}
	switch q.place(b, h) {
	case faultNone:
	case faultLater:
		return false
	case faultRecv:
		st := LocProtErr
		if rs.R.Bad != Success {
			st = rs.R.Bad
		}
		q.finishRecv(st, h)
		q.enterError(h)
		return true
	default:
		q.dropMessage()
		return true
	}
	if b.Last {
		q.deliver(b, h)
	}
	return true
}

// dropMessage gives up the message in progress. A receive that it had taken serves the
// next one, as it would had it never been taken.
func (q *QP) dropMessage() {
	q.count.Dropped++
	q.resp.Kind, q.resp.Drop = 0, true
}

// grhLength is what a UD message has in front of it in the receiver's buffer.
const grhLength = 40

// receiveDatagram is the UD responder.
func (q *QP) receiveDatagram(now ib.Time, b *Burst, h Host) (taken bool) {
	rs := &q.resp
	if b.Kind == KindCNP {
		q.Congested(now, b.SGID)
		return true
	}
	if !q.listening(h) || b.Kind != KindSend && b.Kind != KindSendImm || !b.First || !b.Last || b.Packets != 1 {
		q.count.Dropped++
		return true
	}
	if b.QKey != q.attr.QKey {
		q.count.BadQKey++
		return true
	}
	if b.CE {
		q.notify(now, b, h)
	}
	n := b.size()
	if !rs.HaveRecv {
		rs.HaveRecv = h.TakeRecv(&rs.R)
	}
	if !rs.HaveRecv || n > defaultMTU || rs.R.Bad == Success && rs.R.Length < grhLength+n {
		q.count.Dropped++
		return true
	}
	sc := h.Scratch()
	h.GRH(b, &sc.Buf)
	sc.InData.Reset()
	sc.InData.Add(sc.Buf[:])
	if n > 0 {
		sc.InData.Append(b.Data)
	}
	st := rs.R.Bad
	if st == Success {
		st = h.ScatterRecv(&rs.R, 0, &sc.InData)
	}
	if st == Later {
		return false
	}
	if st != Success {
		q.finishRecv(st, h)
		q.enterError(h)
		return true
	}
	rs.HaveRecv = false
	q.count.RDMARecvs++
	sc.Result = RecvResult{
		ByteLen: grhLength + n, HasGRH: true, Imm: b.Imm, HasImm: b.Kind == KindSendImm,
		Solicited: b.Solicited, SrcQP: b.Src,
	}
	h.CompleteRecv(&rs.R, &sc.Result)
	return true
}

// managementQP is the number of the queue pair for connection management.
const managementQP = 1

// controlledQKey marks a Q_Key in a work request that stands for the queue pair's own
// (IBA 10.2.4): only a privileged queue pair may have such a key.
const controlledQKey = 1 << 31

// sendDatagram sends the UD message in W.
func (q *QP) sendDatagram(now ib.Time, h Host) int {
	r := &q.req
	w := &r.W
	sc := h.Scratch()
	b := &sc.Out
	q.address(b, sendKind(w.Op))
	dgid, ok := h.ResolveAH(w.AH)
	if !ok {
		q.failHere(LocQPOpErr, h)
		return 0
	}
	if w.Length > q.conf.MTU {
		// Too long a message is not sent, and no error is reported (C10-93.1.1).
		q.count.SendErrors++
		q.begin(1)
		r.Pos++
		r.Loaded = false
		q.completeUnreliable(h)
		return minCost
	}
	sc.OutData.Reset()
	if w.Length > 0 {
		if st := h.Gather(w, 0, w.Length, &sc.OutData); st != Success {
			if st != Later {
				q.failHere(st, h)
			}
			return 0
		}
	}
	b.DGID, b.Dst, b.QKey = dgid, w.RemoteQPN&ib.PSNMask, w.RemoteQKey
	if w.RemoteQKey&controlledQKey != 0 {
		b.QKey = q.attr.QKey
	}
	b.MTU = q.conf.MTU
	b.First, b.Last, b.Packets = true, true, 1
	b.AckReq = q.conf.Num == managementQP // as rxe does, though nobody acknowledges it
	b.Length, b.Imm, b.Data = w.Length, w.Imm, &sc.OutData
	b.Solicited = w.Flags&FlagSolicited != 0
	q.begin(1)
	return q.emit(now, b, 1, true, max(int(w.Length), minCost), h)
}
