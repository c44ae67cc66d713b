package engine

import (
	"bytes"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
)

// A page of a client's memory can stop the loop, and all clients with it: see nic/aside.go, which
// says what is done about it. Here is how it is noticed. A goroutine watches the loop:
//
//	loop      … pass ─ pass ─ turn: copy, page fault ················· ─ seen? ─ Blame ─ turn …
//	watcher   ─── look ─────── look: no progress, asleep ── the same: seen ───────────────────
//
// The loop counts its looks around, which costs nothing beside the system call that a look is. As
// long as the count grows, or the loop sleeps on purpose, the watcher does nothing. Otherwise it
// asks the kernel for the thread's state. Uninterruptible sleep (D) is a page fault, and so is much
// system time within a pass, in which the kernel clears a huge page. A thread that is ready to run
// and does not is only waiting for a processor: that is nobody's fault.
//
// The loop looks at the flag after each burst and each turn, with a plain load.
//
// While the loop sleeps the watcher soon sleeps, too, so that an idle daemon costs nothing. The loop wakes it
// with its next look around. That comes when it has worked for a while, and delays no message.
type stall struct {
	seen     atomic.Bool   // the loop has been stopped in what it does now
	since    atomic.Int64  // when that began
	tid      atomic.Int32  // the thread that does the loop's work
	progress atomic.Uint32 // grows with every look around
	due      atomic.Int64  // when marks have to be reviewed; 0: never
	count    atomic.Uint64 // stalls
	resting  atomic.Bool   // the watcher sleeps
	lent     atomic.Bool   // the first loop, which holds this one, does the work of this one
	// reviewing: a goroutine reviews marks
	reviewing atomic.Bool
	wake      chan struct{} // it has room for one

	// What follows belongs to the loop.
	own    int32 // its thread
	passes uint32
	turn   *task // has a turn; nil: none has
	said   time.Time
	more   int // stalls that the log was not told of

	clock  *clock
	cmds   *commands
	first  *commands // of the first loop
	shared *nic.Loop
	log    *slog.Logger

	command func(func()) error // Engine.command: it survives a fault in a client's memory
	spread  func(user int)     // marks the user on the other loops, too
}

const (
	// stallLook is how often the watcher looks. If the loop sleeps at stallRest looks in a row, the
	// watcher sleeps.
	stallLook = 5 * time.Millisecond
	stallRest = 4
	// stallTicks is how much system time within one pass is a stall, in hundredths of a second.
	// The loop's own system calls take microseconds.
	stallTicks = 3
	// stallSay is how often the log tells of stalls.
	stallSay = 10 * time.Second
)

// begun is when times in stall are counted from.
var begun = time.Now()

// look counts a look around.
func (s *stall) look() {
	s.passes++
	s.progress.Store(s.passes)
}

// rouse wakes the watcher. It follows look: either the watcher sees the progress before it sleeps, or
// the loop sees that the watcher sleeps.
func (s *stall) rouse() {
	if s.resting.Load() && s.resting.CompareAndSwap(true, false) {
		s.wake <- struct{}{}
	}
}

// A lookout is what the watcher saw last.
type lookout struct {
	progress uint32
	at       int64 // when the progress was seen first
	asked    bool  // the kernel was asked since
	blocked  bool  // and said that the thread was asleep
	ticks    uint64
	told     bool
}

// fresh notes the progress, and reports whether the loop was somewhere else before.
func (l *lookout) fresh(progress uint32, now int64) bool {
	if l.at != 0 && progress == l.progress {
		return false
	}
	*l = lookout{progress: progress, at: now}
	return true
}

// judge says, by the state of a thread that makes no progress and its system time, whether a page
// stops it. It says so once.
func (l *lookout) judge(state byte, ticks uint64) bool {
	if !l.asked {
		l.asked, l.ticks = true, ticks
	}
	stopped := state == 'D' && l.blocked || ticks-l.ticks >= stallTicks
	l.blocked = state == 'D'
	if !stopped || l.told {
		return false
	}
	l.told = true
	return true
}

