package transport

import "vrdma.dev/vrdma/internal/ib"

// congestion decides how much a requester keeps in flight on a remote path. (Other words
// for it are congestion control, or the reaction point.) The window grows while nothing
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
//
// It also measures the round trip time. It knows the requester's sequence numbers only as
// far as they are passed to it.
type congestion struct {
	Window uint32 // packets in flight at most; on a local path what Config says
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

	Spread bool // bursts keep a distance, and
	Held   bool // one waits for SendAt
	SendAt ib.Time
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
	// slowestTrip is the longest round trip time that is believed.
	slowestTrip = ib.Time(8_000_000)
)

// start makes cc new, for a path; una is the oldest PSN that is not acknowledged.
func (cc *congestion) start(p *Path, una uint32) {
	*cc = congestion{Seen: una}
	if p.Remote {
		cc.Cwnd, cc.Thresh = min(firstWindow, p.Window), p.Window
	}
}

// stop forgets what is in flight; una is the oldest PSN that is not acknowledged now.
func (cc *congestion) stop(una uint32) {
	cc.SampleAt, cc.Cut, cc.Held, cc.Seen = 0, false, false, una
}

// fit makes Window what Cwnd and Share say.
func (cc *congestion) fit(c *common) {
	if !c.Path.Remote {
		cc.Window = c.Conf.Window
		return
	}
	cc.Cwnd = max(min(cc.Cwnd, c.Path.Window), c.Attr.MTU)
	cc.Window = min(cc.allowed(c.Attr.MTU)/c.Attr.MTU, c.Conf.Window, stashSlots)
}

// widen takes note that the path's window was before and is now. A threshold at the old window
// means that nothing was lost or marked yet; then it follows.
func (cc *congestion) widen(before, now uint32) {
	if cc.Thresh == before {
		cc.Thresh = now
	}
}

// allowed is how many bytes may be in flight.
func (cc *congestion) allowed(mtu uint32) uint32 {
	if cc.Share == 0 {
		return cc.Cwnd
	}
	return max(min(cc.Cwnd, cc.Share), mtu)
}

// takeShare takes note of what the host can spare for the queue pair.
func (cc *congestion) takeShare(c *common, share uint32) {
	if c.Path.Remote && share != cc.Share {
		cc.Share = share
		cc.fit(c)
	}
}

// learn looks at what progress up to una says of the path.
func (cc *congestion) learn(c *common, now ib.Time, una uint32) {
	n := ib.PSNDist(cc.Seen, una)
	cc.Seen = una
	if cc.Unsure && cc.SampleAt != 0 && ib.PSNDist(cc.SamplePSN, una) < ib.PSNHalf {
		cc.SampleAt = 0
	}
	cc.arrived(now, una)
	if cc.Cut && ib.PSNDist(cc.CutPSN, una) < ib.PSNHalf {
		cc.Cut = false
	}
	// A window that was not used says nothing about a larger one.
	if !cc.Full || cc.Cut {
		return
	}
	if cc.Cwnd >= c.Path.Window {
		cc.Spread = false
		return
	}
	bytes := min(n, cc.Window) * c.Attr.MTU
	if cc.Cwnd < cc.Thresh {
		cc.Cwnd += bytes
	} else if cc.Acked += bytes; cc.Acked >= cc.Cwnd {
		cc.Acked = 0
		cc.Cwnd += c.Attr.MTU
	}
	cc.fit(c)
}

// measure begins to measure a round trip with the packet before end, if none is being
// measured.
func (cc *congestion) measure(now ib.Time, end uint32) {
	if cc.SampleAt == 0 {
		cc.SamplePSN, cc.SampleAt, cc.ProbeSent, cc.Unsure = end, now, 0, false
	}
}

