package filecopy

import (
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Two processes that copy to each other on a machine with two processors each need one of them all the
// time: one reads, the other writes. The kernel puts who is woken where its waker is, so they would often
// share one while the other has nothing to do, and find their chunks in the wrong caches: that was a
// third more time. So each keeps to a seat, the sender to the first processor that it may use and the
// receiver to the last. With more processors the kernel finds a free one, and there are no seats.
//
// Affinity is a thing of threads. All of the process are moved, and not only the one that copies: the
// runtime moves a goroutine between them, and one that is locked to its thread costs another switch every
// time that it waits.
//
// Over RDMA, whoever the peer is, with two processors one goroutine runs at a time: a stream's, and now and
// then another one's that hands it something. The other processor is the peer's, or the daemon's. A second
// thread of the runtime would only be woken in vain. Over TCP there is no daemon, and perhaps no
// peer on this machine: all streams send and sum, as the runtime has it.

// seats are those of this process. It has one while it has one session: who serves several leaves it to
// the kernel.
type seats struct {
	mu       sync.Mutex
	sessions int         // guarded by mu
	taken    bool        // guarded by mu
	all, own unix.CPUSet // guarded by mu: before, and now
	alone    bool        // guarded by mu: one goroutine runs at a time
}

var process seats

// sit takes a seat for a session, with somebody on the same machine if here says so and through a daemon
// if rdma does, and returns how to give it up.
func (p *seats) sit(sends, here, rdma bool) (rise func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sessions++; p.sessions == 1 {
		p.take(sends, here, rdma)
	} else {
		p.leave()
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.sessions--
		p.leave()
	})
}

func (p *seats) take(sends, here, rdma bool) {
	if unix.SchedGetaffinity(0, &p.all) != nil || p.all.Count() != 2 {
		return
	}
	// Who was told how many keeps that.
	if rdma && os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) == 2 {
		runtime.GOMAXPROCS(1)
		p.alone = true
	}
	if !here {
		return
	}
	first := 0
	for !p.all.IsSet(first) {
		first++
	}
	if p.own = p.all; sends {
		p.own = unix.CPUSet{}
		p.own.Set(first)
	} else {
		p.own.Clear(first)
	}
	p.taken = true
	move(&p.all, &p.own)
}

func (p *seats) leave() {
	if p.taken {
		p.taken = false
		move(&p.own, &p.all)
	}
	if p.alone {
		p.alone = false
		runtime.SetDefaultGOMAXPROCS() // by the processors that it may use again, and follows them
	}
}

// move gives the threads of this process that may use some processors others. Who was given something
// else by somebody keeps it.
func move(from, to *unix.CPUSet) {
	// A thread that is made meanwhile has the affinity of the one that made it. Where a processor has gone, others may read as from.
	done := make(map[int]bool)
	for moved := *from != *to; moved; {
		moved = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, t := range tasks {
			id, err := strconv.Atoi(t.Name())
			var now unix.CPUSet
			if err == nil && !done[id] && unix.SchedGetaffinity(id, &now) == nil && now == *from && unix.SchedSetaffinity(id, to) == nil {
				moved, done[id] = true, true
			}
		}
	}
}
