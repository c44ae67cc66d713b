package peers

import (
	"slices"

	"vrdma.dev/vrdma/internal/net/wire"
)

// ask starts to ask a host whether it is a vrdma host.
func (t *Table) ask(now Time, gid GID, p *peer) {
	p.asking, p.tries = true, 0
	p.nonce, p.asked = t.newNonce(), now
	t.send(now, gid, p)
}

// newNonce returns a random number that is not 0.
func (t *Table) newNonce() uint64 { return t.conf.Random() | 1<<63 }

// send sends one question.
func (t *Table) send(now Time, gid GID, p *peer) {
	t.tid++
	h := wire.Hello(t.out[:])
	h.Init(t.tid, p.nonce)
	t.sign(h, p.local)
	t.count.Asked++
	t.later(p, now+firstWait<<p.tries)
	p.tries++
	t.conf.Env.SendMAD(p.local, gid, h)
}

// sign describes this host, which sends from local.
func (t *Table) sign(h wire.Hello, local GID) {
	h.SetSender(t.conf.Features, t.instance, t.conf.Version)
	if t.conf.Ports != nil {
		h.SetPorts(t.conf.Ports(local))
	}
}

// Arrival says how the packet of a MAD arrived.
type Arrival struct {
	LongID  bool // with an IP identification that no vrdma host uses
	Strange bool // from a source port that the host has not announced
}

// Receive processes a MAD from one address to one of ours, and reports whether it was a hello. It keeps no reference to mad.
func (t *Table) Receive(now Time, from, to GID, mad []byte, a Arrival) bool {
	h := wire.MAD(mad).Hello()
	if h == nil {
		return wire.MAD(mad).IsValid() && wire.MAD(mad).Class() == wire.ClassHello
	}
	switch {
	case h.IsQuestion():
		t.answer(now, from, to, h, a.Strange)
	case h.IsAnswer():
		t.answered(now, from, to, h, a.LongID)
	case h.IsRefusal():
		t.refused(now, from, h)
	default:
		t.count.Ignored++
	}
	return true
}

// answer answers a question. If this host talks with the sender and does not know it, the answer contains a question.
//
// Questions from the announced ports of a vrdma host have a rate limit of their own. Otherwise a flood of forged questions would
// make vrdma hosts that recognised each other foreign to each other.
func (t *Table) answer(now Time, from, to GID, q wire.Hello, strange bool) {
	limit := &t.answers
	if !strange && t.Ports(from) != nil {
		limit = &t.sure
	}
	if !limit.take(now) {
		t.count.Limited++
		return
	}
	h := wire.Hello(t.out[:])
	h.InitAnswer(q)
	t.sign(h, to)
	if p := t.peers[from]; p != nil && (p.known(t.conf.Features) == 0 || p.instance != q.Instance()) {
		if p.nonce == 0 || now-p.asked > nonceLife {
			p.nonce, p.asked = t.newNonce(), now
		}
		h.SetChallenge(p.nonce)
	}
	t.count.Answered++
	t.conf.Env.SendMAD(to, from, h)
}

// expected returns the host that an answer is from; nil if the question was not asked, or not with this nonce.
func (t *Table) expected(now Time, from GID, h wire.Hello) *peer {
	p := t.peers[from]
	if p != nil && p.spent != 0 && p.spent == h.Nonce() {
		return nil // a duplicate: if both sides ask at once, both get two answers
	}
	if p == nil || p.nonce == 0 || p.nonce != h.Nonce() || now-p.asked > nonceLife {
		t.count.Ignored++
		return nil
	}
	return p
}

// answered processes an answer: its sender is a vrdma host. Because an answer cannot be forged, its identification shows whether
// the network changes identifications.
func (t *Table) answered(now Time, from, to GID, h wire.Hello, longID bool) {
	p := t.expected(now, from, h)
	if p == nil {
		return
	}
	if p.heard == 0 {
		if len(t.peers)-t.named.count >= maxAnswered {
			t.count.Ignored++
			t.foreign(now, from, p, p.rounds)
			return
		}
		t.named.remove(p)
	}
	t.count.Recognised++
	before := p.known(t.conf.Features)
	if p.instance != h.Instance() {
		p.doubtedAt = 0
	}
	strict := t.ShortIDs(from)
	news := p.waiting
	p.kind, p.asking, p.doubted, p.waiting = Own, false, false, false
	p.nonce, p.spent, p.rounds, p.heard = 0, p.nonce, 0, now
	p.features, p.instance, p.version = h.Features(), h.Instance(), h.Version()
	ports := h.AppendPorts(nil)
	moved := !slices.Equal(ports, p.ports)
	p.ports = ports
	if longID {
		p.features &^= wire.FeatureShortIDs
	}
	t.later(p, now+refreshEvery)
	if news || moved || p.known(t.conf.Features) != before || t.ShortIDs(from) != strict {
		t.conf.Env.Judged(from)
	}
	if c := h.Challenge(); c != 0 && t.sure.take(now) { // its sender knew the nonce
		a := wire.Hello(t.out[:])
		a.Init(wire.MAD(h).TID(), c)
		a.SetAnswer()
		t.sign(a, to)
		t.count.Answered++
		t.conf.Env.SendMAD(to, from, a)
	}
}

// refused processes a question returned by a host that does not know the class.
func (t *Table) refused(now Time, from GID, h wire.Hello) {
	if p := t.expected(now, from, h); p != nil {
		t.count.Refused++
		const rarely = 7
		t.foreign(now, from, p, rarely)
	}
}

// bucket limits the rate of answers: a burst, and one more every answerEvery.
type bucket struct {
	full Time // when the bucket will be full
}

const (
	answerEvery = second / 2000
	answersMost = 200
)

// take reports whether an answer may be sent now.
func (b *bucket) take(now Time) bool {
	b.full = max(b.full, now) + answerEvery
	if b.full-now > answersMost*answerEvery {
		b.full -= answerEvery
		return false
	}
	return true
}
