package transport

import "vrdma.dev/vrdma/internal/ib"

// This file lets a queue pair fail on purpose (package fault). It uses the same code as a real failure, so that
// counters, events and completions are the same.

// A Refusal is how a responder refuses a request on purpose.
type Refusal uint8

// Refusals.
const (
	RefuseRNR      Refusal = iota // as if no receive were posted
	RefuseSequence                // as if a packet before it were missing
	RefuseAccess                  // as if the key were wrong; the queue pair fails
)

// RefuseRequest answers the request b with a NAK. It returns false, and does nothing, unless b is the next request of
// a reliable connection: a NAK acknowledges everything before it.
func (q *QP) RefuseRequest(now ib.Time, b *Burst, why Refusal, h *Env) bool {
	c, rs := q.respCall(now, h), &q.resp
	if b.Type != ib.RC || c.Conf.Type != ib.RC || b.Kind >= KindReadResp || b.PSN != rs.PSN || rs.Closing ||
		b.Src != c.Attr.DestQPN || b.SGID != c.Attr.DGID || !rs.listening(&c) {
		return false
	}
	switch why {
	case RefuseRNR:
		rs.refuse(&c, faultRNR, rs.PSN)
	case RefuseSequence:
		c.Count.OutOfSequence++
		rs.Delayed.NakEnd = ib.PSNAdd(rs.PSN, b.psns(c.Attr.MTU))
		rs.nakSoon(&c, NakSequence, rs.PSN)
	case RefuseAccess:
		rs.refuse(&c, faultAccess, rs.PSN)
	}
	q.endCall(now, h)
	return true
}

// ReceiveNak acts on a NAK for the oldest unacknowledged packet, as if the peer had sent it. It returns false if none
// is outstanding.
func (q *QP) ReceiveNak(now ib.Time, why Refusal, h *Env) bool {
	c, r := q.reqCall(now, h), &q.req
	if c.Conf.Type != ib.RC || !c.running() || r.Una == r.Max {
		return false
	}
	b := Burst{Type: ib.RC, Kind: KindAck, First: true, Last: true, Packets: 1, PSN: r.Una, MSN: r.Max}
	switch why {
	case RefuseRNR:
		b.Syndrome = RNRNak | nakTimer
	case RefuseSequence:
		b.Syndrome = NakSequence
	case RefuseAccess:
		b.Syndrome = NakAccess
	}
	r.acknowledge(&c, &b)
	q.endCall(now, h)
	return true
}

// nakTimer is the timer of an RNR NAK that no responder sent: 0.64 ms (IBA table 45).
const nakTimer = 12

// ExceedRetries completes the oldest request with RetryExcErr, as if all retries had been used. It returns false if
// none is outstanding.
func (q *QP) ExceedRetries(now ib.Time, h *Env) bool {
	c := q.reqCall(now, h)
	if c.Conf.Type != ib.RC || !c.running() || q.req.Una == q.req.Max {
		return false
	}
	c.Count.RetryExceeded++
	q.req.failTail(&c, RetryExcErr)
	q.endCall(now, h)
	return true
}

// Part fills p with n packets of b from packet at on, and their data into span. Only a burst with data has more than
// one packet.
func (b *Burst) Part(at, n uint32, p *Burst) {
	span := p.Data
	*p = *b
	end := at+n == b.Packets
	p.PSN, p.Packets = ib.PSNAdd(b.PSN, at), n
	p.First, p.Last = b.First && at == 0, b.Last && end
	p.AckReq, p.Solicited = b.AckReq && end, b.Solicited && end
	if b.Data == nil || at == 0 && end {
		return
	}
	from := min(int(at*b.MTU), b.Data.Len())
	to := b.Data.Len()
	if !end {
		to = min(int((at+n)*b.MTU), to)
	}
	span.Reset()
	span.AppendPart(b.Data, from, to)
	p.Data = span
}
