package engine

import (
	"math/bits"

	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// A bell is a session's doorbell page (shim/protocol.h describes it): the client
// sets the bit of a queue pair, the bit of its word in the summary and the word
// "any"; if we are armed it writes to the eventfd besides.
//
// The client may set anything at any time. One visit therefore looks at a bounded
// number of words and rings a bounded number of queue pairs; what is left waits for
// the next visit, so a client that rings everything all the time delays itself.
type bell struct {
	session *nic.Session
	fd      int
	page    page
	active  bool
	cursor  int // handle where the next visit starts
	last    transport.Time
	flow    flow
}

const (
	summaryWords = 16
	// visitWords and visitRings bound what one visit takes off a page: words of the
	// bitmap, and queue pairs.
	visitWords = 16
	visitRings = 16
	// pollBells is how many sessions one pass looks at, and ringsPerPass how many of
	// those that rang it visits.
	pollBells    = 64
	ringsPerPass = 8
	// idleAfter is how long a silent session is polled before it has to wake us.
	idleAfter = transport.Time(200_000)
)

func newBell(s *nic.Session, fd int) *bell {
	return &bell{session: s, fd: fd, page: newPage(s.Arena.Doorbell())}
}

// activate has the loop poll b.
func (e *Engine) activate(b *bell) {
	if !b.active {
		b.active = true
		b.page.armed.Store(0)
		e.active = append(e.active, b)
	}
	b.last = e.now
}

// poll visits the active sessions and schedules the queue pairs that rang. It looks at
// pollBells of them at most and visits ringsPerPass; the next pass goes on from there.
func (e *Engine) poll() bool {
	visits := 0
	for range min(len(e.active), pollBells) {
		if e.look >= len(e.active) {
			if e.look = 0; len(e.active) == 0 {
				break
			}
		}
		b := e.active[e.look]
		if b.page.any.Load() != 0 {
			if visits == ringsPerPass {
				break
			}
			visits++
			b.last = e.now
			e.visit(b)
		} else if e.now-b.last > idleAfter && e.rest(b) {
			last := len(e.active) - 1
			e.active[e.look] = e.active[last]
			e.active[last] = nil
			e.active = e.active[:last]
			continue
		}
		e.look++
	}
	return visits > 0
}

// rest arms b, so that its next ring wakes the loop; false if it rang meanwhile.
func (e *Engine) rest(b *bell) bool {
	b.page.armed.Store(1)
	if b.page.any.Load() != 0 {
		b.page.armed.Store(0)
		return false
	}
	b.active = false
	return true
}

// visit takes bits off the page: those from the cursor on, then those before it.
func (e *Engine) visit(b *bell) {
	b.page.any.Store(0)
	words, rings := visitWords, visitRings
	begin := uint(b.cursor) / 64
	for i := range uint(summaryWords + 1) {
		at := (begin/64 + i) % summaryWords
		sum := b.page.summary[at].Load()
		if sum == 0 {
			continue
		}
		// The summary word that the cursor stands in comes first and, for what is
		// before the cursor, last again.
		mine := ^uint64(0)
		if i == 0 {
			mine <<= begin % 64
		} else if i == summaryWords {
			mine = 1<<(begin%64) - 1
		}
		if mine == ^uint64(0) {
			sum = b.page.summary[at].Swap(0)
		} else {
			sum &= mine
			b.page.summary[at].And(^sum)
		}
		for ; sum != 0; sum &= sum - 1 {
			if words == 0 || rings == 0 {
				// Put back what we did not come to.
				b.page.summary[at].Or(sum)
				b.page.any.Store(1)
				return
			}
			words--
			rings = e.visitWord(b, int(at)*64+bits.TrailingZeros64(sum), rings)
		}
	}
	if rings > 0 {
		b.cursor = 0 // all were seen
	}
}

// visitWord schedules queue pairs whose bit is set in word w, most of them at most, and
// returns how many more it might have. If the cursor stands in w, those before it wait until
// it has come round.
func (e *Engine) visitWord(b *bell, w, most int) int {
	set := b.page.bitmap[w].Swap(0)
	later := uint64(0)
	if w == b.cursor/64 {
		later = set & (1<<(b.cursor%64) - 1)
	}
	b.cursor = (w + 1) % (summaryWords * 64) * 64
	for set &^= later; set != 0; set &= set - 1 {
		bit := bits.TrailingZeros64(set)
		if most == 0 {
			later |= set
			b.cursor = w*64 + bit
			break
		}
		most--
		if q := b.session.QP(uint32(w*64 + bit)); q != nil {
			e.schedule(q)
		}
	}
	if later != 0 {
		b.page.bitmap[w].Or(later)
		b.page.summary[w/64].Or(1 << (w % 64))
		b.page.any.Store(1)
	}
	return most
}