// watch is the watcher; do runs a function on the loop. It ends with the loop.
func (s *stall) watch(do func(func()) error) {
	var l lookout
	t := time.NewTicker(stallLook)
	defer t.Stop()
	for asleep := 0; ; {
		select {
		case <-s.cmds.done:
			return
		case <-t.C:
		}
		now := int64(time.Since(begun))
		if due := s.due.Load(); due != 0 && now >= due && s.reviewing.CompareAndSwap(false, true) {
			go func() { // it may have to wait for the loop, which is watched here
				defer s.reviewing.Store(false)
				do(s.reviewAside)
			}()
		}
		if s.idle() {
			l = lookout{}
			if asleep++; asleep >= stallRest {
				t.Stop()
				if !s.rest() {
					return
				}
				t.Reset(stallLook)
				asleep = 0
			}
			continue
		}
		asleep = 0
		if l.fresh(s.progress.Load(), now) {
			continue
		}
		state, ticks, ok := threadState(s.tid.Load())
		if ok && l.judge(state, ticks) && s.progress.Load() == l.progress {
			s.since.Store(l.at)
			s.seen.Store(true)
		}
	}
}

// idle reports that the loop does nothing: it sleeps, or the first loop holds it.
func (s *stall) idle() bool {
	return s.cmds.held.Load() == free || s.cmds.wanted.Load() && !s.lent.Load()
}

// rest sleeps until the loop has worked for a while, or a mark ends. It reports false when the loop
// has ended.
func (s *stall) rest() bool {
	before := s.progress.Load()
	s.resting.Store(true)
	if !s.idle() || s.progress.Load() != before {
		s.unrest()
		return true
	}
	var end <-chan time.Time
	if due := s.due.Load(); due != 0 {
		t := time.NewTimer(time.Duration(due) - time.Since(begun))
		defer t.Stop()
		end = t.C
	}
	select {
	case <-s.cmds.done:
		return false
	case <-s.wake:
	case <-end:
		s.unrest()
	}
	return true
}

// unrest ends the watcher's sleep though nobody woke it.
func (s *stall) unrest() {
	if !s.resting.CompareAndSwap(true, false) {
		<-s.wake // somebody did meanwhile
	}
}

// threadState returns the state of a thread of the daemon and its system time in hundredths of a second. It
// is called seldom, so it keeps no descriptor, and it allocates nothing.
func threadState(tid int32) (state byte, ticks uint64, ok bool) {
	var path [40]byte // ends with 0
	strconv.AppendInt(append(path[:0], "/proc/self/task/"...), int64(tid), 10)
	copy(path[bytes.IndexByte(path[:], 0):], "/stat")
	var text [512]byte
	n := readFile(&path, &text)
	if n <= 0 {
		return 0, 0, false
	}
	return parseStat(text[:n])
}

// parseStat reads /proc/PID/stat (proc_pid_stat(5)): fields 3 and 15. The name before them may
// have any bytes.
func parseStat(b []byte) (state byte, ticks uint64, ok bool) {
	b = b[bytes.LastIndexByte(b, ')')+1:]
	for field := 3; len(b) > 1; field++ {
		b = b[1:] // a space
		end := bytes.IndexByte(b, ' ')
		if end < 0 {
			return 0, 0, false
		}
		switch field {
		case 3:
			if end != 1 {
				return 0, 0, false
			}
			state = b[0]
		case 15:
			for _, c := range b[:end] {
				if c < '0' || c > '9' {
					return 0, 0, false
				}
				ticks = 10*ticks + uint64(c-'0')
			}
			return state, ticks, end > 0
		}
		b = b[end:]
	}
	return 0, 0, false
}