// arrived ends a measurement if the packets before psn include the one measured with.
func (cc *congestion) arrived(now ib.Time, psn uint32) {
	if cc.SampleAt == 0 || ib.PSNDist(cc.SamplePSN, psn) >= ib.PSNHalf {
		return
	}
	rtt := now - cc.SampleAt
	if cc.ProbeSent != 0 {
		// Nobody knows whether the probe or the packet itself was answered. To take
		// it for the packet makes the next probe later than need be if it was lost;
		// the other way round, a path that is slower than thought would be probed
		// for ever. So the time counts, but not without limit.
		if cc.SRTT == 0 {
			rtt = now - cc.ProbeSent
		} else {
			rtt = min(rtt, 2*cc.SRTT)
		}
	}
	cc.sample(rtt)
	cc.SampleAt = 0
}

// sample takes a round trip time into the average.
func (cc *congestion) sample(rtt ib.Time) {
	rtt = min(max(rtt, 1), slowestTrip)
	if cc.SRTT == 0 {
		cc.SRTT, cc.Var = rtt, rtt/2
		return
	}
	off := rtt - cc.SRTT
	cc.SRTT += off / 8
	cc.Var += (max(off, -off) - cc.Var) / 4
}

// hold reports whether a burst has to wait, for the sake of distance.
func (cc *congestion) hold(now ib.Time) bool {
	if !cc.Spread || now >= cc.SendAt {
		return false
	}
	cc.Held = true
	return true
}

// spend counts a burst of so many bytes, which keeps the next one away for as long as
// the window takes for so many, and a little less: what is late may catch up.
func (cc *congestion) spend(now ib.Time, bytes uint32) {
	if cc.Spread {
		cc.SendAt = max(cc.SendAt, now-cc.SRTT/2) + cc.SRTT*ib.Time(bytes)*4/(5*ib.Time(cc.Cwnd))
	}
}

// cut makes the window smaller, once a round trip, but not smaller than floor packets. One
// that is smaller already may grow to that fast. The round trip ends when everything before
// sent, the newest PSN, is acknowledged.
func (cc *congestion) cut(c *common, sent, num, den, floor uint32) {
	least := floor * c.Attr.MTU
	if cc.Cut || !c.Path.Remote {
		return
	}
	flight := cc.allowed(c.Attr.MTU) // a share that is smaller than Cwnd is what was in flight
	if flight <= least {
		cc.Thresh = max(cc.Thresh, least)
		return
	}
	cc.Cwnd = max(uint32(uint64(flight)*uint64(num)/uint64(den)), least)
	cc.Thresh, cc.Acked = cc.Cwnd, 0
	cc.Cut, cc.CutPSN = true, sent
	cc.fit(c)
}

// marked: a packet met a queue that is long already. From then on bursts are spread over the
// round trip, because a window sent at once makes a queue whatever its size.
func (cc *congestion) marked(c *common, sent uint32) {
	cc.cut(c, sent, 3, 4, 1)
	cc.Spread = true
}

// lost: a packet was lost.
func (cc *congestion) lost(c *common, sent uint32) { cc.cut(c, sent, 1, 2, lossFloor(c.Attr.MTU)) }

// lossFloor is the window, in packets, that single losses leave.
func lossFloor(mtu uint32) uint32 {
	return min(max(lossFloorBytes/mtu, lossFloorMin), lossFloorMax)
}

// lossRun is how many packets lost in a row look like a buffer that was full.
const lossRun = 4

// missing: n packets in a row were lost, and are all that has to be sent again. What is
// behind them has arrived, so their acknowledgement says nothing about the round trip time.
func (cc *congestion) missing(c *common, sent, n uint32) {
	cc.Unsure = cc.SRTT != 0
	if n >= lossRun {
		cc.lost(c, sent)
	} else {
		cc.cut(c, sent, 7, 8, repairFloor/c.Attr.MTU)
	}
}

// silent: nothing came for a long time.
func (cc *congestion) silent(c *common, sent uint32) {
	cc.Cut = false
	half := cc.Cwnd / 2
	cc.cut(c, sent, 1, 2, timeoutFloor)
	cc.Thresh = max(half, lossFloor(c.Attr.MTU)*c.Attr.MTU)
}
