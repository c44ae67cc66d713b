package stream

import (
	"time"

	"vrdma.dev/vrdma/verbs"
)

// A buffer is a part of a memory region, used as a ring buffer.
type buffer struct {
	mem []byte
	mr  *verbs.MR
	at  int // offset in mr
}

func part(mr *verbs.MR, at, n int) buffer { return buffer{mr.Bytes()[at : at+n], mr, at} }

// area returns a part of the buffer as the peer addresses it; slice as this side does.
func (b *buffer) area(off, n int) area { return area{b.mr.Addr(b.at + off), b.mr.RKey(), uint32(n)} }

func (b *buffer) slice(off, n int) verbs.SGE { return b.mr.Slice(b.at+off, n) }

// A growth replaces the small buffers of a connection by large ones, once, if the peer sends a stream that
// keeps the receive buffer full. The receiver decides: from then on it offers areas of the new buffer, and
// reads what the peer still writes into the old one first. The peer sees areas larger than its send buffer
// and replaces that buffer, too.
//
//	old  ██████ read ██████│▓▓▓ the peer may still write this half ▓▓▓│
//	new                    │ first half: offered at once │ second half: offered when the old one is read │
type growth struct {
	mr     *verbs.MR // the memory of the new buffers; nil before the replacement
	failed bool      // the allocation failed: keep the small buffers
	in     buffer    // the new receive buffer, until the old one is read
	left   int       // unread bytes of the old receive buffer
	outOld int       // bytes of the old send buffer in flight
	quick  int       // consecutive halves that filled up within the time quickly
	last   time.Time // when the previous half was full
}

const (
	// firstBuffer and largeBuffer are the default sizes. firstBuffer is the default of rsockets. With
	// largeBuffer two programs on one host that write 64 KiB at a time are more than twice as fast,
	// because the writer waits less often for a free half.
	firstBuffer = 128 << 10
	largeBuffer = 1 << 20
	// manyHalves is the number of consecutive quickly filled halves that identify a stream.
	manyHalves = 8
)

// quickly is the time limit for one half: a stream has at least 13 MB/s.
var quickly = 5 * time.Millisecond

func (g *growth) close() error {
	if g.mr == nil {
		return nil
	}
	return g.mr.Close()
}

// memory allocates the new buffers; it returns false if that fails.
func (c *Conn) memory() bool {
	g := &c.growth
	if g.mr == nil && !g.failed {
		var err error
		g.mr, err = c.p.pd.Alloc(2*largeBuffer, verbs.LocalWrite|verbs.RemoteWrite)
		g.failed = err != nil
	}
	return g.mr != nil
}

// grown replaces the receive buffer if the peer streams, and returns the area to offer to the peer. The area
// has length 0 if the buffer stays. Half of the old buffer is free.
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
	c.misses = 0 // the waiting pattern changes
	return next.area(0, half)
}

// outgrown reports whether k bytes just read belong to the old buffer. After the last of them it switches
// to the new one.
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

// growOut replaces the send buffer if the peer offers areas that are larger than it.
func (c *Conn) growOut(area int) {
	if !c.p.cfg.grows || len(c.out.mem) >= largeBuffer || area <= len(c.out.mem) || !c.memory() {
		return
	}
	c.growth.outOld = len(c.out.mem) - c.outFree
	c.out, c.outAt, c.outFree = part(c.growth.mr, largeBuffer, largeBuffer), 0, largeBuffer
	c.misses = 0
}

// returned records n free bytes of the send buffer. Requests complete in order, so bytes of the old buffer
// come first.
func (c *Conn) returned(n int) {
	old := min(n, c.growth.outOld)
	c.growth.outOld -= old
	c.outFree += n - old
}
