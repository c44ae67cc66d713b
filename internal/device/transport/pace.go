package transport

import "vrdma.dev/vrdma/internal/ib"

// pacer limits the rate of unacknowledged bursts: UC, UD, and READ responses to a peer that may request more
// than its buffers hold. The rate grows with time and shrinks when the receiver reports congestion:
//
//	      CNP: × 3/4, not below 10 Mb/s
//	Rate ───────────────┬──────────────▶ at most one cut per 50 microseconds
//	      ▲ while sending: one step every 300 microseconds; above 80 Gb/s no limit
type pacer struct {
	Rate    uint32  `cbor:"1,keyasint,omitempty"` // bytes per millisecond; 0: no limit
	Waiting bool    `cbor:"2,keyasint,omitempty"` // a burst waits for At
	At      ib.Time `cbor:"3,keyasint,omitempty"` // earliest time of the next burst
	GrownAt ib.Time `cbor:"4,keyasint,omitempty"`
	SlowAt  ib.Time `cbor:"5,keyasint,omitempty"` // when the rate was last reduced
}

const (
	firstRate  = 1_000_000  // 8 Gb/s
	slowedRate = 2_500_000  // the rate that a cut starts from if there was no limit
	leastRate  = 1_250      // 10 Mb/s
	mostRate   = 10_000_000 // above this rate there is no limit
	rateStep   = 25_000
	growEvery  = ib.Time(300_000)
	// paceCredit is how much time a late sender may catch up.
	paceCredit = ib.Time(100_000)
	// packetCost is the overhead of a packet on the wire, in bytes.
	packetCost = 80
)

// start sets the rate of a new path, low enough for a receiver that must wake up first. RC responses follow
// requests, so they start without a limit.
func (p *pacer) start(t ib.Service) {
	if t != ib.RC {
		p.Rate = firstRate
	}
}

// hold reports whether a burst must wait.
func (p *pacer) hold(now ib.Time) bool {
	if p.Rate == 0 || now >= p.At {
		return false
	}
	p.Waiting = true
	return true
}

// spend accounts for a sent burst.
func (p *pacer) spend(now ib.Time, b *Burst) {
	if p.Rate == 0 {
		return
	}
	bytes := ib.Time(b.size()) + ib.Time(b.Packets)*packetCost
	p.At = max(p.At, now-paceCredit) + bytes*1_000_000/ib.Time(p.Rate)
	if now-p.GrownAt < growEvery {
		return
	}
	p.GrownAt = now
	if p.Rate += rateStep; p.Rate > mostRate {
		p.Rate = 0
	}
}

// slow reduces the rate.
func (p *pacer) slow(now ib.Time) {
	if p.SlowAt != 0 && now-p.SlowAt < notifyEvery {
		return
	}
	p.SlowAt, p.GrownAt = now, now
	if p.Rate == 0 {
		p.Rate = slowedRate
	}
	p.Rate = max(p.Rate-p.Rate/4, leastRate)
}
