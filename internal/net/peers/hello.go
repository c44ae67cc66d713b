package peers

import "vrdma.dev/vrdma/internal/net/wire"

// ask begins to ask a host who it is.
func (t *Table) ask(now Time, gid GID, p *peer) {
	p.asking, p.tries = true, 0
	p.nonce, p.asked = t.newNonce(), now
	t.send(now, gid, p)
}

// newNonce makes up a number that is not 0.
func (t *Table) newNonce() uint64 { return t.conf.Random() | 1<<63 }

// send asks once.
func (t *Table) send(now Time, gid GID, p *peer) {
	t.tid++
	h := wire.Hello(t.out[:])
	h.Init(t.tid, p.nonce)
	t.sign(h)
	t.count.Asked++
	t.later(p, now+firstWait<<p.tries)
	p.tries++
	t.conf.Env.SendMAD(p.local, gid, h)
}

func (t *Table) sign(h wire.Hello) { h.SetSender(t.conf.Features, t.instance, t.conf.Version) }

// Receive takes a MAD that came from one address to one of ours, and reports whether it was
// a hello. longID says that its packet had an IP identification that no vrdma host sends. It
// keeps no reference to mad.
func (t *Table) Receive(now Time, from, to GID, mad []byte, longID bool) bool {
	h := wire.MAD(mad).Hello()
	if h == nil {
		return wire.MAD(mad).IsValid() && wire.MAD(mad).Class() == wire.ClassHello
	}
	switch {
	case h.IsQuestion():
		t.answer(now, from, to, h)
	case h.IsAnswer():
		t.answered(now, from, to, h, longID)
	case h.IsRefusal():
		t.refused(now, from, h)
	default:
		t.count.Ignored++
	}
	return true
}

// answer tells whoever asks who we are. If we have a use for who that is, and do not know
// or no longer, the answer is a question too.
func (t *Table) answer(now Time, from, to GID, q wire.Hello) {
	if !t.answers.take(now) {
		t.count.Limited++
		return
	}
	h := wire.Hello(t.out[:])
	h.InitAnswer(q)
	t.sign(h)
	if p := t.peers[from]; p != nil && (p.known(t.conf.Features) == 0 || p.instance != q.Instance()) {
		if p.nonce == 0 || now-p.asked > nonceLife {
			p.nonce, p.asked = t.newNonce(), now
		}
		h.SetChallenge(p.nonce)
	}
	t.count.Answered++
	t.conf.Env.SendMAD(to, from, h)
}

// expected returns the host that an answer is from, nil if it was not asked, or not this.
func (t *Table) expected(now Time, from GID, h wire.Hello) *peer {
	p := t.peers[from]
	if p != nil && p.spent != 0 && p.spent == h.Nonce() {
		return nil // again: where both ask at once, both are answered twice
	}
	if p == nil || p.nonce == 0 || p.nonce != h.Nonce() || now-p.asked > nonceLife {
		t.count.Ignored++
		return nil
	}
	return p
}

// answered takes an answer: who sent it is one of ours. If something on the way changes
// identifications, the answer shows it: it is the one packet that nobody can forge.
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
	if longID {
		p.features &^= wire.FeatureShortIDs
	}
	t.later(p, now+refreshEvery)
	if news || p.known(t.conf.Features) != before || t.ShortIDs(from) != strict {
		t.conf.Env.Judged(from)
	}
	if c := h.Challenge(); c != 0 && t.answers.take(now) {
		a := wire.Hello(t.out[:])
		a.Init(wire.MAD(h).TID(), c)
		a.SetAnswer()
		t.sign(a)
		t.count.Answered++
		t.conf.Env.SendMAD(to, from, a)
	}
}

// refused takes a question back from a host that does not know what it means.
func (t *Table) refused(now Time, from GID, h wire.Hello) {
	if p := t.expected(now, from, h); p != nil {
		t.count.Refused++
		const rarely = 7
		t.foreign(now, from, p, rarely)
	}
}

// bucket bounds how many answers are given: so many at once, and one more every so often.
type bucket struct {
	full Time // when it will be
}

const (
	answerEvery = second / 2000
	answersMost = 200
)

// take reports whether one may be given now.
func (b *bucket) take(now Time) bool {
	b.full = max(b.full, now) + answerEvery
	if b.full-now > answersMost*answerEvery {
		b.full -= answerEvery
		return false
	}
	return true
}
