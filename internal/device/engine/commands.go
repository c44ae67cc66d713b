package engine

import (
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/ib"
)

// Commands are functions that other goroutines want run where nothing has to be locked: they
// make and change the objects of NICs, look at counters, connect. They wait in a queue that
// the loop takes from between two passes, or, while it sleeps, are run in its place by the
// goroutine that has one (standin.go).
//
// The commands of clients are not among them: the loop reads those itself (lines.go), except
// for what takes long.
//
//	goroutine ── Do ─┬─ the loop sleeps ──▶ stand in: pass, command, a few passes
//	                 └─ it does not ──▶ queue ──▶ loop: pass, command ──▶ Do returns
//
// What a program posted before it made a command happens before the command, as in the
// kernel, where posting is a system call: so a pass comes first.
type commands struct {
	mu       sync.Mutex
	queue    queue[func()]
	pending  atomic.Bool // the queue is not empty
	sleeping atomic.Bool // the loop has to be kicked
	stopping atomic.Bool
	arrived  atomic.Bool   // foreign memory has come, see inbox.go
	held     atomic.Uint32 // who holds what belongs to the loop: see standin.go
	done     chan struct{} // closed when the loop has ended
}

const (
	// commandsPerPass and commandTime bound the commands of one pass. The rest wait for
	// the next: each connection has one under way at a time, so their order is fair.
	commandsPerPass = 8
	commandTime     = ib.Time(5_000)
)

// Do runs f on the loop, or in its place while it sleeps, and waits until it has run. If f
// panics, it returns that as an error, see panics.go. After Stop, f does not run and Do
// returns ErrStopped.
func (e *Engine) Do(f func()) error {
	if ran, err := e.standIn(f); ran {
		return err
	}
	var err error
	var over atomic.Bool
	c, ran := &e.cmds, make(chan struct{})
	c.push(func() { err = e.command(f); over.Store(true); close(ran) })
	if c.sleeping.Load() {
		e.poller.kick()
	}
	// A loop that is awake comes to it within microseconds; to sleep and be woken takes longer.
	for i := 0; i < patientSpins && !over.Load(); i++ {
		yield()
	}
	select {
	case <-ran:
		return err
	case <-c.done:
		return ErrStopped
	}
}

func (c *commands) push(f func()) {
	c.mu.Lock()
	*c.queue.push() = f
	c.pending.Store(true)
	c.mu.Unlock()
}

func (c *commands) pop() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.queue.pop()
	f := *p
	*p = nil
	c.pending.Store(c.queue.n > 0)
	return f
}

// inOnePass is how many commands one pass may run: none that comes later, because what its
// program posted before it may not have been seen.
func (c *commands) inOnePass() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(c.queue.n, commandsPerPass)
}

// fewBells is the number of sessions up to which looking at each of them takes less time
// than asking the kernel who rang.
const fewBells = 8

// wakeRung activates the sessions that have rung: what they posted happens before the
// commands that are about to run.
func (e *Engine) wakeRung() {
	if len(e.bells.of) > fewBells {
		e.pollWakes()
	} else {
		e.bells.activateRung(e.now)
	}
}

// takeCommands runs the first of what other goroutines asked for, n at most.
func (e *Engine) takeCommands(n int) {
	for begin := e.now; n > 0; n-- {
		e.cmds.pop()()
		if e.clock(); e.now-begin >= commandTime {
			return
		}
	}
}

// rouse has the loop look for foreign memory that has come. Any goroutine may call it.
func (e *Engine) rouse() {
	e.cmds.arrived.Store(true)
	if e.cmds.sleeping.Load() {
		e.poller.kick()
	}
}