// blame is called when the loop was stopped while it delivered a burst to t. It marks the queue
// pairs whose memory was touched: t, and the one that has a turn. Memory that is reached aside was
// not touched. If no other is left, it was something else.
//
//go:noinline
func (s *stall) blame(t *task) {
	a, b := s.turn, t
	if a == nil || a == b || a.q.Gone() || a.q.Aside() {
		a = nil
	}
	if b.q.Gone() || b.q.Aside() {
		a, b = nil, a
	}
	if b == nil {
		s.unexplained()
		return
	}
	var other *nic.QP
	if a != nil {
		other = a.q
	}
	stood := s.stood()
	result := s.shared.Blame(b.q, other, s.clock.now)
	s.due.Store(int64(time.Since(begun)) + int64(s.shared.AsideDue(s.clock.now)-s.clock.now))
	s.sayStalled(b.q.Session(), other, stood, &result)
	if result.User {
		s.spread(b.q.Session().User)
	}
	for _, q := range result.Fail {
		s.first.push(func() { s.command(q.Fail) }) // its queues may fault, too
		s.first.wake()
	}
}

// stood ends a stall and says how long it was.
func (s *stall) stood() time.Duration {
	s.seen.Store(false)
	s.count.Add(1)
	return time.Since(begun) - time.Duration(s.since.Load())
}

// unexplained ends a stall that has nothing to do with registered memory.
//
//go:noinline
func (s *stall) unexplained() {
	stood := s.stood()
	if s.quietStall() {
		return
	}
	s.log.Warn("the loop stood still, and all programs with it, outside of registered memory: the machine may be short of memory",
		"stood", stood.Round(time.Millisecond), "others", s.more)
	s.more = 0
}

// quietStall reports that the log is not to be told of a stall.
func (s *stall) quietStall() bool {
	if now := time.Now(); now.Sub(s.said) >= stallSay {
		s.said = now
		return false
	}
	s.more++
	return true
}

// sayStalled tells the log of a stall.
func (s *stall) sayStalled(from *nic.Session, other *nic.QP, stood time.Duration, b *nic.Blame) {
	if len(b.Fail) == 0 && s.quietStall() {
		return
	}
	args := []any{"stood", stood.Round(time.Millisecond), "uid", from.UID, "pid", from.Pid, "program", from.Program}
	if other != nil {
		o := other.Session()
		args = append(args, "peer_uid", o.UID, "peer_pid", o.Pid, "peer_program", o.Program)
	}
	args = append(args, "others", s.more)
	s.more = 0
	switch {
	case len(b.Fail) > 0:
		s.log.Warn("a page of registered memory stopped the loop again, and all programs with it; it cannot be copied beside the loop, so its queue pair fails", args...)
	case !from.Space.Reachable():
		s.log.Warn("a page of registered memory stopped the loop, and all programs with it; it cannot be copied beside the loop", args...)
	case b.User:
		s.log.Warn("a page of registered memory stopped the loop, and all programs with it: the user's memory is copied beside the loop for a while, which is slower",
			append(args, "for", time.Duration(b.Lasts))...)
	default:
		s.log.Warn("a page of registered memory stopped the loop, and all programs with it: memory of this connection is copied beside the loop for a while, which is slower",
			append(args, "for", time.Duration(b.Lasts))...)
	}
}

// reviewAside ends the marks whose time has passed. It runs on the loop, as a command.
func (s *stall) reviewAside() {
	s.shared.ReviewAside(s.clock.now)
	due := int64(0)
	if d := s.shared.AsideDue(s.clock.now); d != 0 {
		due = int64(time.Since(begun)) + int64(d-s.clock.now)
	}
	s.due.Store(due)
}

// spreadMark makes other loops reach a user's memory aside, as this one does, soon.
func (e *loop) spreadMark(user int) {
	first := e.loops.first
	if len(first.loops.all) == 0 {
		return
	}
	first.cmds.push(func() {
		for _, o := range first.loops.heldLoops() {
			if o != e {
				e.shared.PassMark(user, o.shared, first.clock.now)
				o.stall.reviewAside()
			}
		}
	})
	first.cmds.wake()
}

// Stalls is how often a page stopped the loop. Any goroutine may call it.
func (e *Engine) Stalls() uint64 {
	n := e.first.stall.count.Load()
	for _, o := range e.loops.all {
		n += o.stall.count.Load()
	}
	return n
}

// threadID is that of the calling thread.
func threadID() int32 { return int32(unix.Gettid()) }
