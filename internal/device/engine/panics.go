package engine

import (
	"fmt"
	"os"
	"runtime/debug"
)

// What a panic means, wherever the loop's work is done:
//
//   - A fault in memory that a client shares with us ends that client's session, and nobody
//     else's, whether a pass or a command touched it. The runtime turns the signal into a
//     panic (debug.SetPanicOnFault); the address says whose memory it is (nic.FaultOwner).
//     The other side of a copy goes on.
//   - Any other panic is a mistake of ours. In a command it ends the session that the command
//     is of: Do returns it as an error, and a line is told by Fail. A command changes its own session's objects, and one
//     program must not be able to end the daemon for all with a command that we get wrong.
//   - In a pass it ends the daemon: a pass is everybody's work, and nobody knows what is left
//     half done. A fault in memory that is no client's is one of these: we use what is no
//     longer ours.
//
// contain and command are the only places that recover, and fatal, which ends the program.

// ErrStopped is what Do returns when the loop has ended. It is an os.ErrClosed.
var ErrStopped = fmt.Errorf("engine: the loop has ended: %w", os.ErrClosed)

// contain makes a pass, which is f, and contains a fault of a client.
func (e *Engine) contain(f func() bool) (work bool) {
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

// command runs f: what another goroutine wants done, or a request on a line.
func (e *Engine) command(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic in a command: %v\n%s", r, debug.Stack())
			e.fault(r)
		}
	}()
	f()
	return nil
}

// fault ends the session whose memory could not be read or written; false if r is no fault,
// or one in nobody's memory.
func (e *Engine) fault(r any) bool {
	at, ok := r.(interface{ Addr() uintptr })
	if !ok {
		return false
	}
	e.stall.turn = nil // it has ended
	for n := range e.cards.of {
		victim := n.FaultOwner(at.Addr())
		if victim == nil {
			continue
		}
		e.opts.Log.Error("memory fault in a client's pages, closing its session",
			"pid", victim.Pid, "program", victim.Program, "stack", string(debug.Stack()))
		e.Detach(victim)
		victim.CloseLost()
		if e.opts.Evict != nil {
			go e.opts.Evict(victim)
		}
		return true
	}
	return false
}

// fatal makes a panic of a pass the end of the program where the loop's work is done in its
// place: whoever called may be used to surviving its own.
func fatal() {
	if p := recover(); p != nil {
		text := fmt.Sprintf("in the loop's place: %v\n%s", p, debug.Stack())
		go func() { panic(text) }()
		select {}
	}
}
