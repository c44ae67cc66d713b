package memory

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Pool has threads for foreign memory. A process can hold one up for ever: the page that is
// read may lie in a file of a file system that the process serves itself, and does not
// answer. So
//
//   - each user has a few jobs under way and no more, and a stuck one counts until it is back;
//   - there is a limit for all users together, and long before it a user has only one job;
//   - nothing waits for a thread: the loop may give a job up.
//
// A user's jobs take turns on a few threads, because waking another thread takes longer than
// most jobs do:
//
//	Start ──▶ user's queue ──▶ thread ──▶ done ──▶ Collect
//	                              │
//	                              └── stuck for stuckAfter: the queue has one thread more
//
// Users do not wait for each other. The loop, which made the jobs, collects what is done.
type Pool struct {
	mu      sync.Mutex
	users   map[int]*user
	busy    int       // jobs that are under way
	idle    []*worker // those that have none
	done    []*Job
	queued  int // jobs that no thread has begun
	closed  bool
	watch   *time.Timer // looks for stuck threads while jobs are queued
	watched bool        // it is set
	looking atomic.Bool // a worker polls for its next job
	wake    func()      // says that there is something in done, or a thread free
}

// A worker is a thread. An idle worker polls for lookAround before it sleeps: the next job of a
// queue pair usually follows soon, and waking a thread takes longer than the job.
type worker struct {
	next   atomic.Pointer[Job]
	asleep atomic.Bool
	wake   chan struct{} // buffered, capacity 1
}

// user is one user's share of the pool. The pool's mu guards all but word.
type user struct {
	busy    int // jobs under way; a thread that is stuck has one
	queue   []*Job
	running []*Job
	stuck   int        // of those that run
	word    sync.Mutex // held by atomic operations
}

const (
	// userJobs is how many of a user's jobs are under way at once: enough to hide the time
	// that one takes, and what a user can take from the machine by being stuck.
	userJobs = 4
	// poolCrowded is the number of jobs in the pool from which on each user can have only one.
	poolCrowded = 256
	// poolMost is the maximum number of jobs of all users. Go ends a program with ten thousand threads.
	poolMost = 1024
	// poolUsers is the number of user records above which the pool deletes those without jobs.
	poolUsers = 256
	// lookAround is how long an idle worker polls for a job before it sleeps. Only one worker polls
	// at a time.
	lookAround = 100 * time.Microsecond
	// goschedEvery: a polling worker calls sched_yield in each iteration, and runtime.Gosched, which
	// takes longer, in every goschedEvery-th.
	goschedEvery = 4
	// poolIdle is how many idle workers are kept for the next jobs.
	poolIdle = 8
	// stuckAfter is the time after which a thread counts as stuck, and its queue gets another one.
	// The longest job takes a tenth of it. A disk may take ten times as long.
	stuckAfter = time.Millisecond
)

// userThreads is how many threads do a user's jobs, not counting stuck ones: half of the
// processors, because the loop and the user's programs need the others.
var userThreads = min(max(runtime.NumCPU()/2, 1), userJobs)

// NewPool makes a pool. wake is called, on any goroutine, when Collect has something to
// give or Free may say otherwise than before.
func NewPool(wake func()) *Pool {
	ownMemory() // opened now: a descriptor that appears later looks like a leak, and there may be none left
	return &Pool{users: make(map[int]*user), wake: wake}
}

// take takes one of the jobs that a user may have; nil if there is none.
func (p *Pool) take(uid int) *user {
	if p.full(uid) {
		return nil
	}
	u := p.users[uid]
	if u == nil {
		u = &user{}
		p.users[uid] = u
	}
	u.busy++
	p.busy++
	return u
}

func (p *Pool) full(uid int) bool {
	most := userJobs
	if p.busy >= poolCrowded {
		most = 1
	}
	u := p.users[uid]
	return p.closed || p.busy >= poolMost || u != nil && u.busy >= most
}

// give gives it back.
func (p *Pool) give(uid int) {
	p.busy--
	u := p.users[uid]
	if u.busy--; u.busy == 0 && len(p.users) > poolUsers {
		delete(p.users, uid)
	}
}

// Free reports whether a job of the user's would be begun now.
func (p *Pool) Free(uid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.full(uid)
}

// Busy is how many jobs are under way.
func (p *Pool) Busy() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.busy
}

// Start begins a job of a user; false if the user has too many under way.
func (p *Pool) Start(uid int, j *Job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.take(uid)
	if u == nil {
		return false
	}
	j.user, j.of = uid, u
	if j.op != jobRead {
		j.entry = j.space.enter()
	}
	u.queue = append(u.queue, j)
	p.queued++
	if !p.engage(u) {
		p.expectStuck()
	}
	return true
}

// engage gives the first job in the user's queue to a thread, if the user may have one more.
// p.mu is held.
func (p *Pool) engage(u *user) bool {
	if len(u.running) >= userThreads+u.stuck {
		return false
	}
	j := p.pull(u)
	n := len(p.idle)
	if n == 0 {
		go p.work(j)
		return true
	}
	i := n - 1
	for k := range p.idle {
		if !p.idle[k].asleep.Load() {
			i = k // it looks around
		}
	}
	w := p.idle[i]
	p.idle[i] = p.idle[n-1]
	p.idle = p.idle[:n-1]
	w.next.Store(j)
	w.rouse()
	return true
}

