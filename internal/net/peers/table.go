package peers

import (
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// GID is an address.
type GID = ib.GID

// Time is the caller's clock.
type Time = ib.Time

// Kind is what a host is held to be.
type Kind uint8

const (
	Asking  Kind = iota // not known yet: treated as foreign
	Own                 // a vrdma host
	Foreign             // anything else
)

// String returns the kind in a word.
func (k Kind) String() string { return [...]string{"asking", "vrdma", "foreign"}[k] }

// Env is the world as a Table sees it.
type Env interface {
	// SendMAD sends a management datagram; it keeps no reference to it.
	SendMAD(from, to GID, mad []byte)
	// Judged says that Features(gid) may have changed.
	Judged(gid GID)
	// InUse calls f with every address that somebody talks with, and an address of ours
	// that somebody does it from.
	InUse(f func(local, remote GID))
}

// Config is what a Table is born with.
type Config struct {
	// Version is what others are told of us.
	Version string
	// Features are what we announce and what we use if others announce it.
	Features uint32
	// Random supplies nonces.
	Random func() uint64
	Env    Env
}

// Times. A host that is asked for the first time has answered or is foreign after 1.3 s.
const (
	second = Time(1e9)
	// firstWait is how long an answer may take before the question is asked again,
	// twice as long each time.
	firstWait = second / 100
	// firstTries is how often a host is asked that is not known; knownTries one that
	// has answered before, which takes ten seconds.
	firstTries, knownTries = 7, 10
	// nonceLife is how long an answer is waited for.
	nonceLife = 15 * second
	// freshFor is how long after an answer a new connection need not ask.
	freshFor = 5 * second
	// refreshEvery is how often a host that is used is asked whether it is still ours.
	refreshEvery = 30 * second
	// againFirst and againMost: foreign hosts are asked again, ever more rarely.
	againFirst, againMost = 2 * second, 64 * second
	// doubtEvery is how often a host can be doubted: packets that give rise to doubt can be
	// forged, and each doubt costs the connections there their features for a moment.
	doubtEvery = 10 * second
	// tick is what times are rounded to, so that many hosts share a look.
	tick = firstWait / 2
)

// Bounds of the table. Anybody who can make a queue pair can name any number of addresses,
// so those that were only named and those that have answered do not compete: a new name
// displaces the one that was named least lately, and nothing displaces a host that has
// answered. It is forgotten when nobody uses it; meanwhile further ones are not recognised.
const maxNamed, maxAnswered = 4096, 4096

// peer is a host that we talk with, or did.
type peer struct {
	gid       GID
	local     GID // the address to ask from
	older     *peer
	newer     *peer // in the list of those that were only named
	kind      Kind
	asking    bool // a question is on its way, the tries-th
	doubted   bool // was ours, and has done what none of ours does
	waiting   bool // somebody was told "not yet"
	tries     uint8
	rounds    uint8  // without an answer
	nonce     uint64 // of the question, 0: none
	spent     uint64 // the one that was answered last
	asked     Time   // when the nonce was made
	heard     Time   // when it last answered
	doubtedAt Time
	due       Time // when to ask, or to give up
	features  uint32
	instance  uint64
	version   string
}

// Table is what is known of other hosts.
type Table struct {
	conf     Config
	instance uint64
	tid      uint64
	peers    map[GID]*peer
	named    list // those that have never answered
	due      Time // of the earliest
	answers  bucket
	count    Counters
	used     map[GID]GID // addresses in use, and ours that they are used from
	out      [wire.MADSize]byte
}

// Counters count what the table has seen and said.
type Counters struct {
	Asked      uint64 // questions sent
	Answered   uint64 // questions of others answered
	Limited    uint64 // not answered: too many
	Recognised uint64 // answers that counted
	Refused    uint64 // questions that came back from somebody who does not know them
	Ignored    uint64 // answers that nobody had asked for: unknown address, wrong or old nonce
	Doubts     uint64 // vrdma hosts that sent what none does
}

// Add adds what another table has counted.
func (c *Counters) Add(o Counters) {
	c.Asked += o.Asked
	c.Answered += o.Answered
	c.Limited += o.Limited
	c.Recognised += o.Recognised
	c.Refused += o.Refused
	c.Ignored += o.Ignored
	c.Doubts += o.Doubts
}

// New makes an empty table.
func New(c Config) *Table {
	t := &Table{conf: c, peers: make(map[GID]*peer), used: make(map[GID]GID)}
	t.instance, t.tid = c.Random(), c.Random()
	return t
}

// Counters returns what has been counted so far.
func (t *Table) Counters() Counters { return t.count }

// Meet says that a queue pair at local is going to talk with remote, and returns the
// features to use at once. If more becomes known Env.Judged tells.
func (t *Table) Meet(now Time, local, remote GID) uint32 {
	p := t.peers[remote]
	if p == nil {
		if t.named.count >= maxNamed {
			t.drop(t.named.oldest) // it was foreign to everybody, and is
		}
		p = t.add(local, remote)
		t.ask(now, remote, p)
	} else if p.local = local; p.heard == 0 {
		t.named.remove(p)
		t.named.add(p)
	}
	if f := p.known(t.conf.Features); f == 0 || now-p.heard <= freshFor {
		return f
	}
	p.waiting = true
	if !p.asking {
		t.ask(now, remote, p)
	}
	return 0
}

// Again is Meet for a queue pair that talks with remote already: it goes on with what is known.
func (t *Table) Again(now Time, local, remote GID) uint32 {
	p := t.peers[remote]
	if p == nil {
		return t.Meet(now, local, remote)
	}
	p.local = local
	if p.waiting {
		return 0 // as everybody was told
	}
	return p.known(t.conf.Features)
}

// Knows reports whether somebody of ours talks with a host, or did lately.
func (t *Table) Knows(gid GID) bool { return t.peers[gid] != nil }

// Forget forgets what is known of addresses that somebody else may have now.
func (t *Table) Forget(moved func(GID) bool) {
	for gid, p := range t.peers {
		if moved(gid) {
			t.drop(p)
		}
	}
}

// Features are those to use towards a host: none unless it is ours.
func (t *Table) Features(gid GID) uint32 {
	if p := t.peers[gid]; p != nil {
		return p.known(t.conf.Features)
	}
	return 0
}

// known returns the features that both sides have.
func (p *peer) known(ours uint32) uint32 {
	if p.kind != Own || p.doubted {
		return 0
	}
	return p.features & ours
}

// ShortIDs reports whether packets from a host have to have short identifications. That does
// not change with doubt: only an answer to a question of ours, or none, can change it.
func (t *Table) ShortIDs(gid GID) bool {
	p := t.peers[gid]
	return p != nil && p.kind == Own && p.features&t.conf.Features&wire.FeatureShortIDs != 0
}

// Doubt says that a packet came from a host of ours that none of ours would send: somebody
// else may have its address now, or pretends. Until it answers again it is spoken to as a
// foreign one.
func (t *Table) Doubt(now Time, gid GID) {
	p := t.peers[gid]
	if p == nil || p.kind != Own || p.doubted || p.doubtedAt != 0 && now-p.doubtedAt < doubtEvery {
		return
	}
	t.count.Doubts++
	p.doubted, p.doubtedAt = true, now
	if !p.asking {
		t.ask(now, gid, p)
	}
	t.conf.Env.Judged(gid)
}

// Deadline returns when Expire has to be called; 0 is never.
func (t *Table) Deadline() Time { return t.due }

// Expire asks whoever is to be asked, and gives up on those who were silent.
func (t *Table) Expire(now Time) {
	next, looked := Time(0), false
	for gid, p := range t.peers {
		if p.due <= now {
			if !p.asking && !looked {
				looked = true
				clear(t.used)
				t.conf.Env.InUse(func(local, remote GID) { t.used[remote] = local })
			}
			t.expire(now, gid, p)
		}
		if t.peers[gid] == p && (next == 0 || p.due < next) {
			next = p.due
		}
	}
	t.due = next
	if looked {
		t.recall(now)
	}
}

// recall asks the hosts that somebody talks with and that were displaced, as far as there is
// room: they may be ours, and nobody else would ever find out.
func (t *Table) recall(now Time) {
	for remote, local := range t.used {
		if t.named.count >= maxNamed {
			return
		}
		if t.peers[remote] == nil {
			t.ask(now, remote, t.add(local, remote))
		}
	}
}

// add makes a host known by name.
func (t *Table) add(local, remote GID) *peer {
	p := &peer{gid: remote, local: local}
	t.peers[remote] = p
	t.named.add(p)
	return p
}

// drop forgets a host.
func (t *Table) drop(p *peer) {
	delete(t.peers, p.gid)
	if p.heard == 0 {
		t.named.remove(p)
	}
	if p.kind == Own {
		t.conf.Env.Judged(p.gid)
	}
}

// expire sees to one host whose time has come.
func (t *Table) expire(now Time, gid GID, p *peer) {
	most := uint8(1) // for one that has never answered, the next round will do
	switch {
	case p.kind == Own && !p.doubted:
		most = knownTries
	case p.rounds == 0:
		most = firstTries
	}
	if !p.asking {
		local, ok := t.used[gid]
		if !ok {
			t.drop(p)
			return
		}
		p.local = local // the former one may be gone
		t.ask(now, gid, p)
		return
	}
	if p.tries < most {
		t.send(now, gid, p)
		return
	}
	t.foreign(now, gid, p, p.rounds)
}

// foreign gives up on a host; it is asked again, the more rarely the more rounds of
// questions were in vain.
func (t *Table) foreign(now Time, gid GID, p *peer, rounds uint8) {
	before := p.kind
	p.kind, p.asking, p.doubted, p.waiting, p.nonce = Foreign, false, false, false, 0
	p.features, p.version = 0, ""
	p.rounds = min(rounds+1, 8)
	t.later(p, now+min(againFirst<<(p.rounds-1), againMost))
	if before == Own {
		t.conf.Env.Judged(gid) // the others were foreign before
	}
}

// later sets when to look at p again.
func (t *Table) later(p *peer, at Time) {
	p.due = (at + tick - 1) / tick * tick
	if t.due == 0 || p.due < t.due {
		t.due = p.due
	}
}

// list holds hosts in the order in which they were last named.
type list struct {
	oldest, newest *peer
	count          int
}

// add makes p the newest.
func (l *list) add(p *peer) {
	p.older, p.newer = l.newest, nil
	if l.newest != nil {
		l.newest.newer = p
	} else {
		l.oldest = p
	}
	l.newest = p
	l.count++
}

func (l *list) remove(p *peer) {
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		l.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		l.newest = p.older
	}
	p.older, p.newer = nil, nil
	l.count--
}

// A Status describes a host.
type Status struct {
	GID      GID
	Network  string // virtual network that it is an address of; the engine knows
	Kind     Kind
	Version  string // of a vrdma host
	Features uint32 // in use
	TooLong  int    // bytes of the shortest packet that was too long for the way there; the engine knows
}

// List describes every host that is known.
func (t *Table) List() []Status {
	out := make([]Status, 0, len(t.peers))
	for gid, p := range t.peers {
		s := Status{GID: gid, Kind: p.kind, Version: p.version, Features: p.known(t.conf.Features)}
		if p.doubted {
			s.Kind = Asking
		}
		out = append(out, s)
	}
	return out
}
