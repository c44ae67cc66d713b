package transport

import "vrdma/internal/ib"

// A QP is one queue pair: the state of its requester and of its responder. It holds
// no pointer; between two calls it may be copied or frozen, as long as one copy only
// goes on.
//
//	       Modify              Modify             Modify
//	RESET ───────▶ INIT ───────▶ RTR ───────▶ RTS ◀──────▶ SQD
//	                 │            │           ▲ │            │
//	                 │            │    Modify │ │ a send of UC or UD failed
//	                 │            │           SQE            │
//	                 └────────────┴─────┬───────┴────────────┘
//	                                    ▼ Modify, or a fatal fault
//	                                  ERROR: both queues are flushed
//
// Which transitions an application may ask for, and with which attributes, is the
// NIC's to check; Modify does what it is told.
type QP struct {
	conf  Config
	attr  Attr
	path  Path
	state ib.State
	req   requester
	resp  responder
	cc    congestion
	pace  pacer
	count Counters
}

// Defaults of Config.
const (
	defaultBurst  = 64 << 10
	defaultWindow = 8192
	defaultMTU    = 4096
)

// Init makes q a new queue pair in the state RESET.
func (q *QP) Init(c Config) {
	if c.MaxBurst == 0 {
		c.MaxBurst = defaultBurst
	}
	if c.Window == 0 || c.Window > ib.PSNHalf-1 {
		c.Window = defaultWindow
	}
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	*q = QP{conf: c}
	q.attr.MTU = c.MTU
	q.SetPath(Path{})
}

// State is the current state.
func (q *QP) State() ib.State { return q.state }

// Counters are the queue pair's counters; the caller may read them in place.
func (q *QP) Counters() *Counters { return &q.count }

// Modify applies the values that mask names, then the change of state.
func (q *QP) Modify(a *Attr, mask ib.AttrMask, now ib.Time, h Host) {
	if mask&ib.MaskState != 0 && a.State == ib.StateReset {
		c, p := q.count, q.path
		q.Init(q.conf)
		q.count = c
		q.SetPath(p)
		return
	}
	q.apply(a, mask)
	q.fitPath()
	if mask&ib.MaskState != 0 {
		q.enter(a.State, now, h)
	}
}

func (q *QP) apply(a *Attr, mask ib.AttrMask) {
	set8 := func(m ib.AttrMask, dst *uint8, v uint8) {
		if mask&m != 0 {
			*dst = v
		}
	}
	set32 := func(m ib.AttrMask, dst *uint32, v uint32) {
		if mask&m != 0 {
			*dst = v
		}
	}
	set32(ib.MaskQKey, &q.attr.QKey, a.QKey)
	set32(ib.MaskMTU, &q.attr.MTU, a.MTU)
	set32(ib.MaskDestQPN, &q.attr.DestQPN, a.DestQPN)
	set8(ib.MaskTimeout, &q.attr.Timeout, a.Timeout)
	set8(ib.MaskRetryCount, &q.attr.RetryCount, a.RetryCount)
	set8(ib.MaskRNRRetry, &q.attr.RNRRetry, a.RNRRetry)
	set8(ib.MaskMaxRDAtomic, &q.attr.MaxRDAtomic, a.MaxRDAtomic)
	set8(ib.MaskMinRNRTimer, &q.attr.MinRNRTimer, a.MinRNRTimer)
	if q.attr.MTU < 256 || q.attr.MTU > 4096 {
		q.attr.MTU = min(max(q.attr.MTU, 256), 4096)
	}
	if mask&ib.MaskAccess != 0 {
		q.attr.Access = a.Access
	}
	if mask&ib.MaskPKey != 0 {
		q.attr.PKey = a.PKey
	}
	if mask&ib.MaskAV != 0 {
		q.attr.SGID, q.attr.DGID = a.SGID, a.DGID
	}
	if mask&ib.MaskSQDAsyncNotify != 0 {
		q.attr.SQDAsyncNotify = a.SQDAsyncNotify
	}
	if mask&ib.MaskMaxDestRDAtomic != 0 {
		q.setResources(a.MaxDestRDAtomic)
	}
	if mask&ib.MaskRQPSN != 0 {
		q.resp.PSN, q.resp.AckPSN = a.RQPSN&ib.PSNMask, a.RQPSN&ib.PSNMask
	}
	if mask&ib.MaskSQPSN != 0 {
		p := a.SQPSN & ib.PSNMask
		q.req.PSN, q.req.Una, q.req.Max, q.req.TailPSN, q.req.Arrived = p, p, p, p, p
		q.cc.Seen = p
	}
	if mask&ib.MaskRetryCount != 0 {
		q.req.Retry = a.RetryCount
	}
	if mask&ib.MaskRNRRetry != 0 {
		q.req.RNRRetry = a.RNRRetry
	}
}

