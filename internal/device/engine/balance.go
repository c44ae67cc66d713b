package engine

import (
	"fmt"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// Balancing. A goroutine compares how busy the loops are. When one has been much busier than another for a while, a group
// of the first moves to the second. With Options.Auto it also decides how many of the loops are used.
//
// A loop that no session uses sleeps, and costs nothing.

const (
	// balanceEvery is how often the balancer looks, and balanceAfter after how many looks with the same result it acts.
	balanceEvery = 100 * time.Millisecond
	balanceAfter = 3
	// balanceIdle is how often it looks while no loop is busy.
	balanceIdle = 500 * time.Millisecond
	idle        = 0.01
	// fullLoad is the load of a loop that needs help, and uneven the difference between two loops that is worth a move.
	fullLoad = 0.7
	uneven   = 0.3
	// idleLoad is the load of all loops, for each loop but one, below which one loop fewer is used, after idleLooks looks.
	idleLoad  = 0.4
	idleLooks = 20
	// freeCPU is how many processors must be free for another loop.
	freeCPU = 0.5
)

// loads are what the balancer knows: how busy each used loop was since the last look, from 0 to 1, and how many
// processors were free.
type loads struct {
	busy []float64
	free float64
	most int // loops that may be used
}

// A remedy is what to do: move a group, or use another number of loops. The zero value: nothing.
type remedy struct {
	from, to int
	use      int // 0: as many as now
}

// advise says what to do about one look.
func (l *loads) advise() (a remedy) {
	high, low := 0, 0
	sum := 0.0
	for i, b := range l.busy {
		if sum += b; b > l.busy[high] {
			high = i
		}
		if b < l.busy[low] {
			low = i
		}
	}
	switch n := len(l.busy); {
	case l.busy[low] >= fullLoad && n < l.most && l.free >= freeCPU:
		return remedy{from: high, to: n, use: n + 1}
	case l.busy[high] >= fullLoad && l.busy[high]-l.busy[low] >= uneven:
		return remedy{from: high, to: low}
	case n > 1 && sum < idleLoad*float64(n-1) && l.most > 0:
		return remedy{from: n - 1, to: 0, use: n - 1}
	}
	return remedy{}
}

// A balancer remembers earlier looks.
type balancer struct {
	loops *loops
	auto  bool
	last  remedy
	times int
	at    time.Time
	busy  []ib.Time // of each loop, at the last look
	spent []ib.Time // of each loop, since then
	part  []float64 // the same of loops in use, as a part of the time
	idle  time.Duration
	known bool // idle is of the last look
}

// balance looks at the loops until they stop.
func (l *loops) balance() {
	b := &balancer{loops: l, auto: l.first.opts.Auto, at: time.Now(), busy: make([]ib.Time, l.count())}
	t := time.NewTicker(balanceEvery)
	defer t.Stop()
	for {
		select {
		case <-l.first.cmds.done:
			return
		case <-l.stopping:
			return
		case <-t.C:
		}
		if l.sessions.Load() < 2 {
			t.Stop()
			select {
			case <-l.first.cmds.done:
				return
			case <-l.stopping:
				return
			case <-l.crowd:
			}
			t.Reset(balanceEvery)
			b.at, b.times, b.known = time.Now(), 0, false
			b.note()
			continue
		}
		if b.look() > idle {
			t.Reset(balanceEvery)
		} else {
			t.Reset(balanceIdle)
		}
	}
}

// note reads how busy the loops have been.
func (b *balancer) note() []ib.Time {
	b.spent = b.spent[:0]
	for i := range b.busy {
		l := b.loops.first
		if i > 0 {
			l = b.loops.all[i-1]
		}
		now := ib.Time(l.busy.Load())
		b.spent = append(b.spent, now-b.busy[i])
		b.busy[i] = now
	}
	return b.spent
}

// look compares the loops, and acts if that has given the same result often enough. It returns how busy the busiest
// loop was.
func (b *balancer) look() (most float64) {
	now := time.Now()
	passed := now.Sub(b.at)
	b.at = now
	l := loads{busy: b.part[:0]}
	use := int(b.loops.use.Load())
	for _, s := range b.note()[:use] {
		l.busy = append(l.busy, min(float64(s)/float64(passed), 1))
	}
	b.part = l.busy
	if b.auto {
		l.most = b.loops.count()
	}
	if slices.Min(l.busy) >= fullLoad && use < l.most {
		l.free = b.free(passed)
	} else {
		b.known = false
	}
	b.judge(l)
	return slices.Max(l.busy)
}

// judge acts on the loads of one look if as many looks in a row have given the same result as that needs.
func (b *balancer) judge(l loads) {
	a := l.advise()
	if a != b.last {
		b.last, b.times = a, 0
	}
	b.times++
	after := balanceAfter
	if a.use != 0 && a.use < len(l.busy) {
		after = idleLooks
	}
	if a == (remedy{}) || b.times < after {
		return
	}
	b.last, b.times = remedy{}, 0
	b.loops.first.do(func() { b.loops.follow(a) }) // fails only after the loop has ended
}

// free is how many processors were free since the last look; 0 if that is not known.
func (b *balancer) free(passed time.Duration) (free float64) {
	now, err := idleTime()
	if err == nil && b.known {
		free = float64(now-b.idle) / float64(passed)
	}
	b.idle, b.known = now, err == nil
	return free
}

// follow does what a remedy says. It runs in a command.
func (l *loops) follow(a remedy) {
	if len(l.others) == 0 {
		return
	}
	all := l.heldLoops()
	from, to := all[a.from], all[a.to]
	if a.use != 0 && a.use <= a.from {
		for _, c := range from.clients() {
			if clientOf(c.session) == c {
				l.move(l.group(nil, c), to)
			}
		}
		// The loop remains in use while it has a group that cannot move: the balancer sees only loops in use, and asks
		// again.
		if len(from.bells.of) == 0 {
			l.useLoops(a.use)
		}
		return
	}
	if a.use != 0 {
		l.useLoops(a.use)
	}
	if g := l.half(from); g != nil {
		l.move(g, to)
	}
}

// half returns a group of a loop with about half of its load; nil: there is no group that can move, or only one.
func (l *loops) half(from *loop) (best []*client) {
	type candidate struct {
		g    []*client
		load uint64
	}
	var list []candidate
	seen := make(map[*client]bool)
	sum := uint64(0)
	for _, c := range from.clients() {
		if seen[c] {
			continue
		}
		g := l.group(nil, c)
		k := candidate{g: g}
		for _, o := range g {
			seen[o] = true
			k.load += o.recent()
		}
		sum += k.load
		list = append(list, k)
	}
	if len(list) < 2 {
		return nil
	}
	slices.SortFunc(list, func(a, b candidate) int { return int(min(a.load, 1<<40)) - int(min(b.load, 1<<40)) })
	for _, k := range list {
		if k.load > 0 && (best == nil || k.load <= sum/2) && !slices.ContainsFunc(k.g, l.pinned) && !slices.ContainsFunc(k.g, func(c *client) bool { return !c.movable() }) {
			best = k.g
		}
	}
	return best
}

// recent is what the session has done since it was asked last: about the nanoseconds of the loop's time.
func (c *client) recent() uint64 {
	sum := uint64(0)
	c.tasks.each(func(t *task) {
		n := t.q.Transport().Counters()
		sum += n.SentBytes/16 + n.RcvdBytes/16 + 100*(n.SentPackets+n.RcvdPackets)
	})
	d := sum - min(c.done, sum)
	c.done = sum
	return d
}

// A LoopStatus describes a loop.
type LoopStatus struct {
	Number   int
	Used     bool // it may have sessions
	Sessions int
	Busy     ib.Time // time that it has worked for sessions
	Across   uint64  // packets that it has received for queue pairs of other loops
	Lost     uint64  // packets that other loops received for it, and that did not fit into its queue
}

// LoopStatus describes all loops, and says how many sessions have moved. It runs on the loop.
func (e *Engine) LoopStatus() (list []LoopStatus, moves uint64) {
	for i, l := range e.loops.heldLoops() {
		list = append(list, LoopStatus{Number: i, Used: i < int(e.loops.use.Load()), Sessions: len(l.bells.of), Busy: l.clock.busy, Across: l.local.across, Lost: l.inward.lost.Load()})
	}
	return list, e.loops.moves
}

// LoopOf is the number of the loop that serves a session. It runs on the loop.
func (e *Engine) LoopOf(s *nic.Session) int {
	if c := clientOf(s); c != nil {
		return c.e.number
	}
	return 0
}

// MoveProcess moves the sessions of a process, and those that they are connected to, to a loop. It runs on the loop.
func (e *Engine) MoveProcess(pid, to int) error {
	all := e.loops.heldLoops()
	if to < 0 || to >= len(all) {
		return fmt.Errorf("there is no loop %d: the daemon has loops 0 to %d, see vrdma daemon --loops", to, len(all)-1)
	}
	var of []*client
	for n := range e.first.adapters.of {
		n.EachSession(func(s *nic.Session) {
			if c := clientOf(s); c != nil && s.Pid == pid {
				of = append(of, c)
			}
		})
	}
	if len(of) == 0 {
		return fmt.Errorf("process %d has no device open: vrdma status lists those that have", pid)
	}
	for _, c := range of {
		if clientOf(c.session) != c {
			continue // moved with another
		}
		g := e.loops.group(nil, c)
		if to != 0 {
			for _, o := range g {
				if e.loops.pinned(o) {
					return fmt.Errorf("process %d (%s) needs loop 0: it has datagrams, peers in a virtual network or a network namespace, or faults, or packets are captured", o.session.Pid, o.session.Program)
				}
			}
		}
		if !e.loops.move(g, all[to]) {
			return fmt.Errorf("a thread writes to the memory of process %d: try again", pid)
		}
	}
	if to >= int(e.loops.use.Load()) {
		e.loops.useLoops(to + 1)
	}
	return nil
}

// useLoops sets how many loops are used.
func (l *loops) useLoops(n int) {
	l.use.Store(int32(n))
	l.steering.dirty = true
}
