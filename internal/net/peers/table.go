package peers

import (
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// GID is an address.
type GID = ib.GID

// Time is the caller's clock.
type Time = ib.Time

// Kind is the classification of a host.
type Kind uint8

const (
	Asking  Kind = iota // not known yet: treated as foreign
	Own                 // a vrdma host
	Foreign             // anything else
)

// String returns the kind in a word.
func (k Kind) String() string { return [...]string{"asking", "vrdma", "foreign"}[k] }

// Env is the environment of a Table.
type Env interface {
	// SendMAD sends a management datagram; it keeps no reference to it.
	SendMAD(from, to GID, mad []byte)
	// Judged reports that Features(gid) may have changed.
	Judged(gid GID)
	// InUse calls f with every address that a queue pair here talks with, and the local address that it uses.
	InUse(f func(local, remote GID))
}

// Config is the configuration of a Table.
type Config struct {
	// Version is the version that other hosts see.
	Version string
	// Features are the features that this host announces, and uses if others announce them.
	Features uint32
	// Ports returns the source ports of this host's packets from an address, if no other program of this machine can send from
	// them. It is nil, or returns nil, if that is not known.
	Ports func(local GID) []uint16
	// Random supplies nonces.
	Random func() uint64
	Env    Env
}

// Times. A host asked for the first time has answered or is foreign after 1.3 s.
const (
	second = Time(1e9)
	// firstWait is how long an answer may take before the question is repeated; it doubles each time.
	firstWait = second / 100
	// firstTries is how often an unknown host is asked; knownTries is the number for a host that has answered before,
	// which takes ten seconds.
	firstTries, knownTries = 7, 10
	// nonceLife is how long an answer is accepted.
	nonceLife = 15 * second
	// freshFor is the time after an answer in which a new connection asks no question.
	freshFor = 5 * second
	// refreshEvery is the interval at which a vrdma host in use is asked again.
	refreshEvery = 30 * second
	// againFirst and againMost limit the growing interval at which foreign hosts are asked again.
	againFirst, againMost = 2 * second, 64 * second
	// doubtEvery is the minimum interval between two doubts about a host: packets that cause doubt can be forged, and
	// each doubt disables the features of its connections for a moment.
	doubtEvery = 10 * second
	// strangeEvery is the minimum interval between two questions because of packets from a port that a host has not announced.
	strangeEvery = second
	// tick is the granularity of times, so that many hosts share one call of Expire.
	tick = firstWait / 2
)

// maxNamed and maxAnswered limit the table. A program can name any number of addresses, so hosts that were only named and hosts
// that have answered do not compete. A new name displaces the one named least recently. Nothing displaces a host that has
// answered; it is forgotten when no queue pair uses it. While the table is full, further hosts are not recognised.
const maxNamed, maxAnswered = 4096, 4096

// peer is a host that queue pairs here talk with, or did.
type peer struct {
	gid       GID
	local     GID // the source address for questions
	older     *peer
	newer     *peer // in the list of hosts that were only named
	kind      Kind
	asking    bool // a question is outstanding; tries counts its repetitions
	doubted   bool // was a vrdma host, and seems to have sent what no vrdma host sends
	waiting   bool // Meet returned before the answer
	tries     uint8
	rounds    uint8  // rounds without an answer
	nonce     uint64 // nonce of the question, 0: none
	spent     uint64 // nonce of the last accepted answer
	asked     Time   // when the nonce was created
	heard     Time   // time of the last answer
	doubtedAt Time
	due       Time // when to ask, or to give up
	features  uint32
	instance  uint64
	version   string
	ports     []uint16 // the source ports that it has announced; nil: none
}

// Table has the state of other hosts.
type Table struct {
	conf     Config
	instance uint64
	tid      uint64
	peers    map[GID]*peer
	named    list // hosts that have never answered
	due      Time // earliest due time
	answers  bucket
	sure     bucket // of answers to hosts that have announced their ports
	count    Counters
	used     map[GID]GID // addresses in use, with the local address that uses them
	out      [wire.MADSize]byte
}

// Counters count messages of the table.
type Counters struct {
	Asked      uint64 `cbor:"1,keyasint,omitempty"` // questions sent
	Answered   uint64 `cbor:"2,keyasint,omitempty"` // questions of others answered
	Limited    uint64 `cbor:"3,keyasint,omitempty"` // questions not answered because of the rate limit
	Recognised uint64 `cbor:"4,keyasint,omitempty"` // accepted answers
	Refused    uint64 `cbor:"5,keyasint,omitempty"` // questions returned by hosts that do not know the class
	Ignored    uint64 `cbor:"6,keyasint,omitempty"` // unexpected answers: unknown address, wrong or old nonce
	Doubts     uint64 `cbor:"7,keyasint,omitempty"` // vrdma hosts that seem to have sent what no vrdma host sends
}

// Add adds the counters of another table.
func (c *Counters) Add(o Counters) {
	c.Asked += o.Asked
	c.Answered += o.Answered
	c.Limited += o.Limited
	c.Recognised += o.Recognised
	c.Refused += o.Refused
	c.Ignored += o.Ignored
	c.Doubts += o.Doubts
}

// New returns an empty table.
func New(c Config) *Table {
	t := &Table{conf: c, peers: make(map[GID]*peer), used: make(map[GID]GID)}
	t.instance, t.tid = c.Random(), c.Random()
	return t
}

// Counters returns the current counters.
func (t *Table) Counters() Counters { return t.count }

// Meet records that a queue pair at local is going to talk with remote, and returns the features to use now. Env.Judged reports
// later changes.
func (t *Table) Meet(now Time, local, remote GID) uint32 {
	p := t.peers[remote]
	if p == nil {
		if t.named.count >= maxNamed {
			t.drop(t.named.oldest) // it was treated as foreign, and still is
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

// Again is Meet for a queue pair that already talks with remote: it keeps the known features.
func (t *Table) Again(now Time, local, remote GID) uint32 {
	p := t.peers[remote]
	if p == nil {
		return t.Meet(now, local, remote)
	}
	p.local = local
	if p.waiting {
		return 0 // the same as other queue pairs got
	}
	return p.known(t.conf.Features)
}

// Knows reports whether a queue pair here talks with a host, or did recently.
func (t *Table) Knows(gid GID) bool { return t.peers[gid] != nil }

// Forget removes addresses that may belong to other hosts now.
func (t *Table) Forget(moved func(GID) bool) {
	for gid, p := range t.peers {
		if moved(gid) {
			t.drop(p)
		}
	}
}

// Features returns the features to use towards a host: none unless it is a vrdma host.
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

// ShortIDs reports whether packets from a host must have short identifications. Doubt does not change that: only an answer, or
// no answer, to a question changes it.
func (t *Table) ShortIDs(gid GID) bool {
	p := t.peers[gid]
	return p != nil && p.kind == Own && p.features&t.conf.Features&wire.FeatureShortIDs != 0
}

// Ports returns the source ports that a vrdma host has announced; nil: it has announced none, or it is not a vrdma host. Like
// ShortIDs, only an answer, or no answer, to a question changes them.
func (t *Table) Ports(gid GID) []uint16 {
	if p := t.peers[gid]; p != nil && p.kind == Own {
		return p.ports
	}
	return nil
}

// Strange records a packet from a port that a vrdma host has not announced: a user of that host has forged it, or the daemon
// there has been started again with other ports. The host is asked for its ports; nothing else changes.
func (t *Table) Strange(now Time, gid GID) {
	if p := t.peers[gid]; p != nil && p.kind == Own && !p.asking && now-p.asked >= strangeEvery {
		t.ask(now, gid, p)
	}
}

// Doubt records a packet from a vrdma host that no vrdma host would send: another system may have its address now, or forges it.
// Until the host answers again, it is treated as foreign.
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

// Deadline returns the time at which the caller must call Expire; 0 means never.
func (t *Table) Deadline() Time { return t.due }

// Expire asks the hosts that are due, and gives up on those that did not answer.
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

// recall asks displaced hosts that queue pairs talk with, as far as the table has space. They may be vrdma hosts, and nothing else
// would ask them again.
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

// add adds a host that was only named.
func (t *Table) add(local, remote GID) *peer {
	p := &peer{gid: remote, local: local}
	t.peers[remote] = p
	t.named.add(p)
	return p
}

// drop removes a host.
func (t *Table) drop(p *peer) {
	delete(t.peers, p.gid)
	if p.heard == 0 {
		t.named.remove(p)
	}
	if p.kind == Own {
		t.conf.Env.Judged(p.gid)
	}
}

// expire handles one host that is due.
func (t *Table) expire(now Time, gid GID, p *peer) {
	most := uint8(1) // a host that has never answered is asked once per round
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
		p.local = local // the previous local address may be gone
		t.ask(now, gid, p)
		return
	}
	if p.tries < most {
		t.send(now, gid, p)
		return
	}
	t.foreign(now, gid, p, p.rounds)
}

// foreign gives up on a host. The interval until the next question grows with the number of rounds without an answer.
func (t *Table) foreign(now Time, gid GID, p *peer, rounds uint8) {
	before := p.kind
	p.kind, p.asking, p.doubted, p.waiting, p.nonce = Foreign, false, false, false, 0
	p.features, p.version, p.ports = 0, "", nil
	p.rounds = min(rounds+1, 8)
	t.later(p, now+min(againFirst<<(p.rounds-1), againMost))
	if before == Own {
		t.conf.Env.Judged(gid) // other kinds were treated as foreign before
	}
}

// later sets the time to handle p again.
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
	Network  string // its virtual network; the engine sets it
	Kind     Kind
	Version  string // of a vrdma host
	Features uint32 // in use
	Ports    int    // number of source ports that it has announced; 0: its packets may come from any port
	TooLong  int    // size of the shortest packet that was too long for the path; the engine sets it
}

// List returns the status of every known host.
func (t *Table) List() []Status {
	out := make([]Status, 0, len(t.peers))
	for gid, p := range t.peers {
		s := Status{GID: gid, Kind: p.kind, Version: p.version, Features: p.known(t.conf.Features), Ports: len(t.Ports(gid))}
		if p.doubted {
			s.Kind = Asking
		}
		out = append(out, s)
	}
	return out
}
