package simnet

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
)

// Memory that is not available at once. With Config.Later a host sometimes answers transport.Later, as a NIC does whose memory
// another thread must fetch first. The operation of a burst may be complete by then or not; the burst is offered again, or lost.

// inboxMost is how many bursts wait at an endpoint.
const inboxMost = 32

// done is an atomic operation that was executed but not reported yet.
type done struct {
	kind          transport.Kind
	rkey          uint32
	va            uint64
	compare, swap uint64
	old           uint64
}

// later decides whether to answer Later.
func (e *Endpoint) later() bool {
	l := e.loop
	if p := l.net.Later; p == 0 || l.rand.Float64() >= p {
		return false
	}
	l.count.Delayed++
	e.asked = true
	return true
}

// receive passes b to the queue pair, or keeps it.
func (l *loop) receive(to *Endpoint, b *transport.Burst) {
	if len(to.inbox) == 0 && to.QP.Receive(to.now(), b, to.Env()) {
		return
	}
	l.scratch.Held = true
	if len(to.inbox) >= inboxMost && !to.local() {
		l.count.Lost++
		return
	}
	f := flight{b: *b, data: flatten(b)}
	f.b.CE, f.b.Data = false, nil
	to.inbox = append(to.inbox, f)
}

// offer passes the first waiting burst to e again, unless it is lost.
func (l *loop) offer(e *Endpoint) {
	f := &e.inbox[0]
	if !e.local() && l.rand.Float64() < l.net.Drop {
		l.count.Lost++
	} else {
		var s memory.Span
		s.Add(f.data)
		f.b.Data = &s
		if !e.QP.Receive(e.now(), &f.b, e.Env()) {
			return
		}
	}
	e.inbox = e.inbox[1:]
}
