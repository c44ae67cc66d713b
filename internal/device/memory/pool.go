package memory

import (
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Pool has threads for foreign memory. A process can hold one up for ever: the page that is
// read may lie in a file of a file system that the process serves itself, and does not
// answer. So
//
//   - each user has a few threads and no more, and one that is stuck counts until it is back;
//   - there is a limit in all, and long before it a user has only one;
//   - nobody waits for a thread: whoever gave it the job may give the job up.
//
// What is finished is collected by the one who made the jobs, the loop.
type Pool struct {
	mu      sync.Mutex
	users   map[int]*user
	busy    int       // threads that have a job
	idle    []*worker // those that have none
	done    []*Job
	closed  bool
	looking atomic.Bool // a worker looks around
	wake    func()      // says that there is something in done, or a thread free
}

// A worker is a thread. When it has nothing to do it looks around for a moment before it
// sleeps, for the next job of a queue pair mostly follows soon, and waking a thread takes
// longer than the job.
type worker struct {
	next   atomic.Pointer[Job]
	asleep atomic.Bool
	wake   chan struct{} // it has room for one
}

// user is one user's share of the pool.
type user struct {
	busy int        // guarded by the pool's mu
	word sync.Mutex // held by atomic operations
}

const (
	// userThreads is how many of a user's jobs are done at once: enough to hide the time
	// that one takes, and what a user can take from the machine by being stuck.
	userThreads = 4
	// poolCrowded is from how many threads on a user has one only.
	poolCrowded = 256
	// poolMost is the limit in all. Go ends a program with ten thousand threads.
	poolMost = 1024
	// poolUsers is how many users are remembered who have nothing under way.
	poolUsers = 256
	// lookAround is how long a worker that has nothing to do looks around. One at a time
	// does.
	lookAround = 100 * time.Microsecond
	// poolIdle is how many are kept for the next job.
	poolIdle = 8
)

// NewPool makes a pool. wake is called, on any goroutine, when Collect has something to
// give or Free may say otherwise than before.
func NewPool(wake func()) *Pool { return &Pool{users: make(map[int]*user), wake: wake} }

// take takes a thread for a user; nil if there is none.
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
	most := userThreads
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

// Busy is how many threads have a job.
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
	j.user = uid
	if j.op != jobRead {
		j.entry = j.space.enter()
	}
	if n := len(p.idle); n > 0 {
		w := p.idle[n-1]
		p.idle = p.idle[:n-1]
		w.next.Store(j)
		w.rouse()
		return true
	}
	go p.work(j, u)
	return true
}

// work is a thread: it does jobs until there are enough others.
func (p *Pool) work(j *Job, u *user) {
	w := &worker{wake: make(chan struct{}, 1)}
	for {
		j.run(u)
		if j.op != jobRead {
			j.space.leave(j.entry)
		}
		p.mu.Lock()
		p.give(j.user)
		p.done = append(p.done, j)
		keep := len(p.idle) < poolIdle && !p.closed
		if keep {
			p.idle = append(p.idle, w)
		}
		p.mu.Unlock()
		p.wake()
		if !keep {
			return
		}
		if j = p.await(w); j == nil {
			return
		}
		p.mu.Lock()
		u = p.users[j.user]
		p.mu.Unlock()
	}
}

// look looks around for the worker's next job for a moment.
func (p *Pool) look(w *worker) *Job {
	if !p.looking.CompareAndSwap(false, true) {
		return nil
	}
	defer p.looking.Store(false)
	for end := time.Now().Add(lookAround); time.Now().Before(end); {
		if j := w.next.Swap(nil); j != nil {
			return j
		}
		// Other goroutines first, then whoever else wants the processor.
		runtime.Gosched()
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
	return nil
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
}
