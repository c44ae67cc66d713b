package transport

import (
	"vrdma/internal/ib"
	"vrdma/internal/memory"
)

// The responder's half of selective repeat, between our own hosts. Requests that arrive
// ahead of a missing one are kept, and only what is missing is asked for:
//
//	arrived  … 40 41 __ 43 44 __ 46        NAK 42, up to 43    repair 45, up to 46
//	                 └─ expected ▲                                        │
//	                             └── stashed; carried out in order ◀──────┘ when 42 is there
//
// What the peer sees of the order in which things happen, and what goes into memory, is
// the same as ever: a stashed request is nothing but a packet that arrives later. The
// stash may forget anything at any time; then it is asked for again. It is shared by the
// queue pairs of a loop and no part of their state.
type stash struct {
	last  uint32 // episode begun last
	out   Burst
	slots [stashSlots]stashed
	span  memory.Span
}

// stashSlots is how many packets a loop keeps. A newer packet takes the place of an older
// one when their places coincide.
const stashSlots = 2048

// stashed is one packet.
type stashed struct {
	Episode uint32 // whose; 0: none
	Size    uint32
	Burst   Burst // without data
	Data    [maxMTU]byte
}

const maxMTU = 4096

func (s *stash) slot(episode, psn uint32) *stashed {
	return &s.slots[(psn+episode*197)%stashSlots]
}

// has reports whether the packet psn of an episode is there.
func (s *stash) has(episode, psn uint32) bool {
	p := s.slot(episode, psn)
	return p.Episode == episode && p.Burst.PSN == psn
}

// put keeps the packets of b.
func (s *stash) put(episode uint32, b *Burst, mtu uint32) {
	var pieces []memory.Piece
	if b.Data != nil {
		pieces = b.Data.Pieces()
	}
	off := 0 // in the first of them
	for i := range b.Packets {
		psn := ib.PSNAdd(b.PSN, i)
		p := s.slot(episode, psn)
		p.Episode, p.Burst = episode, *b
		p.Size = 0
		for len(pieces) > 0 && p.Size < mtu {
			n := copy(p.Data[p.Size:mtu], pieces[0].Mem[off:])
			p.Size += uint32(n)
			if off += n; off == len(pieces[0].Mem) {
				pieces, off = pieces[1:], 0
			}
		}
		c := &p.Burst
		c.PSN, c.Packets, c.Data, c.CE = psn, 1, nil, false
		final := i == b.Packets-1
		c.First, c.Last = b.First && i == 0, b.Last && final
		c.AckReq, c.Solicited = b.AckReq && final, b.Solicited && final
	}
}

// take brings a packet out, as a burst that is valid until the next call; nil if it is not
// there.
func (s *stash) take(episode, psn uint32) *Burst {
	if !s.has(episode, psn) {
		return nil
	}
	p := s.slot(episode, psn)
	p.Episode = 0
	s.out = p.Burst
	s.span.Reset()
	s.span.Add(p.Data[:p.Size])
	s.out.Data = &s.span
	return &s.out
}

// stashSoon keeps b, which is ahead of what is expected, and asks for what is missing.
func (q *QP) stashSoon(now ib.Time, b *Burst, h Host) {
	rs := &q.resp
	psns := b.psns(q.attr.MTU)
	ahead := ib.PSNDist(rs.PSN, b.PSN)
	if rs.Waiting {
		rs.Waiting = !q.comesAgain(now, b.PSN)
	}
	if rs.Waiting || ahead+psns > stashSlots || !b.stashable(q.attr.MTU) {
		q.count.Dropped++
		return
	}
	sc := h.Scratch()
	if sc.stash == nil {
		sc.stash = new(stash)
	}
	if rs.Episode == 0 {
		if sc.stash.last++; sc.stash.last == 0 {
			sc.stash.last = 1
		}
		rs.Episode, rs.Newest = sc.stash.last, rs.PSN
	}
	again := sc.stash.has(rs.Episode, b.PSN)
	sc.stash.put(rs.Episode, b, q.attr.MTU)
	q.count.Stashed += uint64(b.Packets)
	if hole := ib.PSNDist(rs.Newest, b.PSN); hole < ib.PSNHalf {
		from := rs.Newest
		rs.Newest = ib.PSNAdd(b.PSN, psns)
		if hole > 0 {
			q.askFor(now, from, b.PSN, h)
			return
		}
	}
	// What comes again is a probe: the peer does not know what is missing.
	if wait := now - rs.NakAt; wait >= q.patience() || again && wait >= q.patience()/2 {
		q.askAgain(now, sc.stash, h)
	}
}

