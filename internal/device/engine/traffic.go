package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

// A mode is the pattern of the traffic with other hosts. It decides what the loop does between two
// packets, and follows from what each pass moves. A word is a pass that moved at most talkBytes.
//
//	         woken, or something sent            a word that a program waits for
//	silent ────────────────────────────▶ polled ◀───────────────────────────────▶ pingPong
//	   ▲                                  ▲   │     any other word                  │   ▲
//	   │                quietAfter without │   │ much                           much │   │ quietAfter
//	   │                              much │   ▼                                     ▼   │ without much
//	   │ quietAfter without anything       bulk ◀──────────────────────────────▶ mixed
//	   └──────────────── (from everywhere)          as between the two above
//
//	decision                                        silent  polled  pingPong  bulk  mixed
//	read the sockets in every pass                    no      yes     yes      yes   yes
//	yield at once, to the program a word is for       no      no      yes      no    yes
//	look around for quietAfter before sleeping        no      no      no       yes   yes
//	go to another processor if that is better         no      no      no       yes   yes
type mode uint8

const (
	silent   mode = iota // no traffic for a while: the sockets have to wake the loop
	polled               // some traffic lately
	pingPong             // the last traffic was a word, and completed something for a program
	bulk                 // much traffic lately
	mixed                // bulk, but the last traffic was such a word
)

// talks reports whether programs talk in turns, so that the receiver of a message should run.
func (m mode) talks() bool { return m == pingPong || m == mixed }

// streams reports whether there is much traffic.
func (m mode) streams() bool { return m == bulk || m == mixed }

const (
	// quietAfter is how long the loop polls a silent network before its sockets have to wake the
	// loop.
	quietAfter = ib.Time(200_000)

	// talkBytes is how much a pass may move for it to be a word and no stream. The receiver of a
	// word should have the CPU at once, because an answer is likely. That holds for a program that
	// polls a completion queue, and so yields the CPU. A program that polls its memory for the data
	// of a WRITE does not yield: the loop would wait until its time slice ends.
	talkBytes = 4 << 10
)

// traffic is what the mode follows from.
type traffic struct {
	polled bool    // every pass reads the sockets
	last   ib.Time // when packets arrived or were sent
	much   ib.Time // when a pass moved more than a word; 0: never
	told   bool    // the last packet that arrived completed something for a program
	word   bool    // the last traffic was a word, and told
	moved  uint64  // bytes in all when the last pass ended
	tells  ib.Time // when something other than WRITEs and ACKs arrived or was sent; 0: never

	spoke bool // the last pass moved something
	dry   bool // the last look in this pass found nothing
	dryAt ib.Time
	flood bool // this pass has taken as much as it may, and there is more
}

// dryFor is how long a look that found nothing counts. The kernel may preempt the loop within a pass,
// and packets arrive meanwhile.
const dryFor = ib.Time(1_000_000)

// ranDry notes that a look has found nothing.
func (t *traffic) ranDry(now ib.Time) { t.dry, t.dryAt = true, now }

// isDry reports whether there is no need to look again in this pass.
func (t *traffic) isDry(now ib.Time) bool { return t.dry && now-t.dryAt < dryFor }

// mode is the mode at now.
func (t *traffic) mode(now ib.Time) mode {
	streams := t.much != 0 && now-t.much <= quietAfter
	switch {
	case !t.polled:
		return silent
	case streams && t.word:
		return mixed
	case streams:
		return bulk
	case t.word:
		return pingPong
	}
	return polled
}

// toldFor is how long a stream is not one-sided after something other than a WRITE or an ACK. A stream
// of WRITEs with an occasional message for the program, as in rsockets, is therefore not one-sided.
const toldFor = ib.Time(20_000_000)

// oneSided reports whether a stream consists of WRITEs and their ACKs only. The receiving program gets
// no completions, and needs no CPU.
func (t *traffic) oneSided(now ib.Time) bool { return t.tells == 0 || now-t.tells > toldFor }

// wake makes passes read the sockets: packets arrived, or were sent and an answer is likely.
func (t *traffic) wake(now ib.Time) { t.polled, t.last = true, now }

// looked notes whether reading the sockets found packets.
func (t *traffic) looked(found bool, now ib.Time) {
	if t.dry, t.dryAt = !found, now; found {
		t.last = now
	} else {
		t.polled = now-t.last <= quietAfter
	}
}

// pass ends a pass; moved is the number of bytes moved in all.
func (t *traffic) pass(moved uint64, now ib.Time) {
	if t.spoke = moved != t.moved; !t.spoke {
		return
	}
	little := moved-t.moved <= talkBytes
	t.word = t.told && little
	if !little {
		t.much = now
	}
	t.moved = moved
}
