package stream

import (
	"time"

	"vrdma.dev/vrdma/verbs"
)

// A buffer is a part of registered memory that is used in a circle.
type buffer struct {
	mem []byte
	mr  *verbs.MR
	at  int // where in mr it begins
}

func part(mr *verbs.MR, at, n int) buffer { return buffer{mr.Bytes()[at : at+n], mr, at} }

// area is a piece of it for the peer, slice one for ourselves.
func (b *buffer) area(off, n int) area { return area{b.mr.Addr(b.at + off), b.mr.RKey(), uint32(n)} }

func (b *buffer) slice(off, n int) verbs.SGE { return b.mr.Slice(b.at+off, n) }

// A connection begins with small buffers, and most need no others. One that is always full, because the
// peer streams, is exchanged for a large one, once. The receiver decides: the areas that it tells the
// peer of are in the new buffer from then on, and what the peer still writes into the old one is read
// first. The peer sees that the areas are larger than its send buffer and exchanges that, too.
//
//	old  ██████ read ██████│▓▓▓ the peer may still write this half ▓▓▓│
//	new                    │ first half: told of at once │ second half: told of when the old one is read │
type growth struct {
	mr     *verbs.MR // of the new buffers; nil: they have not grown
	failed bool      // there was no memory: it stays as it is
	in     buffer    // the new one, while the old one is not read yet
	left   int       // bytes of the old one that are to be read
	outOld int       // bytes of the old send buffer that are under way
	quick  int       // halves in a row that were full within quickly
	last   time.Time // when the one before was
}

const (
	// firstBuffer and largeBuffer are the sizes where the caller has not chosen one. The first is
	// rsockets' own. Two programs on one host that write 64 KiB at a time are more than twice as fast
	// with 1 MiB: with less each half of the buffer is waited for.
	firstBuffer = 128 << 10
	largeBuffer = 1 << 20
	// A stream is where so many halves in a row were full within quickly each.
	manyHalves = 8
)

// quickly makes a stream of 13 MB/s and more.
var quickly = 5 * time.Millisecond

func (g *growth) close() error {
	if g.mr == nil {
		return nil
	}
	return g.mr.Close()
}

// memory is that of the new buffers; false: there is none.
func (c *Conn) memory() bool {
	g := &c.growth
	if g.mr == nil && !g.failed {
		var err error
		g.mr, err = c.p.pd.Alloc(2*largeBuffer, verbs.LocalWrite|verbs.RemoteWrite)
		g.failed = err != nil
	}
	return g.mr != nil
}

// grown exchanges the receive buffer if it is time for that, and returns the area that the peer is told
// of then; one of length 0: it is not. Half of the old buffer is free.
func (c *Conn) grown() area {
	g := &c.growth
	if !c.p.cfg.grows || len(c.in.mem) >= largeBuffer {
		return area{}
	}
	now := time.Now()
	if g.quick++; now.Sub(g.last) > quickly {
		g.quick = 0
	}
	if g.last = now; g.quick < manyHalves || !c.memory() {
		return area{}
	}
	next := part(g.mr, 0, largeBuffer)
	if g.left = len(c.in.mem) - c.inFree; g.left > 0 {
		g.in = next
	} else {
		c.in, c.inAt = next, 0
	}
	half := len(next.mem) / 2
	c.inFree, c.inNext = half, half
	c.misses = 0 // waits are others from now on
	return next.area(0, half)
}

// outgrown reports whether k bytes that were read are of a buffer that is exchanged; after the last of
// them the new one is read.
func (c *Conn) outgrown(k int) bool {
	g := &c.growth
	if g.left == 0 {
		return false
	}
	if g.left -= k; g.left == 0 {
		c.in, c.inAt, g.in = g.in, 0, buffer{}
	}
	return true
}

// growOut exchanges the send buffer if the peer takes much more at a time than fits into it.
func (c *Conn) growOut(area int) {
	if !c.p.cfg.grows || len(c.out.mem) >= largeBuffer || area <= len(c.out.mem) || !c.memory() {
		return
	}
	c.growth.outOld = len(c.out.mem) - c.outFree
	c.out, c.outAt, c.outFree = part(c.growth.mr, largeBuffer, largeBuffer), 0, largeBuffer
	c.misses = 0
}

// returned notes that n bytes of the send buffer are free: requests complete in order, so those of the
// old one are first.
func (c *Conn) returned(n int) {
	old := min(n, c.growth.outOld)
	c.growth.outOld -= old
	c.outFree += n - old
}