// comesAgain reports, after an RNR NAK, whether psn belongs to what is sent again because of
// it rather than to what was on its way: the beginning was lost then.
func (q *QP) comesAgain(now ib.Time, psn uint32) bool {
	rs := &q.resp
	forward := ib.PSNDist(rs.Ahead, psn)
	rs.Ahead = psn
	return (forward == 0 || forward >= ib.PSNHalf) && now-rs.NakAt >= max(nakAgain, RNRDelay(q.attr.MinRNRTimer))
}

// stashable reports whether b's data is of the length that its packets say, and at hand.
func (b *Burst) stashable(mtu uint32) bool {
	if b.Kind.base() == 0 {
		return b.Packets == 1 && b.size() == 0
	}
	if b.Data != nil {
		for _, p := range b.Data.Pieces() {
			if p.Mem == nil {
				return false
			}
		}
	}
	return b.Packets <= stashSlots && b.wellFormed(b.size(), mtu)
}

// askFor asks for the packets from one PSN up to another. The first that are missing are
// asked for with a NAK, which acknowledges everything before them.
func (q *QP) askFor(now ib.Time, from, to uint32, h Host) {
	rs := &q.resp
	rs.NakSent, rs.NakAt, rs.NakTo = true, now, to
	q.count.OutOfSequence++
	if from == rs.PSN {
		rs.HoleAt = now
		rs.NakEnd = to
		q.nakSoon(NakSequence, from, h)
	} else if rs.Pending == 0 {
		q.answer(KindAck, from, nakRepair, 0, to, h)
	}
}

// patience is how long what was asked for may take before it is asked for again.
func (q *QP) patience() ib.Time {
	if q.resp.NakTrip == 0 {
		return nakAgain
	}
	return 2 * max(q.resp.NakTrip, nakAgainOwn)
}

// heard notes that what was asked for has come.
func (rs *responder) heard(now ib.Time) {
	if rs.HoleAt == 0 {
		return
	}
	d := min(max(now-rs.HoleAt, 1), slowestTrip)
	rs.HoleAt = 0
	if rs.NakTrip == 0 {
		rs.NakTrip = d
	}
	rs.NakTrip += (d - rs.NakTrip) / 8
}

// askAgain asks for everything that is missing, as far as a few answers name it.
func (q *QP) askAgain(now ib.Time, s *stash, h Host) {
	rs := &q.resp
	to := rs.PSN
	for range asksMost {
		from := to
		for from != rs.Newest && s.has(rs.Episode, from) {
			from = ib.PSNAdd(from, s.slot(rs.Episode, from).Burst.psns(q.attr.MTU))
		}
		// Nothing is missing; or a READ that a peer made up reaches beyond the newest.
		if ib.PSNDist(from, rs.Newest)-1 >= stashSlots {
			return
		}
		for to = from; to != rs.Newest && !s.has(rs.Episode, to); {
			to = ib.PSNAdd(to, 1)
		}
		q.askFor(now, from, to, h)
	}
}

// asksMost bounds what one packet may provoke.
const asksMost = 8

// psns is how many sequence numbers a request takes.
func (b *Burst) psns(mtu uint32) uint32 {
	if b.Kind == KindReadReq {
		return packetsOf(b.Length, mtu)
	}
	return b.Packets
}

// unstall goes on with unstash where it had to stop. It reports whether it got through.
func (q *QP) unstall(now ib.Time, h Host) bool {
	q.resp.Stalled = false
	if q.resp.Episode != 0 {
		q.unstash(now, h)
	}
	return !q.resp.Stalled
}

// unstash carries out what has been waiting for the packet that has just come.
func (q *QP) unstash(now ib.Time, h Host) {
	rs := &q.resp
	s := h.Scratch().stash
	if rs.NakSent {
		return // it has not come
	}
	if s == nil {
		rs.Episode = 0 // another loop's
		return
	}
	for range stashSlots {
		if ib.PSNDist(rs.PSN, rs.Newest)-1 >= ib.PSNHalf-1 || rs.Closing || q.state == ib.StateError {
			rs.Episode = 0 // all there, or all over
			return
		}
		b := s.take(rs.Episode, rs.PSN)
		if b == nil {
			break
		}
		psn := rs.PSN
		if !q.receiveReliable(now, b, h) {
			s.slot(rs.Episode, psn).Episode = rs.Episode // it stays there
			rs.Stalled = true
			return
		}
		if rs.PSN == psn {
			rs.Episode = 0 // it could not be carried out; it will come again
			return
		}
	}
	// Another one is missing. It was asked for when that was seen. If that is long ago, or
	// if what was asked for after it has come, it was lost again.
	rs.NakSent, rs.HoleAt = true, 0
	if ib.PSNDist(rs.NakTo, rs.PSN) < ib.PSNHalf || now-rs.NakAt >= q.patience()/2 {
		q.askAgain(now, s, h)
	}
}
