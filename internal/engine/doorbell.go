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
	cursor  int // summary word where the next visit starts
	last    transport.Time
}

const (
	summaryWords = 16
	visitWords   = 64
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

// poll visits the active sessions and schedules the queue pairs that rang.
func (e *Engine) poll() bool {
	rang := false
	for i := 0; i < len(e.active); {
		b := e.active[i]
		if b.page.any.Load() != 0 {
			rang = true
			b.last = e.now
			e.visit(b)
		} else if e.now-b.last > idleAfter && e.rest(b) {
			last := len(e.active) - 1
			e.active[i] = e.active[last]
			e.active[last] = nil
			e.active = e.active[:last]
			continue
		}
		i++
	}
	return rang
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

// visit takes bits off the page.
func (e *Engine) visit(b *bell) {
	b.page.any.Store(0)
	words := visitWords
	for range summaryWords {
		i := b.cursor
		sum := b.page.summary[i].Load()
		if sum != 0 {
			sum = b.page.summary[i].Swap(0)
		}
		for sum != 0 {
			if words == 0 {
				// Put back what we did not come to.
				b.page.summary[i].Or(sum)
				b.page.any.Store(1)
				return
			}
			words--
			j := bits.TrailingZeros64(sum)
			sum &= sum - 1
			w := i*64 + j
			for set := b.page.bitmap[w].Swap(0); set != 0; set &= set - 1 {
				if q := b.session.QP(uint32(w*64 + bits.TrailingZeros64(set))); q != nil {
					e.schedule(q)
				}
			}
		}
		b.cursor = (i + 1) % summaryWords
	}
}
