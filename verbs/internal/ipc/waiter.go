package ipc

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A Waiter is somebody who polls in vain. shim/poll.c and shim/place.c do the same for C programs, and
// docs/reference/uverbs.md ("Spinning") says why: on few processors the device needs one, too.
type Waiter struct {
	vain      int    // yields in a row that returned at once
	announced bool   // the daemon was told that we are about to sleep
	word      uint32 // the word of that announcement
	company   company
}

const (
	vainMost = 4                      // so many yields that returned at once, and the next is a sleep
	atOnce   = 800 * time.Nanosecond  // to another thread and back takes longer
	napMost  = 100 * time.Microsecond // one sleep
)

// company is how long the daemon has been on the processor that we wait on.
type company struct{ since, seen, enough time.Duration }

const (
	companyFirst = 250 * time.Microsecond // of waiting in the daemon's company, until the first move
	companyLast  = time.Second            // and at most between two moves
	apart        = 200 * time.Microsecond // so long without it, and it begins anew
)

// began is what moments are counted from.
var began = time.Now()

// GiveWay implements Door.
func (d *Daemon) GiveWay(w *Waiter, first bool) {
	if first {
		w.vain, w.announced = 0, false
	}
	switch {
	case !d.here():
		yield()
	case w.vain >= vainMost:
		d.rest(w)
	default:
		before := time.Since(began)
		yield()
		after := time.Since(began)
		if w.vain++; after-before >= atOnce {
			w.vain = 0
		}
		w.company.shared(after)
	}
}

// here reports whether the daemon is awake, on our processor, and would wake us.
func (d *Daemon) here() bool {
	on := protocol.Shared32(d.arena.Mem, protocol.DoorbellCPU).Load()
	return on != 0 && protocol.Shared32(d.arena.Mem, protocol.DoorbellArmed).Load() == 0 && on-1 == processor()
}

// rest announces a sleep, and the next time sleeps until the daemon has written a completion.
// shim/protocol.h has the rules.
func (d *Daemon) rest(w *Waiter) {
	waiting := protocol.Shared32(d.arena.Mem, protocol.DoorbellWaiting)
	if !w.announced {
		w.announced, w.word = true, waiting.Or(protocol.WaitAnnounced)|protocol.WaitAnnounced
		return
	}
	w.announced = false
	asleep := w.word | protocol.WaitAsleep
	if !waiting.CompareAndSwap(w.word, asleep) && waiting.Load() != asleep {
		return // something was completed since
	}
	d.asleep.Add(1)
	woken := futexWait(waiting, asleep, napMost)
	if d.asleep.Add(-1) > 0 && woken {
		futexWake(waiting) // the daemon wakes only one
	}
}

// shared notes that the daemon is on our processor now. After a while we leave it to the daemon: it has
// something to do for both sides of a connection, who can well take turns.
func (c *company) shared(now time.Duration) {
	if now-c.seen > companyLast {
		c.enough = companyFirst
	}
	if now-c.seen > apart {
		c.since = now
	}
	c.seen = now
	if now-c.since < c.enough {
		return
	}
	c.since = now
	c.enough = min(2*c.enough, companyLast)
	leave()
}

// leave moves this thread to another processor, if it may use one: for a moment it may not use this
// one. Nobody asked for it, so nobody must see it: it is undone unless another has changed it since.
func leave() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var may, others, now unix.CPUSet
	if unix.SchedGetaffinity(0, &may) != nil {
		return
	}
	others = may
	others.Clear(int(processor()))
	if others.Count() > 0 && unix.SchedSetaffinity(0, &others) == nil && unix.SchedGetaffinity(0, &now) == nil && now == others {
		_ = unix.SchedSetaffinity(0, &may)
	}
}

// GiveWay implements Door. The kernel works in our place when it is asked to send; what it does for
// others needs a processor.
func (k *Kernel) GiveWay(*Waiter, bool) { yield() }
