package transport

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

	SamplePSN uint32 // acknowledging this ends the measurement that began at SampleAt
	SampleAt  Time
	SRTT      Time // smoothed round trip time; 0: not known
	BackAt    Time // when the requester last went back

	NotifiedAt Time // when the peer was last told of congestion
}

const (
	// lossFloor is as far as loss of single packets shrinks the window: between so many
	// packets, and else so many bytes.
	lossFloorBytes      = 64 << 10
	lossFloorMin        = 16
	lossFloorMax        = 64
	timeoutFloor        = 4 // packets
	notifyEvery    Time = 50_000
)

func (c *congestion) start(window uint32) {
	c.Cwnd, c.Thresh = min(firstWindow, window), window
}

// setWindow makes what Cwnd says what the requester keeps to.
func (q *QP) setWindow() {
	q.cc.Cwnd = max(min(q.cc.Cwnd, q.path.Window), q.attr.MTU)
	q.req.Window = min(q.cc.Cwnd/q.attr.MTU, q.conf.Window)
}

// learn looks at what progress says of the path.
func (q *QP) learn(now Time) {
	c, r := &q.cc, &q.req
	n := psnDist(c.Seen, r.Una)
	full := psnDist(c.Seen, r.Max)*2 >= r.Window
	c.Seen = r.Una
	if c.SampleAt != 0 && psnDist(c.SamplePSN, r.Una) < psnHalf {
		c.sample(now - c.SampleAt)
		c.SampleAt = 0
	}
	if c.Cut && psnDist(c.CutPSN, r.Una) < psnHalf {
		c.Cut = false
	}
	// A window that was not used says nothing about a larger one.
	if !full || c.Cut || c.Cwnd >= q.path.Window {
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

// sample takes a round trip time into the average.
func (c *congestion) sample(rtt Time) {
	rtt = max(rtt, 1)
	if c.SRTT == 0 {
		c.SRTT = rtt
		return
	}
	c.SRTT += (rtt - c.SRTT) / 8
}

// time begins to measure a round trip with the packet before end, if none is being
// measured.
func (q *QP) time(now Time, end uint32) {
	if c := &q.cc; c.SampleAt == 0 {
		c.SamplePSN, c.SampleAt = end, now
	}
}

// cut makes the window smaller, once a round trip, but not smaller than floor packets.
func (q *QP) cut(num, den, floor uint32) {
	c := &q.cc
	if c.Cut || !q.path.Remote {
		return
	}
	least := min(c.Cwnd, floor*q.attr.MTU)
	c.Cwnd = max(uint32(uint64(c.Cwnd)*uint64(num)/uint64(den)), least)
	c.Thresh, c.Acked = c.Cwnd, 0
	c.Cut, c.CutPSN = true, q.req.Max
	q.setWindow()
}

// cutLoss: a packet was lost, of a READ's response perhaps. Of those two pieces at least
// stay outstanding, so that one is answered while the other is asked for.
func (q *QP) cutLoss(read bool) {
	floor := min(max(lossFloorBytes/q.attr.MTU, lossFloorMin), lossFloorMax)
	if read {
		floor = max(floor, 2*q.req.Chunk)
	}
	q.cut(1, 2, floor)
}

// cutTimeout: nothing came for a long time.
func (q *QP) cutTimeout() {
	q.cc.Cut = false
	q.cut(1, 2, timeoutFloor)
}

// Congested says that the host at from has seen congestion on packets of q: a CNP came.
func (q *QP) Congested(now Time, from GID) {
	if !q.path.Remote || q.conf.Type != UD && from != q.attr.DGID {
		q.count.Dropped++
		return
	}
	q.count.RcvdCNP++
	if q.conf.Type == RC {
		q.cut(3, 4, 1)
	}
	if q.unacknowledged() {
		q.pace.slow(now)
	}
}

// notify answers a burst with the mark Congestion Experienced. The data of a READ was
// asked for: asking for less helps at once.
func (q *QP) notify(now Time, b *Burst, h Host) {
	if !q.path.Remote {
		return
	}
	q.count.RcvdMarked += uint64(b.Packets)
	if b.Kind == KindReadResp {
		q.cut(3, 4, 1)
		if q.path.Own {
			return
		}
	}
	c := &q.cc
	if c.NotifiedAt != 0 && now-c.NotifiedAt < notifyEvery {
		return
	}
	c.NotifiedAt = now
	q.count.SentCNP++
	n := &h.Scratch().In
	to, at := b.Src, b.SGID
	q.address(n, KindCNP)
	n.First, n.Last, n.Packets = true, true, 1
	n.Dst, n.DGID = to, at
	q.transmit(n, h)
}
