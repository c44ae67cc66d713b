package filecopy

import "time"

// A pace chooses the size of the pieces that a stream sends, by the way that they go. What is under way has to
// cover the way: the rate times the time until a slot comes back. More than that only lies in memory,
// and may be out of the caches when its turn comes. So twice that product is divided among the slots.
//
// A near way thus has pieces of 256 KiB, a long one with much bandwidth up to maxChunk, and a slow one
// single blocks, which show progress and of which little is lost when the connection breaks.
type pace struct {
	blocks int
	posted uint64 // since
	since  time.Time
}

const (
	// usual is the size on a near way.
	usual = 2
	// slowRate is where single blocks are enough, in bytes a second.
	slowRate = 20e6
	// paceEvery is how many pieces are looked at together.
	paceEvery = 16
)

func newPace(now time.Time) *pace { return &pace{blocks: usual, since: now} }

func (p *pace) bytes() int { return p.blocks * blockSize }

// sent notes n bytes that were posted; round is the least time that a slot took lately to come back, 0 if
// that is not known.
func (p *pace) sent(now time.Time, n, slots int, round time.Duration) {
	p.posted += uint64(n)
	took := now.Sub(p.since).Seconds()
	if p.posted < uint64(paceEvery*p.bytes()) || took <= 0 {
		return
	}
	rate := float64(p.posted) / took
	p.posted, p.since = 0, now
	least := usual
	if rate < slowRate {
		least = 1
	}
	want := 0
	if slots > 0 {
		want = int(2*rate*round.Seconds()/float64(slots))/blockSize + 1
	}
	// At most twice as much: the rate may have been chance.
	p.blocks = min(max(want, least), 2*p.blocks, maxBlocks)
}
