package simnet

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
)

// Memory that is not at hand. With Config.Later a host answers transport.Later now and
// then, as a NIC does whose memory has to be fetched by somebody else first. What a burst
// was to do may have been done by then, or not; the burst is offered again, or lost.

// inboxMost is how many bursts wait at an endpoint.
const inboxMost = 32

// done is an atomic operation that was carried out and not yet told of.
type done struct {
	kind          transport.Kind
	rkey          uint32
	va            uint64
	compare, swap uint64
	old           uint64
}

// later decides whether to answer Later.
func (e *Endpoint) later() bool {
	n := e.net
	if n.Later == 0 || n.Rand.Float64() >= n.Later {
		return false
	}
	n.Delayed++
	e.asked = true
	return true
}

// receive gives b to the queue pair, or keeps it.
func (n *Net) receive(to *Endpoint, b *transport.Burst) {
	if len(to.inbox) == 0 && to.QP.Receive(to.now(), b, to.Env()) {
		return
	}
	n.scratch.Held = true
	if len(to.inbox) >= inboxMost && !n.Local {
		n.Lost++
		return
	}
	f := flight{b: *b, data: flatten(b)}
	f.b.CE, f.b.Data = false, nil
	to.inbox = append(to.inbox, f)
}

// offer gives e the first burst that waits for it once more, unless it is lost.
func (n *Net) offer(e *Endpoint) {
	f := &e.inbox[0]
	if !n.Local && n.Rand.Float64() < n.Drop {
		n.Lost++
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