// pull takes the first job of the user's queue for a thread. p.mu is held.
func (p *Pool) pull(u *user) *Job {
	j := u.queue[0]
	copy(u.queue, u.queue[1:])
	u.queue[len(u.queue)-1] = nil
	u.queue = u.queue[:len(u.queue)-1]
	p.queued--
	j.began, j.stuck = time.Now(), false
	u.running = append(u.running, j)
	return j
}

// leave counts out a job that a thread has done. p.mu is held.
func (p *Pool) leave(j *Job) {
	u := j.of
	i := slices.Index(u.running, j)
	u.running = slices.Delete(u.running, i, i+1)
	if j.stuck {
		u.stuck--
	}
	p.give(j.user)
	p.done = append(p.done, j)
}

// expectStuck makes sure that jobs which wait for stuck threads get others. p.mu is held.
func (p *Pool) expectStuck() {
	if p.watched || p.closed {
		return
	}
	p.watched = true
	if p.watch == nil {
		p.watch = time.AfterFunc(stuckAfter, p.findStuck)
	} else {
		p.watch.Reset(stuckAfter)
	}
}

// findStuck finds threads that are stuck and replaces them where jobs are queued.
func (p *Pool) findStuck() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watched = false; p.queued == 0 {
		return
	}
	now := time.Now()
	for _, u := range p.users {
		if len(u.queue) == 0 {
			continue
		}
		for _, j := range u.running {
			if !j.stuck && now.Sub(j.began) >= stuckAfter {
				j.stuck = true
				u.stuck++
			}
		}
		for len(u.queue) > 0 && p.engage(u) {
		}
	}
	if p.queued > 0 {
		p.expectStuck()
	}
}

// work is a thread: it does jobs until there are enough others.
func (p *Pool) work(j *Job) {
	w := &worker{wake: make(chan struct{}, 1)}
	for j != nil {
		j.run(j.of)
		if j.op != jobRead {
			j.space.leave(j.entry)
		}
		p.mu.Lock()
		u := j.of
		p.leave(j)
		next, keep := (*Job)(nil), false
		if len(u.queue) > 0 && len(u.running) < userThreads+u.stuck {
			next = p.pull(u)
		} else if keep = len(p.idle) < poolIdle && !p.closed; keep {
			p.idle = append(p.idle, w)
		}
		p.mu.Unlock()
		p.wake()
		if keep {
			next = p.await(w)
		}
		j = next
	}
}

// look polls for the worker's next job, for lookAround; nil: none came, or another worker polls.
func (p *Pool) look(w *worker) *Job {
	if !p.looking.CompareAndSwap(false, true) {
		return nil
	}
	defer p.looking.Store(false)
	for i, end := 0, time.Now().Add(lookAround); ; i++ {
		// The loop may be waiting for this processor, to continue with a job that is done.
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		if j := w.next.Swap(nil); j != nil {
			return j
		}
		if i%goschedEvery != 0 {
			continue
		}
		runtime.Gosched() // other goroutines
		if time.Now().After(end) {
			return nil
		}
	}
}

// await waits for the worker's next job; nil when the pool is closed.
func (p *Pool) await(w *worker) *Job {
	if j := p.look(w); j != nil {
		return j
	}
	for {
		w.asleep.Store(true)
		if j := w.next.Swap(nil); j != nil {
			if !w.asleep.CompareAndSwap(true, false) {
				<-w.wake // it was written to meanwhile
			}
			return j
		}
		if _, open := <-w.wake; !open {
			return nil
		}
	}
}

// rouse wakes the worker if it sleeps.
func (w *worker) rouse() {
	if w.asleep.CompareAndSwap(true, false) {
		w.wake <- struct{}{}
	}
}

// Collect appends the jobs that are done to list.
func (p *Pool) Collect(list []*Job) []*Job {
	p.mu.Lock()
	defer p.mu.Unlock()
	list = append(list, p.done...)
	clear(p.done)
	p.done = p.done[:0]
	return list
}

// Do runs f, which may be held up, and waits for it, but not longer than d: then it answers
// ETIMEDOUT, and f goes on alone.
func (p *Pool) Do(uid int, d time.Duration, f func() error) error {
	end := time.Now().Add(d)
	for {
		p.mu.Lock()
		u := p.take(uid)
		p.mu.Unlock()
		if u != nil {
			break
		}
		if time.Now().After(end) {
			return syscall.ETIMEDOUT
		}
		time.Sleep(time.Millisecond)
	}
	done := make(chan error, 1)
	go func() {
		err := f()
		p.mu.Lock()
		p.give(uid)
		p.mu.Unlock()
		done <- err
		p.wake()
	}()
	t := time.NewTimer(time.Until(end))
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
		return syscall.ETIMEDOUT
	}
}

// Close lets the threads go that have nothing to do. Those that are stuck end when they are
// back.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, w := range p.idle {
		close(w.wake)
	}
	p.idle = nil
	if p.watch != nil {
		p.watch.Stop()
	}
}
