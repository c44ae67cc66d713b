package transport

import "vrdma.dev/vrdma/internal/ib"

// recovery decides when a requester retransmits, and how often: its timers and remaining retries. It does not
// know what is sent; the requester queries it, and goes back.
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
// The application sets the local ACK timeout, usually tens of milliseconds, and a few timeouts end the
// connection. Long before that, the requester probes: it sends the oldest unacknowledged packet again, alone
// and with AckReq. The acknowledgement shows what else is missing.
//
//	…──[41]──[42]──[43 lost]        silence        [41 again] ──▶ ACK 42: go on from 43
//
// To the peer a probe is a duplicate, or the packet it was waiting for; it answers both. A vrdma host gets the
// newest packet instead, and requests what is missing before it.
type recovery struct {
	Retry    uint8 `cbor:"1,keyasint,omitempty"` // remaining retries
	RNRRetry uint8 `cbor:"2,keyasint,omitempty"` // remaining retries after an RNR NAK
	Probes   uint8 `cbor:"3,keyasint,omitempty"` // probes since the last progress
	Retrying bool  `cbor:"4,keyasint,omitempty"` // the requester went back; implicit NAKs are ignored until there is progress
	Probing  bool  `cbor:"5,keyasint,omitempty"` // the requester went back by one packet, to learn what has arrived

	RetransAt ib.Time `cbor:"6,keyasint,omitempty"` // deadline of the oldest unacknowledged packet
	ProbeAt   ib.Time `cbor:"7,keyasint,omitempty"` // time of the next probe; remote paths only
	RNRAt     ib.Time `cbor:"8,keyasint,omitempty"` // end of the wait after an RNR NAK
	BackAt    ib.Time `cbor:"9,keyasint,omitempty"` // when the requester last went back
}

// Times until a probe: multiples of the round trip time, and minimums. vrdma hosts answer at once, so the
// variation of the round trip time matters. Other hosts may be slow to answer.
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

// deadline returns the time at which the caller must call expire; zero means never.
func (v *recovery) deadline(remote bool) ib.Time {
	if v.RNRAt != 0 {
		return v.RNRAt
	}
	if remote {
		return earlier(v.RetransAt, v.ProbeAt)
	}
	return v.RetransAt
}

// stop disables all timers.
func (v *recovery) stop() {
	v.RetransAt, v.RNRAt, v.ProbeAt = 0, 0, 0
	v.Retrying, v.Probing, v.Probes = false, false, 0
}

// disarm disables the timers that wait for a response.
func (v *recovery) disarm() { v.RetransAt, v.ProbeAt = 0, 0 }

// restart restarts the timers of the oldest unacknowledged packet, if there is one.
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

// A timeout grows to at most four times its nominal value, which IBA 9.7.6.1.3 allows, and not beyond
// patientMost.
const (
	patientShift = 2
	patientMost  = 4096 << 16 // 268 ms
)

// timeout returns how long to wait for a response; 0 means forever. On a remote path it grows with every
// unsuccessful retry. A host with busy processors may not answer for half a second although it is alive.
// Retries with one short timeout would all be spent by then.
//
//	timeout 14, 7 retries     67 134 268 268 268 268 268 268 ms
func (v *recovery) timeout(c *common) ib.Time {
	d := AckTimeout(c.Attr.Timeout)
	if !c.Path.Remote || d >= patientMost || v.Retry >= c.Attr.RetryCount {
		return d
	}
	return min(d<<min(c.Attr.RetryCount-v.Retry, patientShift), patientMost)
}

// nextProbe returns the time of the next probe if nothing arrives from now on. It returns never if the timeout
// d comes first.
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

// progress resets the counters of consecutive failures.
func (v *recovery) progress(c *common) {
	v.Retry, v.RNRRetry = c.Attr.RetryCount, c.Attr.RNRRetry
	v.Retrying = false
	if c.Path.Remote {
		v.Probing, v.Probes = false, 0
	}
}

// spend uses one retry, unless this one is free. It returns false if none is left.
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

// wait uses one RNR retry and starts the wait that the NAK's timer code demands. It returns false if none is
// left.
func (v *recovery) wait(c *common, now ib.Time, code uint8) bool {
	if v.RNRRetry == 0 {
		return false
	}
	if v.RNRRetry != rnrForever {
		v.RNRRetry--
	}
	v.Retry = c.Attr.RetryCount // the packet has arrived, so earlier losses do not count any more
	v.RNRAt = now + RNRDelay(code)
	v.disarm()
	return true
}

// rnrForever is the RNR retry count that means no limit (IBA 9.7.5.2.8).
const rnrForever = 7

// wentBack reports whether the requester went back less than d ago without progress since. A response that
// arrives now may be older than that.
func (v *recovery) wentBack(c *common, now, d ib.Time) bool {
	return c.Path.Remote && v.Retrying && now-v.BackAt < d
}

// expire handles a deadline that has passed.
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

// restartTimer restarts the timers of the oldest unacknowledged packet.
func (r *requester) restartTimer(c *common, now ib.Time) {
	r.Loss.restart(c, now, r.Una != r.Max, &r.CC)
}

// probe sends the oldest unacknowledged packet again. A vrdma host gets the newest packet, because it reports
// what is missing before it. A probe uses no retry and does not change the timeout.
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

// retry goes back to the oldest unacknowledged packet, if retries are left. The retry is free when the peer is
// known to be alive and the request justified.
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

// implicitNak handles a response that shows that an earlier response was lost.
func (r *requester) implicitNak(c *reqCall) {
	v := &r.Loss
	if v.Retrying && (!c.Path.Own || r.CC.SRTT == 0) || v.RNRAt != 0 || v.wentBack(c.common, c.now, 2*r.CC.SRTT) {
		return
	}
	c.Count.ImplicitNaks++
	r.retry(c, c.Path.Own)
}
