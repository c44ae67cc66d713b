package transport

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
)

// A stash is the responder's half of selective repeat between vrdma hosts. It stores requests that arrive
// ahead of a missing one, and the responder requests only the missing packets:
//
//	arrived  … 40 41 __ 43 44 __ 46        NAK 42, up to 43    repair 45, up to 46
//	                 └─ expected ▲                                        │
//	                             └── stashed; carried out in order ◀──────┘ when 42 is there
//
// The peer and the memory see the same order of operations as without a stash: a stashed request equals a
// packet that arrives later. The stash may discard any packet at any time; the responder then requests it
// again. All queue pairs of a loop share one stash, and it is not part of their state. A queue pair that another loop
// gets forgets its episode: there the number is one of another queue pair.
type stash struct {
	last  uint32 // number of the newest episode
	out   Burst
	slots [stashSlots]stashed
	span  memory.Span
}

// stashSlots is the number of packets that a loop stores. A newer packet replaces an older one in the same
// slot.
const stashSlots = 2048

// stashed is one packet.
type stashed struct {
	Episode uint32 // the episode that the packet belongs to; 0: none
	Size    uint32
	Burst   Burst // without data
	Data    [maxMTU]byte
}

const maxMTU = 4096

func (s *stash) slot(episode, psn uint32) *stashed {
	return &s.slots[(psn+episode*197)%stashSlots]
}

// has reports whether packet psn of an episode is stored.
func (s *stash) has(episode, psn uint32) bool {
	p := s.slot(episode, psn)
	return p.Episode == episode && p.Burst.PSN == psn
}

// put stores the packets of b.
func (s *stash) put(episode uint32, b *Burst, mtu uint32) {
	var pieces []memory.Piece
	if b.Data != nil {
		pieces = b.Data.Pieces()
	}
	off := 0 // in the first piece
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

// take removes a packet and returns it as a burst that is valid until the next call; nil if it is not stored.
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

// LeaveLoop prepares q for a move to another loop, with another Scratch: packets in the stash count as lost.
func LeaveLoop(q *QP) { q.resp.Episode = 0 }

// stashSoon stores b, which is ahead of the expected packet, and requests the missing packets.
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
	// A packet that arrives again is a probe: the peer does not know what is missing.
	if wait := c.now - rs.Nak.At; wait >= rs.Nak.patience() || again && wait >= rs.Nak.patience()/2 {
		rs.askAgain(c, sc.stash)
	}
}

// comesAgain reports, after an RNR NAK with the given delay, whether psn is part of the retransmission rather
// than a packet that was in flight. If so, the beginning of the retransmission was lost.
func (k *naks) comesAgain(now ib.Time, psn uint32, delay ib.Time) bool {
	forward := ib.PSNDist(k.Ahead, psn)
	k.Ahead = psn
	return (forward == 0 || forward >= ib.PSNHalf) && now-k.At >= max(nakAgain, delay)
}

// stashable reports whether b's data has the length that its packets imply, and is available.
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

// askFor requests the packets from one PSN up to another. For the first missing range it uses a NAK, which
// acknowledges everything before it.
func (rs *responder) askFor(c *respCall, from, to uint32) {
	rs.Nak.Sent, rs.Nak.At, rs.Nak.To = true, c.now, to
	c.Count.OutOfSequence++
	if from == rs.PSN {
		rs.Nak.HoleAt = c.now
		rs.Delayed.NakEnd = to
		rs.nakSoon(c, NakSequence, from)
	} else if rs.Res.Pending == 0 {
		rs.answer(c, KindAck, from, nakRepair, 0, to)
	}
}

// patience returns how long a requested packet may take before it is requested again.
func (k *naks) patience() ib.Time {
	if k.Trip == 0 {
		return nakAgain
	}
	return 2 * max(k.Trip, nakAgainOwn)
}

// heard records that the requested packet has arrived.
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

// askAgain requests everything that is missing, up to asksMost ranges.
func (rs *responder) askAgain(c *respCall, s *stash) {
	to := rs.PSN
	for range asksMost {
		from := to
		for from != rs.Newest && s.has(rs.Episode, from) {
			from = ib.PSNAdd(from, s.slot(rs.Episode, from).Burst.psns(c.Attr.MTU))
		}
		// Nothing is missing, or a forged READ reaches beyond the newest packet.
		if ib.PSNDist(from, rs.Newest)-1 >= stashSlots {
			return
		}
		for to = from; to != rs.Newest && !s.has(rs.Episode, to); {
			to = ib.PSNAdd(to, 1)
		}
		rs.askFor(c, from, to)
	}
}

// asksMost limits the number of NAKs that one packet may cause.
const asksMost = 8

// unstall continues unstash where it had to stop. It reports whether it finished.
func (rs *responder) unstall(c *respCall) bool {
	rs.Stalled = false
	if rs.Episode != 0 {
		rs.unstash(c)
	}
	return !rs.Stalled
}

// unstash executes the stored requests that waited for the packet that has just arrived.
func (rs *responder) unstash(c *respCall) {
	s := c.sc.stash
	if rs.Nak.Sent {
		return // the missing packet has not arrived
	}
	if s == nil {
		rs.Episode = 0 // the episode belongs to another loop's stash
		return
	}
	for range stashSlots {
		if ib.PSNDist(rs.PSN, rs.Newest)-1 >= ib.PSNHalf-1 || rs.Closing || c.State == ib.StateError {
			rs.Episode = 0 // everything is executed, or the queue pair failed
			return
		}
		b := s.take(rs.Episode, rs.PSN)
		if b == nil {
			break
		}
		psn := rs.PSN
		if !rs.takeRequest(c, b) {
			s.slot(rs.Episode, psn).Episode = rs.Episode // keep the packet
			rs.Stalled = true
			return
		}
		if rs.PSN == psn {
			rs.Episode = 0 // it could not be executed; the requester will send it again
			return
		}
	}
	// Another packet is missing. It was requested when the gap was detected. If that was long ago, or if a
	// later requested range has arrived, it was lost again.
	rs.Nak.Sent, rs.Nak.HoleAt = true, 0
	if ib.PSNDist(rs.Nak.To, rs.PSN) < ib.PSNHalf || c.now-rs.Nak.At >= rs.Nak.patience()/2 {
		rs.askAgain(c, s)
	}
}
