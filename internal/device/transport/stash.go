package transport

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
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
func (rs *responder) stashSoon(c *respCall, b *Burst) {
	psns := b.psns(c.Attr.MTU)
	ahead := ib.PSNDist(rs.PSN, b.PSN)
	if rs.Nak.Waiting {
		rs.Nak.Waiting = !rs.Nak.comesAgain(c.now, b.PSN, RNRDelay(c.Attr.MinRNRTimer))
	}
	if rs.Nak.Waiting || ahead+psns > stashSlots || !b.stashable(c.Attr.MTU) {
		c.Count.Dropped++
		return
	}
	sc := c.sc
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
	sc.stash.put(rs.Episode, b, c.Attr.MTU)
	c.Count.Stashed += uint64(b.Packets)
	if hole := ib.PSNDist(rs.Newest, b.PSN); hole < ib.PSNHalf {
		from := rs.Newest
		rs.Newest = ib.PSNAdd(b.PSN, psns)
		if hole > 0 {
			rs.askFor(c, from, b.PSN)
			return
		}
	}
	// What comes again is a probe: the peer does not know what is missing.
	if wait := c.now - rs.Nak.At; wait >= rs.Nak.patience() || again && wait >= rs.Nak.patience()/2 {
		rs.askAgain(c, sc.stash)
	}
}

// comesAgain reports, after an RNR NAK whose timer is delay, whether psn belongs to what is
// sent again because of it rather than to what was on its way: the beginning was lost then.
func (k *naks) comesAgain(now ib.Time, psn uint32, delay ib.Time) bool {
	forward := ib.PSNDist(k.Ahead, psn)
	k.Ahead = psn
	return (forward == 0 || forward >= ib.PSNHalf) && now-k.At >= max(nakAgain, delay)
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
func (rs *responder) askFor(c *respCall, from, to uint32) {
	rs.Nak.Sent, rs.Nak.At, rs.Nak.To = true, c.now, to
	c.Count.OutOfSequence++
	if from == rs.PSN {
		rs.Nak.HoleAt = c.now
		rs.Owed.NakEnd = to
		rs.nakSoon(c, NakSequence, from)
	} else if rs.Res.Pending == 0 {
		rs.answer(c, KindAck, from, nakRepair, 0, to)
	}
}

// patience is how long what was asked for may take before it is asked for again.
func (k *naks) patience() ib.Time {
	if k.Trip == 0 {
		return nakAgain
	}
	return 2 * max(k.Trip, nakAgainOwn)
}

// heard notes that what was asked for has come.
func (k *naks) heard(now ib.Time) {
	if k.HoleAt == 0 {
		return
	}
	d := min(max(now-k.HoleAt, 1), slowestTrip)
	k.HoleAt = 0
	if k.Trip == 0 {
		k.Trip = d
	}
	k.Trip += (d - k.Trip) / 8
}

// askAgain asks for everything that is missing, as far as a few answers name it.
func (rs *responder) askAgain(c *respCall, s *stash) {
	to := rs.PSN
	for range asksMost {
		from := to
		for from != rs.Newest && s.has(rs.Episode, from) {
			from = ib.PSNAdd(from, s.slot(rs.Episode, from).Burst.psns(c.Attr.MTU))
		}
		// Nothing is missing; or a READ that a peer made up reaches beyond the newest.
		if ib.PSNDist(from, rs.Newest)-1 >= stashSlots {
			return
		}
		for to = from; to != rs.Newest && !s.has(rs.Episode, to); {
			to = ib.PSNAdd(to, 1)
		}
		rs.askFor(c, from, to)
	}
}

// asksMost bounds what one packet may provoke.
const asksMost = 8

// unstall goes on with unstash where it had to stop. It reports whether it got through.
func (rs *responder) unstall(c *respCall) bool {
	rs.Stalled = false
	if rs.Episode != 0 {
		rs.unstash(c)
	}
	return !rs.Stalled
}

// unstash carries out what has been waiting for the packet that has just come.
func (rs *responder) unstash(c *respCall) {
	s := c.sc.stash
	if rs.Nak.Sent {
		return // it has not come
	}
	if s == nil {
		rs.Episode = 0 // another loop's
		return
	}
	for range stashSlots {
		if ib.PSNDist(rs.PSN, rs.Newest)-1 >= ib.PSNHalf-1 || rs.Closing || c.State == ib.StateError {
			rs.Episode = 0 // all there, or all over
			return
		}
		b := s.take(rs.Episode, rs.PSN)
		if b == nil {
			break
		}
		psn := rs.PSN
		if !rs.takeRequest(c, b) {
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
	rs.Nak.Sent, rs.Nak.HoleAt = true, 0
	if ib.PSNDist(rs.Nak.To, rs.PSN) < ib.PSNHalf || c.now-rs.Nak.At >= rs.Nak.patience()/2 {
		rs.askAgain(c, s)
	}
}
