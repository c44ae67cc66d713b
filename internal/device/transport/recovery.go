package transport

import "vrdma.dev/vrdma/internal/ib"

// recovery is when a requester sends again, and how often: its timers and what is left of
// its retries. It knows nothing of what is sent; the requester asks it, and goes back.
//
//	sent, nothing       ┌──────────── progress ◀───────────┐
//	outstanding ──▶ waiting ── ProbeAt, remote paths ──▶ probing
//	                │  ▲  │                                │
//	        RNR NAK │  │  └──────── RetransAt ─────────────┤
//	                ▼  │                                   ▼
//	       until RNRAt │         sequence NAK ──▶ gone back: Retrying
//	                └──┘                                   │ no retries left
//	                                                       ▼
//	                                                  RETRY_EXC_ERR
//
// The local ACK timeout is the application's, usually tens of milliseconds, and a few of
// them end the connection. Long before that a probe asks: the oldest unacknowledged packet
// is sent again, alone, with AckReq, and the acknowledgement tells what else is missing.
//
//	…──[41]──[42]──[43 lost]        silence        [41 again] ──▶ ACK 42: go on from 43
//
// To the peer a probe is a duplicate, or what it was waiting for: it answers either. Our
// own hosts are sent the newest packet instead: what they miss before it they ask for.
type recovery struct {
	Retry    uint8 // retries left
	RNRRetry uint8 // and those after an RNR NAK
	Probes   uint8 // probes since there was progress
	Retrying bool  // went back; no further implicit NAK does so before there is progress
	Probing  bool  // went back by one packet, to hear what has arrived

	RetransAt ib.Time // deadline of the oldest unacknowledged packet
	ProbeAt   ib.Time // when to find out why nothing is heard; remote paths only
	RNRAt     ib.Time // no sending before then
	BackAt    ib.Time // when the requester last went back
}

// Times until a probe, as multiples of the round trip time and at least. Our own hosts
// answer at once, so what counts is how much round trip times vary; others may be slow to
// answer for reasons of their own.
const (
	probeTrips      = 2
	probeVars       = 4
	probeLeast      = ib.Time(200_000)
	probeFirst      = ib.Time(2_000_000) // round trip time unknown
	probeTripsOther = 8
	probeLeastOther = ib.Time(8_000_000)
	probeFirstOther = ib.Time(16_000_000)
	probesMost      = 10
)

// deadline is when expire wants to be called; zero is never.
func (v *recovery) deadline(remote bool) ib.Time {
	if v.RNRAt != 0 {
		return v.RNRAt
	}
	if remote {
		return earlier(v.RetransAt, v.ProbeAt)
	}
	return v.RetransAt
}

// stop switches all timers off.
func (v *recovery) stop() {
	v.RetransAt, v.RNRAt, v.ProbeAt = 0, 0, 0
	v.Retrying, v.Probing, v.Probes = false, false, 0
}

// disarm switches off the timers that wait for an answer.
func (v *recovery) disarm() { v.RetransAt, v.ProbeAt = 0, 0 }

// restart gives the oldest unacknowledged packet, if there is one, its full time.
func (v *recovery) restart(c *common, now ib.Time, outstanding bool, cc *congestion) {
	v.RetransAt = 0
	if !outstanding || c.Conf.Type != ib.RC {
		v.ProbeAt = 0
		return
	}
	d := v.timeout(c)
	if d != 0 {
		v.RetransAt = now + d
	}
	if c.Path.Remote {
		v.ProbeAt = v.nextProbe(now, d, c.Path.Own, cc)
	}
}

// A timeout lasts up to four times as long as its code says, which IBA 9.7.6.1.3 allows, where
// that is no longer than patientMost.
const (
	patientShift = 2
	patientMost  = 4096 << 16 // 268 ms
)

// timeout is how long to wait for an answer; 0: for ever. To another host it becomes longer with
// every retry that was in vain: a host whose processors are busy answers nothing for half a second,
// and is there. All retries of one short timeout would be spent before that.
//
//	timeout 14, 7 retries     67 134 268 268 268 268 268 268 ms
func (v *recovery) timeout(c *common) ib.Time {
	d := AckTimeout(c.Attr.Timeout)
	if !c.Path.Remote || d >= patientMost || v.Retry >= c.Attr.RetryCount {
		return d
	}
	return min(d<<min(c.Attr.RetryCount-v.Retry, patientShift), patientMost)
}

