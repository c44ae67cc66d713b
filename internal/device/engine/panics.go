package engine

import (
	"fmt"
	"os"
	"runtime/debug"

	"vrdma.dev/vrdma/internal/device/nic"
)

// What a panic means, on the loop and in a stand-in:
//
//   - A fault in memory that a client shares with the daemon ends the session of that client and no
//     other, whether a pass or a command touched the memory. The runtime turns the signal into a
//     panic (debug.SetPanicOnFault), and nic.FaultOwner finds the session by the address. The other
//     side of a copy continues.
//   - Any other panic is a bug of the daemon. In a command it ends the session of the command: Do
//     returns it as an error, or Handler.Fail reports it. A command changes only objects of its own
//     session, and a bug in one must not let a program end the daemon.
//   - In a pass a bug ends the daemon: a pass works for all sessions, and may leave any of them in an
//     inconsistent state. A fault in memory of no client is such a bug.
//
// Only contain, command and mailboxes.contain recover, and fatal, which ends the program.

// ErrStopped is the error of Do when the loop has ended. It is an os.ErrClosed.
var ErrStopped = fmt.Errorf("engine: the loop has ended: %w", os.ErrClosed)

// contain runs f, a pass, and contains faults in clients' memory.
func (e *loop) contain(f func() bool) (work bool) {
	defer func() {
		if r := recover(); r != nil {
			if !e.fault(r) {
				panic(r)
			}
			work = true
		}
	}()
	return f()
}

// command runs f: a command of another goroutine, or a request on a connection.
func (e *loop) command(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic in a command: %v\n%s", r, debug.Stack())
			e.fault(r)
		}
	}()
	f()
	return nil
}

// fault ends the session whose memory faulted. It returns false if r is no fault, or one in memory of
// no session.
func (e *loop) fault(r any) (ok bool) {
	at, ok := r.(interface{ Addr() uintptr })
	if !ok {
		return false
	}
	e.stall.turn = nil // it has ended
	// The victim is known before this loop waits for the first one: another command may close it meanwhile.
	victim, stack := e.faultOwner(at.Addr()), string(debug.Stack())
	if victim == nil {
		return false
	}
	e.onFirst(func() { e.loops.first.evict(victim, stack) })
	return true
}

// faultOwner returns the session whose memory contains addr; nil: none does.
func (e *loop) faultOwner(addr uintptr) *nic.Session {
	for n := range e.adapters.of {
		if s := n.FaultOwner(addr); s != nil {
			return s
		}
	}
	return nil
}

// evict ends a session whose memory faulted, unless that was done already. No other loop runs.
func (e *loop) evict(victim *nic.Session, stack string) {
	if victim.Closed() {
		return
	}
	e.opts.Log.Error("memory fault in a client's pages, closing its session", "pid", victim.Pid, "program", victim.Program, "stack", stack)
	e.loops.detach(victim)
	victim.CloseLost()
	if e.opts.Evict != nil {
		go e.opts.Evict(victim)
	}
}

// fatal ends the program after a panic in a stand-in's pass. The goroutine that stands in may recover
// from its own panics, and must not recover from this one.
func fatal() {
	if p := recover(); p != nil {
		text := fmt.Sprintf("in the loop's place: %v\n%s", p, debug.Stack())
		go func() { panic(text) }()
		select {}
	}
}
