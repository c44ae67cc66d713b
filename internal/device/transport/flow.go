package transport

import "vrdma.dev/vrdma/internal/ib"

// This file is the requester's flow control: how much it may send now. Congestion says how
// many packets may be in flight; here that becomes the size of bursts, of the pieces in
// which READs are asked for, and the question which burst asks for an ACK.

// fitPath works out what the requester keeps to, after path or MTU changed.
func (r *requester) fitPath(c *common) {
	r.CC.fit(c)
	if r.Una == r.Max {
		r.Chunk = r.chunk(c)
	}
}

// fits reports whether the next packet keeps to the window.
func (r *requester) fits(c *reqCall) bool {
	out := ib.PSNDist(r.Una, r.PSN)
	if c.Path.Remote {
		fits := r.fitsPath(c, out)
		r.CC.Full = !fits
		return fits
	}
	if out >= r.CC.Window {
		return false
	}
	if r.W.Op == WRRead && out != 0 {
		return out+packetsOf(r.W.Length-r.Off, c.Attr.MTU) <= ib.PSNHalf
	}
	return true
}

// fitsPath reports whether the next burst may be sent to another host when out packets are
// in flight.
func (r *requester) fitsPath(c *reqCall, out uint32) bool {
	if r.Loss.Probing {
		return out == 0
	}
	if r.CC.hold(c.now) {
		return false
	}
	if r.Repair.Active {
		return true
	}
	left := packetsOf(r.W.Length-r.Off, c.Attr.MTU)
	switch {
	case r.W.Op == WRRead:
		if n := r.chunk(c.common); n != r.Chunk && r.PSN == r.Max {
			if r.Una != r.Max {
				return false
			}
			r.Chunk = n
		}
		return out == 0 || out+r.piece(c.common, left) <= r.CC.Window+min(r.Reads.NumSeen, seenMost/2) &&
			(r.RDOut == 0 || r.RDOut < uint32(c.Attr.MaxRDAtomic))
	case r.W.Op.isRD():
		return out < r.CC.Window
	case r.Unasked > 0:
		return true // at least one packet more, that asks
	}
	out = r.flying(c.common, out)
	// Small bursts are dear: better to wait for room than to fill what little there is.
	return out < r.CC.Window && r.CC.Window-out >= min(left, r.portion(c.common))
}

// flying is how many of the out packets behind Una are on their way, as far as that is
// known: one of our own hosts that asks for something has what is behind it, so what is
// missing does not hold up the rest. The host keeps only so much that is out of order.
func (r *requester) flying(c *common, out uint32) uint32 {
	n := ib.PSNDist(r.Una, r.Repair.Arrived)
	if !c.Path.Own || n > out || out >= min(4*r.CC.Window, stashSlots/2) {
		return out
	}
	return out - n
}

// most is how many bytes the next burst of the request in W may have. Behind the first
// packet of a WRITE, which is longer than the others, a link that cuts bursts into runs of
// packets of one length has to begin a new run, and the second packet ends the first run:
// both come on top, so that what follows fills a run. (A link that makes all of them as long
// needs no such care, and it does no harm there.)
func (r *requester) most(c *common) uint32 {
	if c.Path.Remote && r.Off == 0 && (r.W.Op == WRWrite || r.W.Op == WRWriteImm) {
		return c.Burst + 2*c.Attr.MTU
	}
	return c.Burst
}

// portion is how many packets a burst is to have when the window is what limits it: few
// enough that acknowledgements of the first arrive while the last are being sent.
func (r *requester) portion(c *common) uint32 {
	w := r.CC.Window
	n := max(w/4, min(w/2, 8))
	if r.CC.Spread {
		n = w / 8
	}
	return max(min(n, r.most(c)/c.Attr.MTU), 1)
}

// room is how many packets may be sent when fits has agreed.
func (r *requester) room(c *common) uint32 {
	if !c.Path.Remote {
		return r.CC.Window - ib.PSNDist(r.Una, r.PSN)
	}
	if r.Repair.Active {
		return ib.PSNDist(r.PSN, r.Repair.Gaps.List[0].To)
	}
	out := r.flying(c, ib.PSNDist(r.Una, r.PSN))
	if r.Loss.Probing || out >= r.CC.Window {
		return 1
	}
	return min(r.CC.Window-out, r.portion(c))
}