// nextProbe is when to probe if nothing is heard from now on; never, if the timeout d comes
// before.
func (v *recovery) nextProbe(now, d ib.Time, own bool, cc *congestion) ib.Time {
	wait := probeFirst
	switch {
	case own && cc.SRTT != 0:
		wait = max(probeTrips*cc.SRTT, cc.SRTT+probeVars*cc.Var, probeLeast)
	case !own && cc.SRTT != 0:
		wait = max(probeTripsOther*cc.SRTT, probeLeastOther)
	case !own:
		wait = probeFirstOther
	}
	wait <<= min(v.Probes, probesMost)
	if d != 0 && wait >= d {
		return 0
	}
	return now + wait
}

// progress resets what only counts failures in a row.
func (v *recovery) progress(c *common) {
	v.Retry, v.RNRRetry = c.Attr.RetryCount, c.Attr.RNRRetry
	v.Retrying = false
	if c.Path.Remote {
		v.Probing, v.Probes = false, 0
	}
}

// spend takes one of the retries, unless this one is free. It reports false if none is left.
func (v *recovery) spend(free bool) bool {
	if free {
		return true
	}
	if v.Retry == 0 {
		return false
	}
	v.Retry--
	return true
}

// wait takes one of the RNR retries and waits until the receiver has posted, as its NAK with
// this timer code guesses. It reports false if none is left.
func (v *recovery) wait(c *common, now ib.Time, code uint8) bool {
	if v.RNRRetry == 0 {
		return false
	}
	if v.RNRRetry != rnrForever {
		v.RNRRetry--
	}
	v.Retry = c.Attr.RetryCount // the packet has arrived: what was lost before it counts no more
	v.RNRAt = now + RNRDelay(code)
	v.disarm()
	return true
}

// rnrForever as the number of RNR retries means that there is no limit (IBA 9.7.5.2.8).
const rnrForever = 7

// wentBack reports whether the requester went back less than d ago and has heard no news
// since: what arrives now may have been sent before.
func (v *recovery) wentBack(c *common, now, d ib.Time) bool {
	return c.Path.Remote && v.Retrying && now-v.BackAt < d
}

// expire acts on a deadline that has passed.
func (r *requester) expire(c *reqCall) {
	v := &r.Loss
	if v.RNRAt != 0 {
		if c.now >= v.RNRAt {
			v.RNRAt = 0
			r.Kick = true
		}
		return
	}
	switch {
	case v.RetransAt != 0 && c.now >= v.RetransAt:
		c.Count.Timeouts++
		r.CC.silent(c.common, r.Max)
		r.retry(c, false)
	case v.ProbeAt != 0 && c.now >= v.ProbeAt:
		r.probe(c)
	}
}

// restartTimer gives the oldest unacknowledged packet its full time.
func (r *requester) restartTimer(c *common, now ib.Time) {
	r.Loss.restart(c, now, r.Una != r.Max, &r.CC)
}

// probe sends the oldest unacknowledged packet again; to our own hosts, which say what is
// missing before it, the newest. It costs no retry and leaves the timeout as it is.
func (r *requester) probe(c *reqCall) {
	v := &r.Loss
	v.ProbeAt = 0
	if r.Una == r.Max {
		return
	}
	c.Count.Probes++
	r.CC.ProbeSent = c.now
	if v.Probes < probesMost {
		v.Probes++
	}
	if !r.repairSoon(c, ib.PSNAdd(r.Max, ib.PSNMask), r.Max) && !r.probeReads(c) {
		v.Probing = true
		r.rewind()
	}
	v.ProbeAt = v.nextProbe(c.now, v.timeout(c.common), c.Path.Own, &r.CC)
}

// retry goes back to the oldest unacknowledged packet, if it may once more. It is free when
// the peer is known to be there and not to ask without need.
func (r *requester) retry(c *reqCall, free bool) {
	v := &r.Loss
	if !c.running() || r.Una == r.Max {
		v.disarm()
		return
	}
	if !v.spend(free) {
		c.Count.RetryExceeded++
		r.failTail(c, RetryExcErr)
		return
	}
	c.Count.Retries++
	v.Retrying, v.Probing = true, false
	v.BackAt, r.CC.SampleAt = c.now, 0
	r.CC.lost(c.common, r.Max)
	r.rewind()
	r.restartTimer(c.common, c.now)
}

// rewind makes the oldest unacknowledged packet the next one to send.
func (r *requester) rewind() {
	r.Pos, r.PSN = r.Tail, r.Una
	r.RDOut, r.Unasked = 0, 0
	r.Repair.stop(r.Una)
	r.Reads.clear()
	r.Loaded = false
	r.Kick = true
}

// implicitNak handles a response that shows that an earlier one was lost.
func (r *requester) implicitNak(c *reqCall) {
	v := &r.Loss
	if v.Retrying && (!c.Path.Own || r.CC.SRTT == 0) || v.RNRAt != 0 || v.wentBack(c.common, c.now, 2*r.CC.SRTT) {
		return
	}
	c.Count.ImplicitNaks++
	r.retry(c, c.Path.Own)
}
