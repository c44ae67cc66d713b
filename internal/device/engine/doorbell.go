package engine

import (
	"math/bits"
	"slices"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/ib"
)

// doorbells are the doorbell pages of all sessions (shim/protocol.h describes the page). A client
// sets the bit of a queue pair, the bit of its word in the summary, and the word "any". If the page is
// armed, the client also writes to the eventfd.
//
//	           rings, and the poller reports it          poll reads the pages of active
//	resting ◀────────────────────────────▶ active ──▶ sessions, and the scheduler gives
//	 (armed)    silent for idleAfter                      turns to queue pairs that rang
//
// A client may write anything to its page at any time. Reading a page therefore looks at a bounded
// number of words and takes a bounded number of rings. The rest waits for the next time, so a client
// that rings everything all the time delays itself.
type doorbells struct {
	of      map[int32]*bell // by descriptor; sessions without one have a negative number
	mute    int32           // the last negative number
	active  []*bell
	prompts int     // number of sessions that do not rest while the loop is awake
	fars    int     // number of far sessions, see far.go
	short   bool    // the loop's thread has the time slice for far sessions
	awaited ib.Time // until when the loop stays awake for a ring of a far session
	crowded ib.Time // until when the loop naps while it waits for that ring
	naps    ib.Time // how long it napped the last time; 0: it got its CPU back in time
	near    ib.Time // when a session that is not far rang last
	nears   int     // rings of such sessions since a far session rang
	look    int     // index in active where the next poll begins
	cpu     uint32  // the loop's CPU, plus one; see waiters.go
	sched   *scheduler
	poller  *poller
	clock   *clock
}

// A bell is the doorbell page of a session.
type bell struct {
	client *client
	fd     int   // -1: there is none
	key    int32 // in doorbells.of
	page   page
	active bool
	prompt bool    // it does not rest while the loop is awake: its NIC is of class latency
	far    bool    // its client is in a virtual machine, and takes long to wake the loop
	rang   ib.Time // when it rang last, if it is far
	looked ib.Time // when the loop last looked at the page
	cursor int     // handle where the next reading starts
	last   ib.Time // when it rang or was activated last
}

const (
	summaryWords = protocol.DoorbellBits / 64 / 64
	// wordsAtOnce and ringsAtOnce bound one reading of a page: words of the bitmap, and queue
	// pairs.
	wordsAtOnce = 16
	ringsAtOnce = 16
	// pollBells is how many pages one pass looks at, and readsPerPass how many of those that rang
	// it reads.
	pollBells    = 64
	readsPerPass = 8
	// idleAfter is how long the loop polls a silent session before it arms the page.
	idleAfter = ib.Time(200_000)
	// farIdleAfter is the same for a client in a virtual machine. A wake-up from there takes a
	// system call and an exit of the guest, QEMU's thread and a socket, some hundred microseconds.
	// A polled page takes none of that.
	farIdleAfter = ib.Time(2_000_000)
)

// silent is how long a bell is silent before it rests.
func (b *bell) silent() ib.Time {
	if b.far {
		return farIdleAfter
	}
	return idleAfter
}

// add adds b, whose descriptor the poller watches.
func (d *doorbells) add(b *bell, now ib.Time) {
	if b.key = int32(b.fd); b.fd < 0 {
		d.mute--
		b.key = d.mute
	}
	d.of[b.key] = b
	d.activate(b, now)
	if b.far {
		d.fars++
	}
}

// remove undoes add.
func (d *doorbells) remove(b *bell) {
	if b.fd >= 0 {
		d.poller.unwatch(b.fd)
	}
	delete(d.of, b.key)
	if b.far {
		d.fars--
	}
	if i := slices.Index(d.active, b); i >= 0 {
		d.active = slices.Delete(d.active, i, i+1)
	}
}

// activate makes poll look at b.
func (d *doorbells) activate(b *bell, now ib.Time) {
	if !b.active {
		b.active = true
		b.page.armed.Store(0)
		b.tellProcessor(d.cpu)
		b.looked = now
		d.active = append(d.active, b)
	}
	b.last = now
}

// mostPrompt bounds the sessions that never rest while the loop is awake.
const mostPrompt = 32

// setPrompt sets whether b does not rest while the loop is awake.
func (d *doorbells) setPrompt(b *bell, prompt bool) {
	if b.prompt {
		d.prompts--
	}
	if b.prompt = prompt && d.prompts < mostPrompt; b.prompt {
		d.prompts++
	}
}

