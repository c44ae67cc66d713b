package engine

import (
	"math/bits"
	"slices"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/ib"
)

// Doorbells tell the loop who has posted something. Each session has a page of them
// (shim/protocol.h describes it): the client sets the bit of a queue pair, the bit of its
// word in the summary and the word "any"; if we are armed it writes to the eventfd besides.
//
//	           rings, and the poller tells                poll reads the pages of active
//	resting ◀────────────────────────────▶ active ──▶ ones, and those that rang are given
//	 (armed)    silent for idleAfter                      turns by the scheduler
//
// The client may set anything at any time. Reading a page therefore looks at a bounded
// number of words and takes a bounded number of rings; what is left waits for the next time,
// so a client that rings everything all the time delays itself.
type doorbells struct {
	of      map[int32]*bell // by the descriptor that wakes us, or a number below 0
	mute    int32           // the last such number
	active  []*bell
	prompts int     // how many do not rest while the loop is awake
	fars    int     // how many far ones there are
	short   bool    // the loop's thread has the slice for them
	awaited ib.Time // until when a ring of a far one is worth staying awake for
	crowded ib.Time // until when the loop naps while it waits for that
	naps    ib.Time // for how long it was to, the last time; 0: it got its processor back in time
	near    ib.Time // when one that is not far rang last, and
	nears   int     // how often such ones have since a far one rang
	look    int     // among active: where the next poll begins
	cpu     uint32  // the processor that the loop runs on, plus one; see waiters.go
	sched   *scheduler
	poller  *poller
	clock   *clock
}

// A bell is a session's page.
type bell struct {
	client *client
	fd     int   // -1: there is none
	key    int32 // in doorbells.of
	page   page
	active bool
	prompt bool    // while the loop is awake it does not rest: its NIC is of class latency
	far    bool    // to wake us takes it long: it is in a virtual machine
	rang   ib.Time // when it rang last, if it is far
	looked ib.Time // when the page was looked at last
	cursor int     // handle where the next reading starts
	last   ib.Time
}

const (
	summaryWords = protocol.DoorbellBits / 64 / 64
	// wordsAtOnce and ringsAtOnce bound what one reading takes off a page: words of the
	// bitmap, and queue pairs.
	wordsAtOnce = 16
	ringsAtOnce = 16
	// pollBells is how many sessions one pass looks at, and readsPerPass of how many that
	// rang it reads the page.
	pollBells    = 64
	readsPerPass = 8
	// idleAfter is how long a silent session is polled before it has to wake us.
	idleAfter = ib.Time(200_000)
	// farIdleAfter is that for one in a virtual machine. To wake us from there takes a system call and an exit
	// of the guest, QEMU's thread and a socket, some hundred microseconds; a page that is looked at takes none
	// of it.
	farIdleAfter = ib.Time(2_000_000)
)

// silent is for how long a bell is silent before it rests.
func (b *bell) silent() ib.Time {
	if b.far {
		return farIdleAfter
	}
	return idleAfter
}

// add begins with b, whose descriptor is watched.
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

// remove ends it.
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

// activate has poll look at b.
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

// mostPrompt is how many sessions may be looked at all the time.
const mostPrompt = 32

// setPrompt says whether b does not rest while the loop is awake.
func (d *doorbells) setPrompt(b *bell, prompt bool) {
	if b.prompt {
		d.prompts--
	}
	if b.prompt = prompt && d.prompts < mostPrompt; b.prompt {
		d.prompts++
	}
}

// activatePrompt activates those that do not rest while the loop is awake.
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

// promptRang reports whether one that does not rest has rung.
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

// activateRung activates those that rang while they rested.
func (d *doorbells) activateRung(now ib.Time) {
	for _, b := range d.of {
		if !b.active && b.page.any.Load() != 0 {
			d.activate(b, now)
		}
	}
}

// poll reads the pages of active sessions that rang and schedules the queue pairs. It looks
// at pollBells of them at most and reads readsPerPass; the next pass goes on from there.
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

// restAll arms all, before the loop sleeps; false if one rang meanwhile.
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

// rest arms b, so that its next ring wakes the loop; false if it rang meanwhile.
func (b *bell) rest() bool {
	b.page.armed.Store(1)
	if b.page.any.Load() != 0 {
		b.page.armed.Store(0)
		return false
	}
	b.active = false
	return true
}

// read takes bits off the page: those from the cursor on, then those before it.
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
			rings = d.readWord(b, int(at)*64+bits.TrailingZeros64(sum), rings)
		}
	}
	if rings > 0 {
		b.cursor = 0 // all were seen
	}
}

// readWord schedules queue pairs whose bit is set in word w, most of them at most, and
// returns how many more it might have. If the cursor stands in w, those before it wait until
// it has come round.
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
				t.since = b.looked // it rang since then
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
