package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

// How the loop spends its time between two packets depends on what the traffic with other
// hosts looks like, which is learnt from what every pass moves. A word is a pass that moved
// talkBytes at most.
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
	silent   mode = iota // nothing for a while: the sockets have to wake the loop
	polled               // something lately
	pingPong             // what was moved last was a word, and completed something for a program
	bulk                 // much lately
	mixed                // bulk, but what was moved last was such a word
)

// talks reports whether programs talk in turns, and should run when they are told something.
func (m mode) talks() bool { return m == pingPong || m == mixed }

// streams reports whether much is moved.
func (m mode) streams() bool { return m == bulk || m == mixed }

const (
	// quietAfter is how long a silent network is polled before its sockets have to wake
	// the loop.
	quietAfter = ib.Time(200_000)

	// talkBytes is how much a pass may move for it to be a word and no stream. Whoever a
	// word is for should have the processor at once, because an answer is likely: if it
	// polls a completion queue, and so gives the processor back. A program that looks at
	// its memory for what a WRITE brings does not, and to yield to it is to wait until
	// its time is up.
	talkBytes = 4 << 10
)

// traffic is what mode is made of.
type traffic struct {
	polled bool    // the sockets are read in every pass
	last   ib.Time // when something came or was sent
	much   ib.Time // when a pass moved more than a word; 0: never
	told   bool    // what was heard last completed something for a program
	word   bool    // what was moved last was a word, and told
	moved  uint64  // bytes, when the last pass ended
	tells  ib.Time // when something other than WRITEs and ACKs came or was sent; 0: never

	spoke bool // the last pass moved something
	dry   bool // the last look in this pass found nothing
	dryAt ib.Time
	flood bool // as much as one pass may hear was heard, and there is more
}

// dryFor is how long a look that found nothing counts. The loop may lose its processor in the midst of
// a pass, and what comes meanwhile has not been looked for.
const dryFor = ib.Time(1_000_000)

// ranDry notes that a look has found nothing.
func (t *traffic) ranDry(now ib.Time) { t.dry, t.dryAt = true, now }

// isDry reports whether there is no need to look again in this pass.
func (t *traffic) isDry(now ib.Time) bool { return t.dry && now-t.dryAt < dryFor }

// mode is what the traffic looks like at now.
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

// toldFor is how long a stream is not one-sided after something other than a WRITE or an ACK.
// So a stream of WRITEs with a message for the program now and then, as rsockets has it, is
// not one-sided.
const toldFor = ib.Time(20_000_000)

// oneSided reports whether a stream has been of WRITEs and their ACKs only. The program that
// these are for is told nothing, and needs no processor.
func (t *traffic) oneSided(now ib.Time) bool { return t.tells == 0 || now-t.tells > toldFor }

// wake has the sockets read: something came, or was sent and an answer is likely.
func (t *traffic) wake(now ib.Time) { t.polled, t.last = true, now }

// looked notes whether something had come when the sockets were read.
func (t *traffic) looked(found bool, now ib.Time) {
	if t.dry, t.dryAt = !found, now; found {
		t.last = now
	} else {
		t.polled = now-t.last <= quietAfter
	}
}

// pass ends a pass, after which moved bytes have been moved in all.
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
