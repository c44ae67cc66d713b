package transport

import "vrdma.dev/vrdma/internal/ib"

// congestion is the congestion control of a requester on a remote path (the reaction point). It limits
// the data in flight. The window grows with acknowledgements and shrinks when packets are lost or have
// an ECN mark:
//
//	          ECN mark: × 3/4        loss: × 1/2      timeout: × 1/2, down to 4 packets
//	           not below 1 packet    not below 64 KiB
//	Cwnd ──────────────┬──────────────────┬──────────────────┬───────▶ at most one cut per round trip
//	     ▲ acknowledged: doubles up to Thresh, then one MTU per round trip, up to Path.Window
//
// Loss of single packets does not always mean congestion: a radio link or a user-space network loses
// packets at random. But go-back-N retransmits as many packets as are in flight, so a small window is
// better on a lossy path anyway.
//
// It also measures the round trip time. It knows the requester's sequence numbers only from arguments.
type congestion struct {
	Window uint32 `cbor:"1,keyasint,omitempty"` // maximum packets in flight; on a local path Config.Window
	Cwnd   uint32 `cbor:"2,keyasint,omitempty"` // maximum bytes in flight
	Thresh uint32 `cbor:"3,keyasint,omitempty"` // below this value Cwnd doubles every round trip
	Acked  uint32 `cbor:"4,keyasint,omitempty"` // bytes acknowledged since Cwnd last grew
	Seen   uint32 `cbor:"5,keyasint,omitempty"` // oldest unacknowledged PSN at the last call of learn
	CutPSN uint32 `cbor:"6,keyasint,omitempty"` // Cwnd is not cut again before this PSN is acknowledged
	Cut    bool   `cbor:"7,keyasint,omitempty"`
	Full   bool   `cbor:"8,keyasint,omitempty"` // only the window prevented the requester from sending
	Share  uint32 `cbor:"9,keyasint,omitempty"` // the host's limit of bytes in flight for this queue pair; 0: none

	SamplePSN uint32  `cbor:"10,keyasint,omitempty"` // the acknowledgement of this PSN ends the measurement that began at SampleAt
	SampleAt  ib.Time `cbor:"11,keyasint,omitempty"`
	ProbeSent ib.Time `cbor:"12,keyasint,omitempty"` // time of a probe during the measurement; 0: none
	Unsure    bool    `cbor:"13,keyasint,omitempty"` // an earlier packet is missing, so the acknowledgement will be late
	SRTT      ib.Time `cbor:"14,keyasint,omitempty"` // smoothed round trip time; 0: unknown
	Var       ib.Time `cbor:"15,keyasint,omitempty"` // smoothed deviation of the round trip time

	Spread bool    `cbor:"16,keyasint,omitempty"` // bursts are spread over the round trip
	Held   bool    `cbor:"17,keyasint,omitempty"` // a burst waits for SendAt
	SendAt ib.Time `cbor:"18,keyasint,omitempty"`
}

const (
	// lossFloorBytes is the window below which loss of single packets does not cut: this many bytes,
	// but at least lossFloorMin and at most lossFloorMax packets.
	lossFloorBytes = 64 << 10
	lossFloorMin   = 16
	lossFloorMax   = 64
	// repairFloor is the same limit for peers that get only the lost packets again.
	repairFloor = 256 << 10
	// timeoutFloor is the window, in packets, below which a timeout does not cut.
	timeoutFloor = 4
	// slowestTrip is the largest accepted sample of the round trip time.
	slowestTrip = ib.Time(8_000_000)
)

// start resets cc for a new path; una is the oldest unacknowledged PSN.
func (cc *congestion) start(p *Path, una uint32) {
	*cc = congestion{Seen: una}
	if p.Remote {
		cc.Cwnd, cc.Thresh = min(firstWindow, p.Window), p.Window
	}
}

// stop discards the state of packets in flight; una is the oldest unacknowledged PSN.
func (cc *congestion) stop(una uint32) {
	cc.SampleAt, cc.Cut, cc.Held, cc.Seen = 0, false, false, una
}

// fit computes Window from Cwnd and Share.
func (cc *congestion) fit(c *common) {
	if !c.Path.Remote {
		cc.Window = c.Conf.Window
		return
	}
	cc.Cwnd = max(min(cc.Cwnd, c.Path.Window), c.Attr.MTU)
	cc.Window = min(cc.allowed(c.Attr.MTU)/c.Attr.MTU, c.Conf.Window, stashSlots)
}

// widen handles a change of the path's window from before to now. If Thresh equals the old window, no
// packet was lost or marked yet, and Thresh follows.
func (cc *congestion) widen(before, now uint32) {
	if cc.Thresh == before {
		cc.Thresh = now
	}
}

