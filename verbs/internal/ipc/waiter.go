package ipc

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A Waiter is the state of a goroutine that polls an empty queue. shim/poll.c and shim/place.c do the same
// for C programs. docs/reference/uverbs.md ("Spinning") explains it: the daemon may need the same processor.
type Waiter struct {
	idleYields int    // consecutive yields that returned at once
	announced  bool   // the doorbell page announces that this thread is about to sleep
	word       uint32 // value of the waiting word at the announcement
	sharing    sharing
}

const (
	maxIdleYields = 4                      // after this many yields that returned at once, the next call sleeps
	atOnce        = 800 * time.Nanosecond  // a yield that took less time switched to no other thread
	maxSleep      = 100 * time.Microsecond // longest sleep
)

// sharing measures how long the daemon has been on the processor of the waiting thread.
type sharing struct{ since, seen, enough time.Duration }

const (
	firstMigration = 250 * time.Microsecond // shared time before the first migration
	lastMigration  = time.Second            // longest shared time between two migrations
	apart          = 200 * time.Microsecond // after this time apart, the measurement starts again
)

// began is the origin of the package's time values.
var began = time.Now()

// Yield implements Backend.
func (d *Daemon) Yield(w *Waiter, first bool) {
	if first {
		w.idleYields, w.announced = 0, false
	}
	switch {
	case !d.onOurProcessor():
		yield()
	case w.idleYields >= maxIdleYields:
		d.announceOrSleep(w)
	default:
		before := time.Since(began)
		yield()
		after := time.Since(began)
		if w.idleYields++; after-before >= atOnce {
			w.idleYields = 0
		}
		w.sharing.sharedNow(after)
	}
}

// onOurProcessor reports whether the daemon is awake, runs on this thread's processor, and would wake this thread.
func (d *Daemon) onOurProcessor() bool {
	on := protocol.Shared32(d.arena.Mem, protocol.DoorbellCPU).Load()
	return on != 0 && protocol.Shared32(d.arena.Mem, protocol.DoorbellArmed).Load() == 0 && on-1 == processor()
}

// announceOrSleep announces a sleep in the first call, and in the next call sleeps until the daemon has written a
// completion. shim/protocol.h has the rules.
func (d *Daemon) announceOrSleep(w *Waiter) {
	waiting := protocol.Shared32(d.arena.Mem, protocol.DoorbellWaiting)
	if !w.announced {
		w.announced, w.word = true, waiting.Or(protocol.WaitAnnounced)|protocol.WaitAnnounced
		return
	}
	w.announced = false
	asleep := w.word | protocol.WaitAsleep
	if !waiting.CompareAndSwap(w.word, asleep) && waiting.Load() != asleep {
		return // a completion has been written since the announcement
	}
	d.asleep.Add(1)
	woken := futexWait(waiting, asleep, maxSleep)
	if d.asleep.Add(-1) > 0 && woken {
		futexWake(waiting) // the daemon wakes only one thread
	}
}

// sharedNow records that the daemon is on this thread's processor. After a while the thread leaves the
// processor to the daemon, which works for both sides of a connection.
func (c *sharing) sharedNow(now time.Duration) {
	if now-c.seen > lastMigration {
		c.enough = firstMigration
	}
	if now-c.seen > apart {
		c.since = now
	}
	c.seen = now
	if now-c.since < c.enough {
		return
	}
	c.since = now
	c.enough = min(2*c.enough, lastMigration)
	migrate()
}

// migrate moves this thread to another processor, if its affinity mask allows one: it removes the current
// processor from the mask for a moment. It restores the mask, unless another thread changed it meanwhile.
func migrate() {
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

// Yield implements Backend. The kernel sends in the caller's context, but its other work needs a processor.
func (k *Kernel) Yield(*Waiter, bool) { yield() }
