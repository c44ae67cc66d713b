package engine

import (
	"runtime/debug"

	"vrdma/internal/nic"
)

// safely runs f and survives a fault in memory that a client shares with us: the
// runtime turns the signal into a panic (debug.SetPanicOnFault). The session that
// owns the memory loses it (nic.FaultOwner); the other side of the copy goes on.
func (e *Engine) safely(f func() bool) (work bool) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		addr, ok := r.(interface{ Addr() uintptr })
		if !ok {
			panic(r) // a bug of ours: no client's fault
		}
		if !e.fault(addr.Addr()) {
			panic(r) // nobody's memory: we use what is no longer ours
		}
		work = true
	}()
	return f()
}

// fault ends the session whose memory could not be read or written; false if it is
// nobody's.
func (e *Engine) fault(addr uintptr) bool {
	victim := e.nic.FaultOwner(addr)
	if victim == nil {
		return false
	}
	e.opts.Log.Error("memory fault in a client's pages, closing its session",
		"pid", victim.Pid, "program", victim.Program, "stack", string(debug.Stack()))
	e.Detach(victim)
	victim.Close()
	if e.opts.Evict != nil {
		go e.opts.Evict(victim)
	}
	return true
}

var _ nic.Link = (*Engine)(nil)
