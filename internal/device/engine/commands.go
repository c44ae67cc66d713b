package engine

import (
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/device/fifo"
	"vrdma.dev/vrdma/internal/ib"
)

// Commands are functions that other goroutines run on the loop, where nothing has to be locked:
// they make and change the objects of NICs, read counters, connect. They wait in a queue until
// the loop takes them between two passes. While the loop sleeps, the goroutine that has a command
// runs it in place of the loop (standin.go).
//
// Client requests are no commands: the loop reads them itself (handlers.go), except for slow ones.
//
//	goroutine ── Do ─┬─ the loop sleeps ──▶ stand in: pass, command, a few passes
//	                 └─ it does not ──▶ queue ──▶ loop: pass, command ──▶ Do returns
//
// Work that a program posted before a command is done before the command, as in the kernel, where
// posting is a system call. So a pass precedes the command.
type commands struct {
	mu       sync.Mutex
	queue    fifo.Queue[func()]
	pending  atomic.Bool // the queue is not empty
	sleeping atomic.Bool // the loop has to be woken with kick
	stopping atomic.Bool
	arrived  atomic.Bool   // foreign memory has arrived, see inbox.go
	held     atomic.Uint32 // which goroutine holds the loop's state: see standin.go
	wanted   atomic.Bool   // the first loop wants this loop's state, see loops.go
	done     chan struct{} // closed when the loop has ended

	poller *poller // wakes the loop
}

const (
	// commandsPerPass and commandTime bound the commands of one pass. The others wait for the
	// next. Each connection has at most one under way, so their order is fair.
	commandsPerPass = 8
	commandTime     = ib.Time(5_000)
)

// Do runs f on the loop, or in place of a loop that sleeps, and waits for it. It returns a panic
// of f as an error, see panics.go. After Stop, f does not run and Do returns ErrStopped.
func (e *Engine) Do(f func()) error { return e.first.do(f) }

// do is Do for this loop.
func (e *loop) do(f func()) error {
	if ran, err := e.standIn(f); ran {
		return err
	}
	var err error
	var over atomic.Bool
	c, ran := &e.cmds, make(chan struct{})
	c.push(func() { err = e.command(f); over.Store(true); close(ran) })
	c.wake()
	// A loop that is awake runs f within microseconds: spinning is faster than to sleep and be
	// woken.
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

// wake wakes the loop if it sleeps. Any goroutine may call it.
func (c *commands) wake() {
	if c.sleeping.Load() {
		c.poller.kick()
	}
}

func (c *commands) push(f func()) {
	c.mu.Lock()
	*c.queue.Push() = f
	c.pending.Store(true)
	c.mu.Unlock()
}

func (c *commands) pop() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.queue.Pop()
	f := *p
	*p = nil
	c.pending.Store(c.queue.Len() > 0)
	return f
}

// inOnePass is how many commands this pass may run. Later ones wait: the loop may not have seen
// yet what their programs posted before.
func (c *commands) inOnePass() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(c.queue.Len(), commandsPerPass)
}

// run runs the first n commands, for at most commandTime.
func (c *commands) run(n int, clock *clock) {
	for begin := clock.now; n > 0; n-- {
		c.pop()()
		if clock.read(); clock.now-begin >= commandTime {
			return
		}
	}
}

// foreignArrived makes the loop collect foreign memory that has arrived. Any goroutine may call
// it.
func (c *commands) foreignArrived() {
	c.arrived.Store(true)
	c.wake()
}

// fewBells is the number of sessions up to which reading every doorbell page takes less time
// than asking the kernel which descriptors are readable.
const fewBells = 8

// wakeRung activates the sessions that have rung: work posted before a command is done before
// the command.
func (e *loop) wakeRung() {
	if len(e.bells.of) > fewBells {
		e.pollWakes()
	} else {
		e.bells.activateRung(e.clock.now)
	}
}
