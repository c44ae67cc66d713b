package transport

import "vrdma/internal/ib"

// How much a requester keeps in flight on a remote path. The window grows while nothing
// speaks against it and shrinks when packets are lost or marked:
//
//	          ECN mark: × 3/4        loss: × 1/2      timeout: × 1/2, down to 4 packets
//	           not below 1 packet    not below 64 KiB
//	Cwnd ──────────────┬──────────────────┬──────────────────┬───────▶ one cut a round trip
//	     ▲ acknowledged: doubles up to Thresh, then one MTU a round trip, up to Path.Window
//
// Loss of single packets is no sign of congestion where a user-space wire or a radio loses
// them at random; but going back costs as many packets as are in flight, so a path that
// loses is better served by a small window anyway.
type congestion struct {
	Cwnd   uint32 // bytes that may be in flight
	Thresh uint32 // below it Cwnd doubles every round trip
	Acked  uint32 // bytes acknowledged since Cwnd last grew
	Seen   uint32 // the PSN acknowledged when last looked
	CutPSN uint32 // Cwnd is not cut again before this is acknowledged
	Cut    bool
	Full   bool   // the window, and nothing else, kept the requester from sending
	Share  uint32 // what the host can spare of what all queue pairs may have in flight; 0: no matter

	SamplePSN uint32 // acknowledging this ends the measurement that began at SampleAt
	SampleAt  ib.Time
	ProbeSent ib.Time // when a probe was sent meanwhile; 0: none was
	Unsure    bool    // something before it is missing, so its acknowledgement will be late
	SRTT      ib.Time // smoothed round trip time; 0: not known
	Var       ib.Time // how far round trip times are from that, smoothed
	BackAt    ib.Time // when the requester last went back

	Spread bool // bursts keep a distance, and
	Held   bool // one waits for SendAt
	SendAt ib.Time

	NotifiedAt ib.Time // when the peer was last told of congestion
}

const (
	// Loss of single packets shrinks the window no further than this: so many bytes,
	// but between so many packets.
	lossFloorBytes = 64 << 10
	lossFloorMin   = 16
	lossFloorMax   = 64
	// repairFloor is the same where nothing has to be sent again but what was lost.
	repairFloor = 256 << 10
	// timeoutFloor is how far a timeout does, in packets.
	timeoutFloor = 4
	// notifyEvery is how often a peer is told of congestion at most.
	notifyEvery = ib.Time(50_000)
	// slowestTrip is the longest round trip time that is believed.
	slowestTrip = ib.Time(8_000_000)
)

func (c *congestion) start(window uint32) {
	c.Cwnd, c.Thresh = min(firstWindow, window), window
}

// learn looks at what progress says of the path.
func (q *QP) learn(now ib.Time) {
	c, r := &q.cc, &q.req
	n := ib.PSNDist(c.Seen, r.Una)
	c.Seen = r.Una
	if c.Unsure && c.SampleAt != 0 && ib.PSNDist(c.SamplePSN, r.Una) < ib.PSNHalf {
		c.SampleAt = 0
	}
	c.arrived(now, r.Una)
	if c.Cut && ib.PSNDist(c.CutPSN, r.Una) < ib.PSNHalf {
		c.Cut = false
	}
	// A window that was not used says nothing about a larger one.
	if !c.Full || c.Cut {
		return
	}
	if c.Cwnd >= q.path.Window {
		c.Spread = false
		return
	}
	bytes := min(n, r.Window) * q.attr.MTU
	if c.Cwnd < c.Thresh {
		c.Cwnd += bytes
	} else if c.Acked += bytes; c.Acked >= c.Cwnd {
		c.Acked = 0
		c.Cwnd += q.attr.MTU
	}
	q.setWindow()
}

// arrived ends a measurement if the packets before psn include the one measured with.
func (c *congestion) arrived(now ib.Time, psn uint32) {
	if c.SampleAt == 0 || ib.PSNDist(c.SamplePSN, psn) >= ib.PSNHalf {
		return
	}
	rtt := now - c.SampleAt
	if c.ProbeSent != 0 {
		// Nobody knows whether the probe or the packet itself was answered. To take
		// it for the packet makes the next probe later than need be if it was lost;
		// the other way round, a path that is slower than thought would be probed
		// for ever. So the time counts, but not without limit.
		if c.SRTT == 0 {
			rtt = now - c.ProbeSent
		} else {
			rtt = min(rtt, 2*c.SRTT)
		}
	}
	c.sample(rtt)
	c.SampleAt = 0
}

