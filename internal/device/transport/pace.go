package transport

import "vrdma.dev/vrdma/internal/ib"

// pacer spaces bursts that nobody acknowledges: UC, UD, and READ responses to a peer that
// asks for more at once than its buffers may hold. The rate grows with time and shrinks
// when the receiver tells of congestion:
//
//	      CNP: × 3/4, not below 10 Mb/s
//	Rate ───────────────┬──────────────▶ one cut in 50 microseconds
//	      ▲ while it sends: one step more every 300 microseconds; beyond 80 Gb/s no limit
type pacer struct {
	Rate    uint32  // bytes in a millisecond; 0: no limit
	Waiting bool    // something waits for At
	At      ib.Time // no burst before then
	GrownAt ib.Time
	SlowAt  ib.Time // when the rate was last lowered
}

const (
	firstRate  = 1_000_000  // 8 Gb/s
	slowedRate = 2_500_000  // what "no limit" counts as when it proves too much
	leastRate  = 1_250      // 10 Mb/s
	mostRate   = 10_000_000 // beyond, there is no limit
	rateStep   = 25_000
	growEvery  = ib.Time(300_000)
	// paceCredit is for how much of the past a sender that came late may catch up.
	paceCredit = ib.Time(100_000)
	// packetCost is what a packet takes on the wire beside its payload.
	packetCost = 80
)

// start sets the rate of a new path: no more than a receiver that has to wake up first
// can hold. The responses of RC follow requests, so they start without a limit.
func (p *pacer) start(t ib.Service) {
	if t != ib.RC {
		p.Rate = firstRate
	}
}

// hold reports whether a burst has to wait.
func (p *pacer) hold(now ib.Time) bool {
	if p.Rate == 0 || now >= p.At {
		return false
	}
	p.Waiting = true
	return true
}

// spend counts what has been sent.
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

// slow lowers the rate.
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