// allowed returns the number of bytes that may be in flight.
func (cc *congestion) allowed(mtu uint32) uint32 {
	if cc.Share == 0 {
		return cc.Cwnd
	}
	return max(min(cc.Cwnd, cc.Share), mtu)
}

// takeShare sets the host's limit for the queue pair.
func (cc *congestion) takeShare(c *common, share uint32) {
	if c.Path.Remote && share != cc.Share {
		cc.Share = share
		cc.fit(c)
	}
}

// learn updates the window after progress up to una.
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
	// A window that was not fully used gives no information about a larger one.
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

// measure starts a measurement of the round trip with the packet before end, unless one is active.
func (cc *congestion) measure(now ib.Time, end uint32) {
	if cc.SampleAt == 0 {
		cc.SamplePSN, cc.SampleAt, cc.ProbeSent, cc.Unsure = end, now, 0, false
	}
}

// arrived ends the measurement if the packet measured lies before psn.
func (cc *congestion) arrived(now ib.Time, psn uint32) {
	if cc.SampleAt == 0 || ib.PSNDist(cc.SamplePSN, psn) >= ib.PSNHalf {
		return
	}
	rtt := now - cc.SampleAt
	if cc.ProbeSent != 0 {
		// It is unknown whether the peer answered the probe or the packet itself. Assuming the packet
		// makes the next probe later than necessary if the packet was lost. Assuming the probe would
		// underestimate a slow path, which would then be probed forever. So the longer time counts, up
		// to a limit.
		if cc.SRTT == 0 {
			rtt = now - cc.ProbeSent
		} else {
			rtt = min(rtt, 2*cc.SRTT)
		}
	}
	cc.sample(rtt)
	cc.SampleAt = 0
}

// sample adds a round trip time to the average.
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

// hold reports whether a burst must wait because bursts are spread.
func (cc *congestion) hold(now ib.Time) bool {
	if !cc.Spread || now >= cc.SendAt {
		return false
	}
	cc.Held = true
	return true
}

// spend accounts for a burst of so many bytes: the next burst waits for the time that the window takes
// for these bytes, minus a little, so that a late sender can catch up.
func (cc *congestion) spend(now ib.Time, bytes uint32) {
	if cc.Spread {
		cc.SendAt = max(cc.SendAt, now-cc.SRTT/2) + cc.SRTT*ib.Time(bytes)*4/(5*ib.Time(cc.Cwnd))
	}
}

// cut reduces the window to num/den, at most once per round trip, but not below floor packets. A window
// below floor may grow fast up to floor. The round trip ends when everything before sent, the newest
// PSN, is acknowledged.
func (cc *congestion) cut(c *common, sent, num, den, floor uint32) {
	least := floor * c.Attr.MTU
	if cc.Cut || !c.Path.Remote {
		return
	}
	flight := cc.allowed(c.Attr.MTU) // if Share is smaller than Cwnd, Share was in flight
	if flight <= least {
		cc.Thresh = max(cc.Thresh, least)
		return
	}
	cc.Cwnd = max(uint32(uint64(flight)*uint64(num)/uint64(den)), least)
	cc.Thresh, cc.Acked = cc.Cwnd, 0
	cc.Cut, cc.CutPSN = true, sent
	cc.fit(c)
}

// marked handles an ECN mark: a packet met a long queue. From then on bursts are spread over the round
// trip, because a window that is sent at once creates a queue whatever its size.
func (cc *congestion) marked(c *common, sent uint32) {
	cc.cut(c, sent, 3, 4, 1)
	cc.Spread = true
}

// lost handles the loss of a packet.
func (cc *congestion) lost(c *common, sent uint32) { cc.cut(c, sent, 1, 2, lossFloor(c.Attr.MTU)) }

// lossFloor returns the window, in packets, below which single losses do not cut.
func lossFloor(mtu uint32) uint32 {
	return min(max(lossFloorBytes/mtu, lossFloorMin), lossFloorMax)
}

// lossRun is the number of consecutive lost packets that indicates a buffer overflow.
const lossRun = 4

// missing handles the loss of n consecutive packets, when only these are sent again. Later packets have
// arrived, so the acknowledgement of the lost ones gives no sample of the round trip time.
func (cc *congestion) missing(c *common, sent, n uint32) {
	cc.Unsure = cc.SRTT != 0
	if n >= lossRun {
		cc.lost(c, sent)
	} else {
		cc.cut(c, sent, 7, 8, repairFloor/c.Attr.MTU)
	}
}

// silent handles a timeout.
func (cc *congestion) silent(c *common, sent uint32) {
	cc.Cut = false
	half := cc.Cwnd / 2
	cc.cut(c, sent, 1, 2, timeoutFloor)
	cc.Thresh = max(half, lossFloor(c.Attr.MTU)*c.Attr.MTU)
}
