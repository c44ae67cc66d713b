package engine

import (
	"net/netip"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// Several loops and other hosts. In the hosts' own network each loop sends and receives for its own queue pairs: it has a
// shard of the port's sockets, and an outbox, ACKs and bytes in flight of its own.
//
//	                        ┌─ shard 0 ──▶ first loop: connection manager, datagrams, its queue pairs
//	packet ── bucket ── table ─ shard 1 ──▶ data loop: its queue pairs
//	                        └─ shard 2 ──▶ data loop: its queue pairs
//
// A queue pair's number names one of 64 buckets, and a table gives each bucket to a loop. The kernel steers by the table
// (roce/shards.go). A session gets a bucket of its loop when it opens the device, for all its queue pairs. When the session
// moves, the table follows: a bucket belongs to the loop that has most of its queue pairs that reach other hosts. Packets for
// the rest arrive at the wrong loop, which hands them over (crossing.go).
//
// All else is as with one loop, and the first loop's: the tables of other hosts (recognition.go), groups, virtual networks and
// network namespaces. What a shard notices about other hosts it reports to the first loop.
type steering struct {
	on    bool // every data loop has a shard
	table roce.SteeringTable
	users [roce.Buckets]int // sessions that have got the bucket
	dirty bool              // the table may have to change
	again bool              // a timer is set to look again
	at    ib.Time           // when the table was computed last; 0: never
}

// steerEvery is the shortest time between two computations of the table: each looks at all queue pairs.
const steerEvery = 50 * time.Millisecond

// home is the loop of a bucket that no queue pair needs elsewhere. Buckets that share a source port belong to one loop, so that
// other hosts do not send trains of packets for several loops.
func home(bucket, loops int) uint8 {
	if loops <= roce.SourceClasses {
		bucket %= roce.SourceClasses
	}
	return uint8(bucket % loops)
}

// enter chooses the bucket of a new session: the one with the fewest sessions among those of its loop. The numbers of its queue
// pairs name it. Without steering they name only the source port from which other hosts send: packets for all queue pairs of
// a program then leave, and arrive, in one call.
func (s *steering) enter(c *client) {
	best, loop := 0, c.e.number
	worse := func(a, b int) bool { // whether a is worse than b
		x, y := int(s.table[a]) != loop, int(s.table[b]) != loop
		return x && !y || x == y && s.users[a] > s.users[b]
	}
	for b := range s.table {
		if worse(best, b) {
			best = b
		}
	}
	s.users[best]++
	c.bucket = 1 + best
	kinds := uint32(roce.SourceClasses)
	if s.on {
		kinds = roce.Buckets
	}
	c.session.SetNumbers(uint32(best)%kinds, kinds)
}

// leave undoes enter.
func (s *steering) leave(c *client) {
	if c.bucket > 0 {
		s.users[c.bucket-1]--
	}
}

// openShards gives the data loops their shards of the port in the hosts' own network. It runs on the first loop, which holds
// the others, or before they run.
func (l *loops) openShards() error {
	host := l.first.net.host
	if host == nil {
		return nil
	}
	p := host.underlay.(*portUnderlay)
	if p.Shards() <= len(l.others) || len(l.others) == 0 {
		return nil
	}
	for i, o := range l.others {
		port, descriptors := p.Shard(i + 1)
		n := &o.net
		o.opts.Window, o.opts.InFlight, o.opts.Deaf = l.first.opts.Window, l.first.opts.InFlight, l.first.opts.Deaf
		a, err := n.attach(&portUnderlay{Port: port, net: n, main: p}, descriptors())
		if err != nil {
			return err
		}
		a.descriptors = descriptors
		n.host = a
		n.listenShard(port, p)
	}
	l.steering.on = true
	l.steer(true)
	return nil
}

// moveShards follows the sockets of the first loop's port after some were opened or closed.
func (l *loops) moveShards() (first error) {
	if !l.steering.on {
		return nil
	}
	for _, o := range l.others {
		if err := o.net.rewatch(o.net.host, o.net.host.descriptors()); first == nil {
			first = err
		}
	}
	l.steer(true)
	return first
}

// reportEvery is the shortest time between two reports of a shard to the first loop: packets that cause them can be forged.
const reportEvery = ib.Time(10_000_000)

// listenShard makes a shard report to the first loop what it notices about other hosts.
func (n *network) listenShard(shard *roce.Port, main *portUnderlay) {
	shard.OnTooLong(func(from, to netip.Addr, size int) {
		n.report(func(first *network) { first.noteTooLong(from, to, size) })
	})
	shard.OnStrange(func(a netip.Addr) {
		n.report(func(first *network) {
			if main.peers != nil {
				main.peers.Strange(first.clock.now, ib.GIDOf(a))
			}
		})
	})
	shard.OnDoubt(func(a netip.Addr) {
		n.report(func(first *network) {
			if main.peers != nil {
				main.peers.Doubt(first.clock.now, ib.GIDOf(a))
			}
		})
	})
}

// report runs f on the first loop, soon, unless the last report was just now: then it is dropped.
func (n *network) report(f func(first *network)) {
	if n.reported != 0 && n.clock.now-n.reported < reportEvery {
		return
	}
	n.reported = n.clock.now
	first := n.loop.loops.first
	first.cmds.push(func() { f(&first.net) })
	first.cmds.wake()
}

// whenHeld runs f while the first loop holds the others: now, or soon as a command. It is called on the first loop.
func (l *loops) whenHeld(f func()) {
	switch {
	case !l.steering.on:
	case len(l.holds) > 0:
		f()
	default:
		l.first.cmds.push(f)
		l.first.cmds.wake()
	}
}

// reaches reports whether the kernel steers packets for t, or could: t reaches other hosts through a shard of its loop.
func (t *task) reaches() bool {
	return t.e.loops.steering.on && t.route.network == ib.HostNetwork && t.q.Type() != ib.UD
}

// steers notes that the table may have to change because of t.
func (s *steering) steers(t *task) {
	if s.on && (t.q.Type() == ib.UD || t.q.Transport().Path().Remote) && int(s.table[roce.BucketOf(t.q.Num())]) != t.e.number {
		s.dirty = true
	}
}

// steer computes the table, and how many loops share the bytes in flight. It runs on the first loop, which holds the others.
// always tells the kernel even if nothing has changed.
func (l *loops) steer(always bool) {
	s := &l.steering
	s.dirty = false
	if !s.on {
		return
	}
	s.at = l.first.clock.now
	counts := make([][roce.Buckets]int, l.count())
	busy := make([]bool, l.count())
	for n := range l.first.adapters.of {
		n.EachQP(func(q *nic.QP) {
			t := taskOf(q)
			if remote := q.Transport().Path().Remote; remote || q.Type() == ib.UD {
				counts[t.e.number][roce.BucketOf(q.Num())]++
				busy[t.e.number] = busy[t.e.number] || remote
			}
		})
	}
	before := s.table
	for b := range s.table {
		best := int(s.table[b])
		for l := range counts {
			if counts[l][b] > counts[best][b] {
				best = l
			}
		}
		if s.table[b] = uint8(best); counts[best][b] == 0 {
			s.table[b] = home(b, int(l.use.Load()))
		}
	}
	parts := uint64(0)
	for _, b := range busy {
		if b {
			parts++
		}
	}
	for _, o := range l.heldLoops() {
		o.net.flights.parts = parts
	}
	if (always || s.table != before) && !l.first.opts.Deaf {
		if err := l.first.net.host.underlay.(*portUnderlay).Steer(&s.table); err != nil {
			l.first.opts.Log.Warn("packets from other hosts arrive at other loops than those that need them, and are handed over: this costs processor time", "error", err)
		}
	}
}

// steerAgain tells the kernel the table, also if there is one loop: the daemon before may have had several.
func (l *loops) steerAgain() {
	if l.steering.on {
		l.steer(true)
	} else if p, ok := l.first.net.host.underlay.(*portUnderlay); ok {
		if err := p.Steer(&roce.SteeringTable{}); err != nil {
			l.first.opts.Log.Warn("packets from other hosts may be lost: the kernel still steers them to the loops of the daemon before", "error", err)
		}
	}
}

// steerSoon computes the table now, if it may have to change, or after steerEvery.
func (l *loops) steerSoon() {
	s := &l.steering
	if !s.dirty {
		return
	}
	if s.at == 0 || l.first.clock.now-s.at >= ib.Time(steerEvery) {
		l.steer(false)
		return
	}
	if !s.again {
		s.again = true
		time.AfterFunc(steerEvery, func() { l.first.do(func() { s.again = false }) })
	}
}

// rewatch makes the loop watch other descriptors of an underlay.
func (n *network) rewatch(a *attached, now []int) (err error) {
	for _, fd := range a.wake {
		if !slices.Contains(now, fd) {
			delete(n.fds, int32(fd))
		}
	}
	for _, fd := range now {
		if n.fds[int32(fd)] != a {
			if werr := n.watch(a, fd); werr != nil {
				err = werr
			}
		}
	}
	a.wake = now
	return err
}
