package nic

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
)

// Reading ahead: while the loop sends what one job has read from foreign memory, a second job
// reads what the queue pair sends next.
//
//	send queue   … 7 │ 8  9  10 │ 11  12 │ 13 …
//	                 └─ front ──┴─ back ─┴─ next: neither reads it yet
//
// A job reads several work requests, or a part of a long one, about aheadBytes. Gather takes
// the bytes out in order, and not beyond the end of the front job. When that job is spent, the
// back job becomes the front one. If Gather asks for anything but what comes next, as a
// retransmission does, both are discarded.
//
// The program may not touch the data of a posted request before it completes, so reading early
// reads the same bytes. One rule orders requests: the data of a request with a fence may be what
// an earlier READ or atomic brings. Reading ahead stops there, and at every request that is
// neither a SEND nor a WRITE.
type readAhead struct {
	turned bool // taskAhead is the front
	next   sendPos
}

// sendPos is a byte of the send queue: the position of its work request, and where it is in
// that one's data.
type sendPos struct{ pos, off uint32 }

const (
	// aheadBytes is about how much one job reads. The data of both jobs and its copy fit into a
	// processor's cache, and a job takes longer than its start.
	aheadBytes = 128 << 10
	// aheadRequests bounds the work requests of one job.
	aheadRequests = 32
	// aheadCut divides the offset at which a job ends within a request: every MTU divides it.
	aheadCut = 4096
)

// front returns the errand for the data that is sent next.
func (l *errands) front() *errand {
	if l.ahead.turned {
		return &l.of[taskAhead]
	}
	return &l.of[taskSend]
}

// back returns the errand for the data that is sent after that of front.
func (l *errands) back() *errand {
	if l.ahead.turned {
		return &l.of[taskSend]
	}
	return &l.of[taskAhead]
}

// atHand returns how many of n bytes, from off on in the request at pos, the front job has read. If
// that job did not end in these bytes, it returns n.
func (l *errands) atHand(pos, off, n uint32) uint32 {
	e := l.front()
	if e.state == errandDone && e.end.pos == pos && e.end.off > off {
		return min(n, e.end.off-off)
	}
	return n
}

// gatherForeign reads the foreign pieces of s, which are bytes of w from off on. When the job is
// done, it replaces these pieces by the bytes that were read.
func (q *qpNIC) gatherForeign(w *transport.SendWQE, off uint32, s *memory.Span) transport.Status {
	f := &q.loop.foreign
	f.recycle() // no burst is under way: this is the beginning of one
	q.qp().errand(taskSend)
	l := q.errands
	front := l.front()
	if front.state == errandDone {
		if ok, err := front.job.Stage(s, w.Pos); ok {
			if front.job.Spent() {
				front.spend()
				l.ahead.turned = !l.ahead.turned
			}
			if err != nil {
				return transport.LocProtErr
			}
			l.readAhead()
			return transport.Success
		}
	}
	if front.state != errandRunning {
		l.back().discard()
	}
	st := front.begin(transport.LocProtErr, func(j *memory.Job) { front.fillFront(j, w, off, s) })
	if front.state == errandRunning {
		l.readAhead()
	}
	return st
}

// readAhead starts the back job if there is data to read, and a free thread that no queue pair of
// the user waits for.
func (l *errands) readAhead() {
	e := l.back()
	q := e.q
	f, user := &q.loop.foreign, q.session.tenant
	if e.state != errandIdle || l.front().state == errandIdle || user.backlog.Len() > 0 || user.jobs >= tenantJobs/2 {
		return
	}
	before := l.ahead.next
	if before.pos-q.sq.cons >= q.sq.posted() || !f.pool.Free(user.uid) {
		return
	}
	j := f.newJob()
	j.Read()
	if e.fill(j, aheadBytes); j.Spent() { // there is nothing
		f.keep(j)
		return
	}
	j.Tag = e
	f.time(e)
	if !f.pool.Start(user.uid, j) {
		f.keep(j)
		e.rest()
		l.ahead.next = before
		return
	}
	f.started(e, j)
}

// fillFront makes j read s, which are bytes of w from off on, or as much of it as a job reads,
// and what follows.
func (e *errand) fillFront(j *memory.Job, w *transport.SendWQE, off uint32, s *memory.Span) {
	q, n := (*qpNIC)(e.q), uint32(s.Len())
	if n > aheadBytes {
		n = aheadBytes
		d := &q.loop.foreign.span
		d.Reset()
		q.list(w.SGE[:w.NumSGE], off, n, 0, d) // the beginning of s, so it succeeds
		s = d
	}
	j.Read()
	j.ReadMore(s, w.Pos)
	q.errands.ahead.next = sendPos{w.Pos, off}.behind(n, w)
	e.fill(j, aheadBytes-n)
}

// behind returns the position n bytes after p, in w or at the beginning of the next request.
func (p sendPos) behind(n uint32, w *transport.SendWQE) sendPos {
	if p.off += n; p.off >= w.Length {
		return sendPos{p.pos + 1, 0}
	}
	return p
}

// fill makes j read about the next most bytes, and moves the position ahead.next behind them.
func (e *errand) fill(j *memory.Job, most uint32) {
	q := (*qpNIC)(e.q)
	f, a := &q.loop.foreign, &q.errands.ahead.next
	w := &f.wqe
	for range aheadRequests {
		if !q.FetchSend(a.pos, w) || !w.Plain() || w.Flags&transport.FlagFence != 0 && a.off == 0 {
			break
		}
		n := w.Length - min(a.off, w.Length)
		if n > 0 && w.Flags&transport.FlagInline == 0 {
			if n > most {
				n = most - most%aheadCut
			}
			f.span.Reset()
			if n == 0 || q.list(w.SGE[:w.NumSGE], a.off, n, 0, &f.span) != transport.Success {
				break
			}
			j.ReadMore(&f.span, a.pos)
			most -= n
		}
		*a = a.behind(n, w)
	}
	e.end = *a
	j.Fetch()
}
