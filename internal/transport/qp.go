package transport

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
	state State
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
	if c.Window == 0 || c.Window > psnHalf-1 {
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
func (q *QP) State() State { return q.state }

// Counters are the queue pair's counters; the caller may read them in place.
func (q *QP) Counters() *Counters { return &q.count }

// Modify applies the values that mask names, then the change of state.
func (q *QP) Modify(a *Attr, mask AttrMask, now Time, h Host) {
	if mask&MaskState != 0 && a.State == Reset {
		c, p := q.count, q.path
		q.Init(q.conf)
		q.count = c
		q.SetPath(p)
		return
	}
	q.apply(a, mask)
	q.fitPath()
	if mask&MaskState != 0 {
		q.enter(a.State, now, h)
	}
}

func (q *QP) apply(a *Attr, mask AttrMask) {
	set8 := func(m AttrMask, dst *uint8, v uint8) {
		if mask&m != 0 {
			*dst = v
		}
	}
	set32 := func(m AttrMask, dst *uint32, v uint32) {
		if mask&m != 0 {
			*dst = v
		}
	}
	set32(MaskQKey, &q.attr.QKey, a.QKey)
	set32(MaskMTU, &q.attr.MTU, a.MTU)
	set32(MaskDestQPN, &q.attr.DestQPN, a.DestQPN)
	set8(MaskTimeout, &q.attr.Timeout, a.Timeout)
	set8(MaskRetryCount, &q.attr.RetryCount, a.RetryCount)
	set8(MaskRNRRetry, &q.attr.RNRRetry, a.RNRRetry)
	set8(MaskMaxRDAtomic, &q.attr.MaxRDAtomic, a.MaxRDAtomic)
	set8(MaskMinRNRTimer, &q.attr.MinRNRTimer, a.MinRNRTimer)
	if q.attr.MTU < 256 || q.attr.MTU > 4096 {
		q.attr.MTU = min(max(q.attr.MTU, 256), 4096)
	}
	if mask&MaskAccess != 0 {
		q.attr.Access = a.Access
	}
	if mask&MaskPKey != 0 {
		q.attr.PKey = a.PKey
	}
	if mask&MaskAV != 0 {
		q.attr.SGID, q.attr.DGID = a.SGID, a.DGID
	}
	if mask&MaskSQDAsyncNotify != 0 {
		q.attr.SQDAsyncNotify = a.SQDAsyncNotify
	}
	if mask&MaskMaxDestRDAtomic != 0 {
		q.setResources(a.MaxDestRDAtomic)
	}
	if mask&MaskRQPSN != 0 {
		q.resp.PSN, q.resp.AckPSN = a.RQPSN&psnMask, a.RQPSN&psnMask
	}
	if mask&MaskSQPSN != 0 {
		p := a.SQPSN & psnMask
		q.req.PSN, q.req.Una, q.req.Max, q.req.TailPSN, q.req.Arrived = p, p, p, p, p
		q.cc.Seen = p
	}
	if mask&MaskRetryCount != 0 {
		q.req.Retry = a.RetryCount
	}
	if mask&MaskRNRRetry != 0 {
		q.req.RNRRetry = a.RNRRetry
	}
}

// enter makes the transition to s.
func (q *QP) enter(s State, now Time, h Host) {
	switch s {
	case Error:
		q.enterError(h)
	case SQD:
		q.req.Drained, q.req.Kick = q.req.Drained && q.state == SQD, true
		q.state = SQD
		if q.req.Pos == q.req.Started {
			q.req.Loaded = false // looked at, but not begun: not any more
		}
		q.checkDrained(h)
	case RTS:
		q.state = RTS
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
func (q *QP) Deadline() Time {
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
func earlier(a, b Time) Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Expire acts on a deadline that has passed. What it makes ready to send goes out
// with the next Run.
func (q *QP) Expire(now Time, h Host) {
	r := &q.req
	if q.pace.Waiting && now >= q.pace.At {
		q.pace.Waiting = false
		r.Kick = true
	}
	if q.cc.Held && now >= q.cc.SendAt {
		q.cc.Held = false
		r.Kick = true
	}
	if q.state != RTS && q.state != SQD {
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
func (q *QP) Receive(now Time, b *Burst, h Host) (taken bool) {
	if q.resp.Stalled && !q.unstall(now, h) {
		return false
	}
	if b.Type != q.conf.Type || b.Packets == 0 || b.Packets > psnHalf || b.PSN > psnMask {
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
func (q *QP) receive(now Time, b *Burst, h Host) (taken bool) {
	if b.Type == UD {
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
	case b.Kind < KindReadResp && b.Type == RC:
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
	case b.Type == RC:
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
	case RTS, SQD, SQE:
		return true
	case RTR:
		if !q.resp.Established {
			q.resp.Established = true
			h.Event(EventCommEst)
		}
		return true
	}
	return false
}
