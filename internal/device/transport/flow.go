package transport

import "vrdma.dev/vrdma/internal/ib"

// This file is the requester's flow control: how much it may send now. congestion limits the packets in
// flight. From that limit follow the size of bursts, the size of READ pieces, and which bursts request
// an ACK.

// fits reports whether the window allows the next packet.
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
	if r.Chunk != wholeRead && !r.fitsPieces(c) {
		return false
	}
	if r.W.Op == WRRead && out != 0 {
		return out+packetsOf(r.W.Length-r.Off, c.Attr.MTU) <= ib.PSNHalf
	}
	return true
}

// fitsPieces is fits for a path that was remote: READs were begun in pieces. It returns false while the peer has as many
// of them as it has resources for. When nothing is outstanding, READs are whole again.
func (r *requester) fitsPieces(c *reqCall) bool {
	if r.Una == r.Max {
		r.Chunk = wholeRead
	}
	return r.W.Op != WRRead || r.RDOut == 0 || r.RDOut < uint32(c.Attr.MaxRDAtomic)
}

// fitsPath reports whether the next burst may be sent to another host when out packets are in flight.
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
		if n := r.CC.chunk(c.common, r.Chunk); n != r.Chunk && r.PSN == r.Max {
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
		return true // at least one more packet, which requests an ACK
	}
	out = r.flying(c.common, out)
	// Small bursts are inefficient: wait for a larger part of the window instead.
	return out < r.CC.Window && r.CC.Window-out >= min(left, r.portion(c.common))
}

// flying returns how many of the out packets after Una are probably still in the network. A vrdma host
// that requests missing packets has received the packets after them, so these do not count. The host
// stores only a limited number of packets out of order.
func (r *requester) flying(c *common, out uint32) uint32 {
	n := ib.PSNDist(r.Una, r.Repair.Arrived)
	if !c.Path.Own || n > out || out >= min(4*r.CC.Window, stashSlots/2) {
		return out
	}
	return out - n
}

// most returns the maximum size of the next burst of the request in W, in bytes. The first packet of a
// WRITE is longer than the others (RETH). A link that sends runs of packets of equal length starts a
// new run after it, and the second packet ends the first run. So these two come on top, and the rest of
// the burst fills a run. The extra size is harmless on other links.
func (r *requester) most(c *common) uint32 {
	if c.Path.Remote && r.Off == 0 && (r.W.Op == WRWrite || r.W.Op == WRWriteImm) {
		return c.Burst + 2*c.Attr.MTU
	}
	return c.Burst
}

// portion returns the target size of a burst, in packets, when the window is the limit. It is small enough
// that ACKs of the first bursts arrive while the last ones are being sent.
func (r *requester) portion(c *common) uint32 {
	w := r.CC.Window
	n := max(w/4, min(w/2, 8))
	if r.CC.Spread {
		n = w / 8
	}
	return max(min(n, r.most(c)/c.Attr.MTU), 1)
}

// room returns the number of packets that may be sent after fits has returned true.
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

// ackEvery is the maximum number of consecutive packets without an ACK request, as in rxe. Between vrdma
// hosts only the window limits it: see asks.
const ackEvery = 64

// asks reports whether b, which is about to be sent, should request an ACK. It must if nothing can follow
// before an ACK arrives.
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

// awaited reports whether ACKs are requested for most of the packets in flight, including b. Their arrival
// allows more packets, which request ACKs in turn. On a congested path it returns false, because every
// ACK is useful there.
func (r *requester) awaited(b *Burst) bool {
	return !r.CC.Spread && r.Unasked*4 < ib.PSNDist(r.Una, r.PSN)+b.Packets
}

// goesOn reports whether b, the end of a message, need not request an ACK because later packets will. To
// send and receive an ACK costs as much as about 10 KiB of data. The program must not notice a delay. So
// enough packets with requested ACKs must be in flight to keep the program posting. And the next message
// must be posted already, of a kind that is always sent. If it is not sent after all, a probe requests
// the ACK.
func (r *requester) goesOn(c *reqCall, b *Burst) bool {
	if !c.Path.Own || c.Attr.MTU < goesOnMTU || r.W.Length < goesOnLeast || c.State != ib.StateRTS || r.PSN != r.Max || r.Loss.Probing || r.Repair.Active || !r.awaited(b) {
		return false
	}
	next := &c.sc.Done // not in use: no request is being completed
	return c.h.FetchSend(r.Pos+1, next) && !next.Op.isRD() && !next.Op.isLocal() && next.Flags&FlagFence == 0 &&
		c.judge(next) == Success
}

const (
	// goesOnLeast is the shortest message whose ACK may wait. Shorter messages arrive many at a time and
	// share one ACK.
	goesOnLeast = 1 << 10
	// goesOnMTU is the smallest MTU at which an ACK may wait. With 1 KiB packets, delayed ACKs make a
	// stream of 64 KiB messages slower; with 4 KiB packets a little faster.
	goesOnMTU = 4096
)

// On a remote path the requester splits a READ into pieces, so that the window limits the response data in
// flight. To the responder each piece is a separate READ. The piece length follows the window, but changes
// only when no READ is outstanding. A repeated piece must equal the original one, or the responder would
// see more requests than it has resources for.
const (
	wholeRead     = ib.PSNHalf + 1 // packets: never reached
	shortestPiece = 4 << 10
	longestPiece  = 256 << 10
)

// chunk returns the piece length in packets. With enough outstanding READs allowed, a piece is a quarter of the
// window, otherwise a half or all of it. If old, the present length, is nearly right, it does not change.
func (cc *congestion) chunk(c *common, old uint32) uint32 {
	if !c.Path.Remote {
		return wholeRead
	}
	n := min(cc.allowed(c.Attr.MTU), longestPiece)
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
	if old < wholeRead && size < old*c.Attr.MTU && n >= old*c.Attr.MTU/2 {
		return old
	}
	return size / c.Attr.MTU
}

// piece returns how many packets to request next from the READ in W, of which left are missing.
func (r *requester) piece(c *common, left uint32) uint32 {
	return min(left, r.Chunk-r.Off/c.Attr.MTU%r.Chunk)
}