// ackEvery is the longest run of packets that does not ask for an ACK, as in rxe. Between
// vrdma hosts only the window bounds it: see asks.
const ackEvery = 64

// asks reports whether b, which is about to leave, should ask for an ACK: if nothing could
// follow it before an ACK comes, it has to.
func (r *requester) asks(c *reqCall, b *Burst) bool {
	if b.Last && !r.goesOn(c, b) || r.Unasked >= ackEvery && !c.Path.Own || r.Unasked*2 >= r.CC.Window {
		return true
	}
	if !c.Path.Remote {
		return false
	}
	if r.Repair.Active {
		return ib.PSNDist(r.PSN, r.Repair.Gaps.List[0].To) == b.Packets
	}
	if r.Loss.Probing || r.Unasked*4 >= r.CC.Window {
		return true
	}
	full := r.flying(c.common, ib.PSNDist(r.Una, r.PSN))+b.Packets+r.portion(c.common) > r.CC.Window
	return full && !(c.Path.Own && r.awaited(b))
}

// awaited reports whether ACKs have been asked for of most of what is in flight, b included.
// When they come there will be room for more, which asks in its turn. On a congested path it
// reports false: every ACK is of use there.
func (r *requester) awaited(b *Burst) bool {
	return !r.CC.Spread && r.Unasked*4 < ib.PSNDist(r.Una, r.PSN)+b.Packets
}

// goesOn reports whether b, the end of a message, need not ask for an ACK because others will
// come: to send and to receive an ACK costs as much as some 10 KiB of data. The program must
// not notice. So enough has to be in flight whose ACKs were asked for, and keep the program
// posting; and the next message has to be posted, of a kind that is sent whatever happens to
// this one. Should it not be sent after all, a probe will ask.
func (r *requester) goesOn(c *reqCall, b *Burst) bool {
	if !c.Path.Own || c.Attr.MTU < goesOnMTU || r.W.Length < goesOnLeast || c.State != ib.StateRTS || r.PSN != r.Max || r.Loss.Probing || r.Repair.Active || !r.awaited(b) {
		return false
	}
	next := &c.sc.Done // nothing is being completed now
	return c.h.FetchSend(r.Pos+1, next) && !next.Op.isRD() && !next.Op.isLocal() && next.Flags&FlagFence == 0 &&
		r.judge(c.common, next) == Success
}

const (
	// goesOnLeast is the shortest message whose ACK may wait. Shorter ones arrive many at
	// once, and are acknowledged so.
	goesOnLeast = 1 << 10
	// goesOnMTU is the smallest MTU with which one may wait. With packets of 1 KiB a stream of
	// 64 KiB messages was a fifth slower for it, with packets of 4 KiB a little faster.
	goesOnMTU = 4096
)

// A READ of a remote path is asked for in pieces, so that the window bounds what the
// responder, which hears nothing until it has answered, may have on its way to us. To the
// responder each piece is a READ of its own. Their length follows the window, but changes
// only when nothing is outstanding: what is asked for again must be what was asked for
// before, or the responder would see more requests than it has resources for.
const (
	wholeRead     = ib.PSNHalf + 1 // packets: never reached
	shortestPiece = 4 << 10
	longestPiece  = 256 << 10
)

// chunk is how many packets a piece should have: so many that what may be outstanding
// fills the window, a quarter of it if so many may be. A piece that is nearly right stays.
func (r *requester) chunk(c *common) uint32 {
	if !c.Path.Remote {
		return wholeRead
	}
	n := min(r.CC.allowed(c.Attr.MTU), longestPiece)
	switch d := c.Attr.MaxRDAtomic; {
	case d >= 4:
		n /= 4
	case d >= 2:
		n /= 2
	}
	size := uint32(shortestPiece)
	for size*2 <= n {
		size *= 2
	}
	if old := r.Chunk; old < wholeRead && size < old*c.Attr.MTU && n >= old*c.Attr.MTU/2 {
		return old
	}
	return size / c.Attr.MTU
}

// piece is how many packets of the READ in W, of which so many are left, to ask for next.
func (r *requester) piece(c *common, left uint32) uint32 {
	return min(left, r.Chunk-r.Off/c.Attr.MTU%r.Chunk)
}
