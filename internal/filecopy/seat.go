package filecopy

import (
	"os"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// On a machine with two processors, sender and receiver each need one all the time. The kernel places a woken task near its
// waker, so both would often share a processor and find their chunks in the wrong cache. So each pins itself: the sender to the
// first processor of its affinity, the receiver to the last. With more processors the kernel finds an idle one, and nothing is
// pinned.
//
// Affinity belongs to threads. All threads of the process are pinned, because the runtime moves goroutines between them. A
// goroutine locked to its thread would cost one more switch whenever it waits.
//
// Over RDMA with two processors only one goroutine runs at a time: a stream's, or another that passes it work. The other processor
// belongs to the peer or the daemon, and a second thread of the runtime would be woken for nothing. Over TCP there is no daemon
// and perhaps no local peer, so GOMAXPROCS is not changed.

// seats pins this process to a processor while it has exactly one session.
type seats struct {
	mu       sync.Mutex
	sessions int         // guarded by mu
	taken    bool        // guarded by mu
	all, own unix.CPUSet // guarded by mu: the affinity before, and now
	alone    bool        // guarded by mu: one goroutine runs at a time
}

var process seats

// sit pins the process for a session: here means that the peer is on this machine, rdma that a daemon carries the data. rise undoes
// it.
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
	// GOMAXPROCS of the environment is respected.
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
		runtime.SetDefaultGOMAXPROCS() // from the affinity again
	}
}

// move changes the affinity of the threads of this process that have the affinity from. Threads with another one keep it.
func move(from, to *unix.CPUSet) {
	// A new thread inherits the affinity of its creator. After CPU hotplug other affinities may equal from.
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