// enter makes the transition to s.
func (q *QP) enter(s ib.State, now ib.Time, h Host) {
	switch s {
	case ib.StateError:
		q.enterError(h)
	case ib.StateSQD:
		q.req.Drained, q.req.Kick = q.req.Drained && q.state == ib.StateSQD, true
		q.state = ib.StateSQD
		if q.req.Pos == q.req.Started {
			q.req.Loaded = false // looked at, but not begun: not any more
		}
		q.checkDrained(h)
	case ib.StateRTS:
		q.state = ib.StateRTS
		q.req.Kick = true
		q.restartTimer(now)
	default:
		q.state = s
	}
}

// SetSendPos says where in the send queue the next work request will be found. It is
// for a NIC whose ring does not start again at zero after RESET.
func (q *QP) SetSendPos(pos uint32) {
	q.req.Tail, q.req.Pos, q.req.Started = pos, pos, pos
}

// Deadline is when Expire wants to be called; zero is never.
func (q *QP) Deadline() ib.Time {
	d := q.req.RetransAt
	if q.path.Remote {
		d = earlier(d, q.req.ProbeAt)
	}
	if q.req.RNRAt != 0 {
		d = q.req.RNRAt
	}
	if q.pace.Waiting {
		d = earlier(d, q.pace.At)
	}
	if q.cc.Held {
		d = earlier(d, q.cc.SendAt)
	}
	return d
}

// earlier is the earlier of two deadlines, of which zero is never.
func earlier(a, b ib.Time) ib.Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Expire acts on a deadline that has passed. What it makes ready to send goes out
// with the next Run.
func (q *QP) Expire(now ib.Time, h Host) {
	r := &q.req
	if q.pace.Waiting && now >= q.pace.At {
		q.pace.Waiting = false
		r.Kick = true
	}
	if q.cc.Held && now >= q.cc.SendAt {
		q.cc.Held = false
		r.Kick = true
	}
	if q.state != ib.StateRTS && q.state != ib.StateSQD {
		return
	}
	if r.RNRAt != 0 {
		if now >= r.RNRAt {
			r.RNRAt = 0
			r.Kick = true
		}
		return
	}
	switch {
	case r.RetransAt != 0 && now >= r.RetransAt:
		q.timeout(now, h)
	case r.ProbeAt != 0 && now >= r.ProbeAt:
		q.probe(now)
	}
}

// Receive takes a burst that arrived for this queue pair. Its data is valid during the
// call only. Anything that does not come from the peer is dropped in silence.
//
// It reports false if the host could not reach the memory that b is for, and answered
// Later. Then b has not been taken, and is to be offered again before any other. Nothing
// goes wrong if it never is: it was lost on the way.
func (q *QP) Receive(now ib.Time, b *Burst, h Host) (taken bool) {
	if q.resp.Stalled && !q.unstall(now, h) {
		return false
	}
	if b.Type != q.conf.Type || b.Packets == 0 || b.Packets > ib.PSNHalf || b.PSN > ib.PSNMask {
		q.count.Dropped++
		return true
	}
	if d := b.PKey ^ q.attr.PKey; d&0x7fff != 0 || (b.PKey|q.attr.PKey)&0x8000 == 0 {
		q.count.BadPKey++
		return true
	}
	if taken = q.receive(now, b, h); taken {
		q.count.RcvdPackets += uint64(b.Packets)
		q.count.RcvdBytes += uint64(b.size())
	}
	return taken
}

// receive sorts out what b is.
func (q *QP) receive(now ib.Time, b *Burst, h Host) (taken bool) {
	if b.Type == ib.UD {
		return q.receiveDatagram(now, b, h)
	}
	if b.Src != q.attr.DestQPN || b.SGID != q.attr.DGID || b.DGID != q.attr.SGID {
		q.count.Dropped++
		return true
	}
	if b.CE {
		q.notify(now, b, h)
	}
	switch {
	case b.Kind < KindReadResp && b.Type == ib.RC:
		if !q.receiveReliable(now, b, h) {
			return false
		}
		if q.resp.Episode != 0 {
			q.unstash(now, h)
		}
	case b.Kind < KindReadResp:
		return q.receiveUnreliable(b, h)
	case b.Kind == KindCNP:
		q.Congested(now, b.SGID)
	case b.Type == ib.RC:
		return q.receiveResponse(now, b, h)
	default:
		q.count.Dropped++
	}
	return true
}

// size is the number of payload bytes.
func (b *Burst) size() uint32 {
	if b.Data == nil {
		return 0
	}
	return uint32(b.Data.Len())
}

// listening reports whether the responder takes requests, and raises the event that
// tells an application in RTR that its peer is already talking.
func (q *QP) listening(h Host) bool {
	switch q.state {
	case ib.StateRTS, ib.StateSQD, ib.StateSQE:
		return true
	case ib.StateRTR:
		if !q.resp.Established {
			q.resp.Established = true
			h.Event(EventCommEst)
		}
		return true
	}
	return false
}
