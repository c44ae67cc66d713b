package filecopy

import (
	"runtime"
	"time"
)

// A pace chooses how much data a sender has in flight. It is twice the bandwidth-delay product: the rate of all streams times the
// shortest time in which a slot came back. More data would only wait in queues and leave the caches. The pace first uses few
// streams and enlarges their pieces, then uses more streams.
//
// The shortest time is that of the whole session. Later times include queues, which grow with the data in flight: a pace that used
// them would grow without end.
//
// On one machine pieces are 512 KiB, and on a short path to another maxChunk, on one stream for every second processor: more
// streams would spin in the kernel on the lock of the same file. On a long and fast path it is all streams with pieces of
// maxChunk. On a slow path it is single blocks, which show progress and of which few are lost when the connection breaks. Small
// files do not fill a slot, so they use all streams. So does TCP, where the data in flight is unknown.
type pace struct {
	blocks  int // size of a piece
	usual   int // size of a piece on a short path
	streams int // in use
	few     int // always in use
	posted  uint64
	pieces  int // posted
	since   time.Time
	least   time.Duration // until a slot came back; 0: unknown
}

const (
	// usualBlocks is the size of a piece on one machine, in blocks. Larger pieces need fewer wake-ups, smaller ones are still in
	// the caches when they are copied again. Between machines they are not in the caches anyway.
	usualBlocks = 4
	// usualSlots and farSlots are the default number of slots of a stream, on one machine and between two. Between machines a
	// chunk waits for both daemons.
	usualSlots = 4
	farSlots   = 8
	// slowRate is the rate below which pieces are single blocks, in bytes/s.
	slowRate = 20e6
	// paceEvery is how many pieces are evaluated together.
	paceEvery = 16
)

// newPace returns the pace of a sender to this machine, if here, or to another.
func newPace(now time.Time, here bool) *pace {
	few, usual := fewStreams(runtime.NumCPU()), maxBlocks
	if here {
		usual = usualBlocks
	}
	return &pace{streams: few, few: few, blocks: usual, usual: usual, since: now}
}

// slotsOf returns how many slots a stream has if wish is 0; here: on one machine.
func slotsOf(wish int, here bool) int {
	switch {
	case wish > 0:
		return wish
	case here:
		return usualSlots
	}
	return farSlots
}

// fewStreams is how many streams are enough on a short path. The other half of the processors reads files and runs the daemon.
func fewStreams(processors int) int { return max(1, processors/2) }

func (p *pace) bytes() int { return p.blocks * blockSize }

// sent records n bytes that were posted to one of the joined streams, each with this many slots. round is the shortest recent time
// until a slot came back; 0: unknown.
func (p *pace) sent(now time.Time, n, joined, slots int, round time.Duration) {
	p.posted += uint64(n)
	p.pieces++
	if round > 0 && (p.least == 0 || round < p.least) {
		p.least = round
	}
	took := now.Sub(p.since).Seconds()
	small := p.pieces >= paceEvery && p.posted < uint64(p.pieces*p.bytes()/2)
	if p.posted < uint64(paceEvery*p.bytes()) && !small || took <= 0 {
		return
	}
	rate := float64(p.posted) / took
	p.posted, p.pieces, p.since = 0, 0, now
	if small || slots == 0 {
		p.streams = maxStreams
		return
	}
	smallest := p.usual
	if rate < slowRate {
		smallest = 1
	}
	under := 2 * rate * p.least.Seconds()
	want := int(under/float64(slots*min(p.few, max(joined, 1))))/blockSize + 1
	streams := max(p.few, int(under)/(slots*maxChunk)+1)
	// At most twice as much: the measured rate may be an outlier.
	p.blocks = min(max(want, smallest), 2*p.blocks, maxBlocks)
	p.streams = min(streams, 2*p.streams, maxStreams)
}