// sample takes a round trip time into the average.
func (c *congestion) sample(rtt ib.Time) {
	rtt = min(max(rtt, 1), slowestTrip)
	if c.SRTT == 0 {
		c.SRTT, c.Var = rtt, rtt/2
		return
	}
	off := rtt - c.SRTT
	c.SRTT += off / 8
	c.Var += (max(off, -off) - c.Var) / 4
}

// hold reports whether a burst has to wait, for the sake of distance.
func (c *congestion) hold(now ib.Time) bool {
	if !c.Spread || now >= c.SendAt {
		return false
	}
	c.Held = true
	return true
}

// spend counts a burst of so many bytes, which keeps the next one away for as long as
// the window takes for so many, and a little less: what is late may catch up.
func (c *congestion) spend(now ib.Time, bytes uint32) {
	if c.Spread {
		c.SendAt = max(c.SendAt, now-c.SRTT/2) + c.SRTT*ib.Time(bytes)*4/(5*ib.Time(c.Cwnd))
	}
}

// time begins to measure a round trip with the packet before end, if none is being
// measured.
func (q *QP) time(now ib.Time, end uint32) {
	if c := &q.cc; c.SampleAt == 0 {
		c.SamplePSN, c.SampleAt, c.ProbeSent, c.Unsure = end, now, 0, false
	}
}

// cut makes the window smaller, once a round trip, but not smaller than floor packets. One
// that is smaller already may grow to that fast.
func (q *QP) cut(num, den, floor uint32) {
	c := &q.cc
	least := floor * q.attr.MTU
	if c.Cut || !q.path.Remote {
		return
	}
	now := q.allowed() // a share that is smaller than Cwnd is what was in flight
	if now <= least {
		c.Thresh = max(c.Thresh, least)
		return
	}
	c.Cwnd = max(uint32(uint64(now)*uint64(num)/uint64(den)), least)
	c.Thresh, c.Acked = c.Cwnd, 0
	c.Cut, c.CutPSN = true, q.req.Max
	q.setWindow()
}

// mark: a packet met a queue that is long already. From then on bursts are spread over the
// round trip, because a window sent at once makes a queue whatever its size.
func (q *QP) mark() {
	q.cut(3, 4, 1)
	q.cc.Spread = true
}

// cutLoss: a packet was lost.
func (q *QP) cutLoss() { q.cut(1, 2, q.lossFloor()) }

// lossFloor is the window, in packets, that single losses leave.
func (q *QP) lossFloor() uint32 {
	return min(max(lossFloorBytes/q.attr.MTU, lossFloorMin), lossFloorMax)
}

// cutRepaired: a packet was lost, and is all that has to be sent again.
func (q *QP) cutRepaired() { q.cut(7, 8, repairFloor/q.attr.MTU) }

// cutTimeout: nothing came for a long time.
func (q *QP) cutTimeout() {
	c := &q.cc
	c.Cut = false
	half := c.Cwnd / 2
	q.cut(1, 2, timeoutFloor)
	c.Thresh = max(half, q.lossFloor()*q.attr.MTU)
}

// Congested says that the host at from has seen congestion on packets of q: a CNP came.
func (q *QP) Congested(now ib.Time, from ib.GID) {
	if !q.path.Remote || q.conf.Type != ib.UD && from != q.attr.DGID {
		q.count.Dropped++
		return
	}
	if q.conf.Type == ib.RC {
		q.mark()
	}
	if q.unacknowledged() {
		q.pace.slow(now)
	}
}

// notify answers a burst with the mark Congestion Experienced. The data of a READ was
// asked for: asking for less helps at once.
func (q *QP) notify(now ib.Time, b *Burst, h Host) {
	if !q.path.Remote {
		return
	}
	if b.Kind == KindReadResp {
		q.mark()
		if q.path.Own {
			return
		}
	}
	c := &q.cc
	if c.NotifiedAt != 0 && now-c.NotifiedAt < notifyEvery {
		return
	}
	c.NotifiedAt = now
	n := &h.Scratch().In
	to, at := b.Src, b.SGID
	q.address(n, KindCNP)
	n.First, n.Last, n.Packets = true, true, 1
	n.Dst, n.DGID = to, at
	q.transmit(n, h)
}