// activatePrompt activates the sessions that do not rest while the loop is awake.
func (d *doorbells) activatePrompt(now ib.Time) {
	if d.prompts == 0 {
		return
	}
	for _, b := range d.of {
		if b.prompt {
			d.activate(b, now)
		}
	}
}

// promptRang reports whether a session that does not rest has rung.
func (d *doorbells) promptRang(now ib.Time) bool {
	if d.prompts == 0 {
		return false
	}
	for _, b := range d.active[:min(len(d.active), pollBells)] {
		if !b.prompt {
			continue
		}
		if b.page.any.Load() != 0 {
			return true
		}
		b.looked = now
	}
	return false
}

// activateRung activates the sessions that rang while they rested.
func (d *doorbells) activateRung(now ib.Time) {
	for _, b := range d.of {
		if !b.active && b.page.any.Load() != 0 {
			d.activate(b, now)
		}
	}
}

// poll reads the pages of active sessions that rang and schedules their queue pairs. It looks at no
// more than pollBells pages and reads no more than readsPerPass. The next pass continues there.
func (d *doorbells) poll(now ib.Time) bool {
	reads := 0
	for range min(len(d.active), pollBells) {
		if d.look >= len(d.active) {
			if d.look = 0; len(d.active) == 0 {
				break
			}
		}
		b := d.active[d.look]
		if b.page.any.Load() != 0 {
			if reads == readsPerPass {
				break
			}
			reads++
			b.last = now
			if b.far {
				d.rung(b, now)
			} else {
				d.near = now
				d.nears++
			}
			if d.sched.alone == nil {
				d.clock.worksFor(b.client.adapter) // reading a page with many rings takes long
				d.clock.turn = false
			}
			d.read(b)
		} else if now-b.last > b.silent() && !b.prompt && b.rest() {
			last := len(d.active) - 1
			d.active[d.look] = d.active[last]
			d.active[last] = nil
			d.active = d.active[:last]
			continue
		}
		b.looked = now
		d.look++
	}
	return reads > 0
}

// restAll arms all pages before the loop sleeps. It returns false if a session rang meanwhile.
func (d *doorbells) restAll() bool {
	for len(d.active) > 0 {
		last := len(d.active) - 1
		if !d.active[last].rest() {
			return false
		}
		d.active[last] = nil
		d.active = d.active[:last]
	}
	return true
}

// rest arms b, so that its next ring wakes the loop. It returns false if b rang meanwhile.
func (b *bell) rest() bool {
	b.page.armed.Store(1)
	if b.page.any.Load() != 0 {
		b.page.armed.Store(0)
		return false
	}
	b.active = false
	return true
}

// read takes bits from the page: those from the cursor on, then those before it.
func (d *doorbells) read(b *bell) {
	b.page.any.Store(0)
	words, rings := wordsAtOnce, ringsAtOnce
	begin := uint(b.cursor) / 64
	for i := range uint(summaryWords + 1) {
		at := (begin/64 + i) % summaryWords
		sum := b.page.summary[at].Load()
		if sum == 0 {
			continue
		}
		// The summary word of the cursor comes first and, for the bits before the cursor, last
		// again.
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
				// Put back the bits that were not handled.
				b.page.summary[at].Or(sum)
				b.page.any.Store(1)
				return
			}
			words--
			rings = d.readWord(b, int(at)*64+bits.TrailingZeros64(sum), rings)
		}
	}
	if rings > 0 {
		b.cursor = 0 // all bits were handled
	}
}

// readWord schedules at most most queue pairs whose bit is set in word w, and returns how many more
// it could have scheduled. If the cursor is in w, the bits before the cursor wait for the next round.
func (d *doorbells) readWord(b *bell, w, most int) int {
	set := b.page.bitmap[w].Swap(0)
	later := uint64(0)
	if w == b.cursor/64 {
		later = set & (1<<(b.cursor%64) - 1)
	}
	b.cursor = (w + 1) % (summaryWords * 64) * 64
	row := b.client.tasks.row(w)
	for set &^= later; set != 0; set &= set - 1 {
		bit := bits.TrailingZeros64(set)
		if most == 0 {
			later |= set
			b.cursor = w*64 + bit
			break
		}
		most--
		if t := row[bit]; t != nil {
			if !t.queued {
				d.sched.enqueue(t)
				t.since = b.looked // it may have rung right after that look
			}
		}
	}
	if later != 0 {
		b.page.bitmap[w].Or(later)
		b.page.summary[w/64].Or(1 << (w % 64))
		b.page.any.Store(1)
	}
	return most
}
