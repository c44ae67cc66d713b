package engine

import (
	"context"
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
)

// haltLook is how long a halting loop sleeps before it looks again whether threads beside it have ended.
const haltLook = 50 * time.Microsecond

// Halt stops the data path between two passes, and runs f on the loop while nothing moves: no packet is read, no
// doorbell looked at, no queue pair has a turn. Then the loop continues as if nothing had happened. It returns the
// error of f.
//
// Before f runs,
//
//   - mailboxes are shut, and requests in them are served: later ones wait in sockets,
//   - no thread writes foreign memory for a queue pair, and bursts in inboxes have been taken: a thread may have
//     executed an atomic operation whose burst is not taken, and a peer would repeat it,
//   - events, ACKs, management datagrams and packets that waited have been sent.
//
// Threads may still read: what they bring is not used, or read again by the next owner of the queue pair. Packets in
// the stash of package transport and ACKs that a cap holds back are not part of any state. For the next owner they
// count as lost; peers send or ask again.
//
// If that takes longer than ctx allows, Halt returns an error that names the session, and f does not run.
func (e *Engine) Halt(ctx context.Context, f func() error) error {
	var err error
	if failed := e.Do(func() { err = e.first.halt(ctx, f) }); failed != nil {
		return failed
	}
	return err
}

func (e *loop) halt(ctx context.Context, f func() error) error {
	defer e.stall.seen.Store(false) // f may take long; no memory is to blame
	e.finishRequests(ctx)
	for left := e.loops.gather(); len(left) > 0; left = e.loops.gather() {
		for _, o := range e.loops.holds {
			o.contain(o.settle)
		}
		if s := left[0].session; ctx.Err() != nil {
			return fmt.Errorf("engine: memory of process %d (%s) of NIC %s does not arrive: %w", s.Pid, s.Program, s.NIC().Name, ctx.Err())
		}
		time.Sleep(haltLook)
	}
	for {
		e.contain(e.settle)
		s := e.unsettled()
		if s == nil {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("engine: memory of process %d (%s) of NIC %s does not arrive: %w", s.Pid, s.Program, s.NIC().Name, ctx.Err())
		}
		time.Sleep(haltLook)
	}
	for e.contain(e.sendAll) {
		if ctx.Err() != nil {
			return fmt.Errorf("engine: the network does not take what waits to be sent: %w", ctx.Err())
		}
		time.Sleep(haltLook)
	}
	e.wakeWaiters(true)
	if e.net.tap != nil {
		e.net.tap.Flush()
	}
	defer e.lookAgain()
	return f()
}

// lookAgain looks at every doorbell and gives every queue pair a turn. If f has passed them to another loop, and that
// has failed, the other loop may have taken doorbells.
func (e *loop) lookAgain() {
	e.clock.read()
	for _, b := range e.bells.of {
		e.bells.activate(b, e.clock.now)
		b.client.tasks.each((*task).schedule)
	}
}

// finishRequests shuts all mailboxes, and serves the requests that clients left in them before.
func (e *loop) finishRequests(ctx context.Context) {
	for l := &e.handlers; ctx.Err() == nil; {
		for l.at < l.n {
			e.serveHandlers()
		}
		if l.at, l.n = 0, 0; len(l.boxes.open) == 0 {
			return
		}
		l.shutMailboxes()
	}
}

// settle takes what other loops have handed over, and continues what waits for threads that write foreign memory. It always
// returns false.
func (e *loop) settle() bool {
	e.clock.read()
	for e.inward.due() {
		e.takeCrossed()
	}
	e.local.deliverReplies()
	e.cmds.arrived.Store(true)
	e.local.retryForeign(&e.cmds.arrived)
	e.local.expireForeign(e.clock.now)
	for t := range e.local.inboxes.of {
		t.offer()
		e.local.deliverReplies()
	}
	e.shared.EachTaking(func(q *nic.QP) {
		if t, m := taskOf(q), q.Transport(); !t.parked && m.Stalled() {
			m.Respond(e.clock.now, 1, q.Env())
			e.local.deliverReplies()
			t.changed()
		}
	})
	return false
}

// unsettled returns a session whose memory a thread writes, or has written for a burst that is not taken; nil: there
// is none.
func (e *loop) unsettled() (s *nic.Session) {
	for t := range e.local.inboxes.of {
		return t.q.Session()
	}
	e.shared.EachTaking(func(q *nic.QP) { s = q.Session() })
	for n := range e.adapters.of {
		n.EachSession(func(o *nic.Session) {
			if o.Space != nil && o.Space.Writing() {
				s = o
			}
		})
	}
	return s
}

// sendAll sends what waits, and reports whether something still does.
func (e *loop) sendAll() (more bool) {
	e.clock.read()
	for e.shared.EventsKept() {
		e.shared.SendEvent()
	}
	e.local.deliverReplies()
	if e.mgmt.run() {
		more = true
	}
	if e.frames.waiting.Load() {
		e.frames.send(e.net.overlay)
	}
	if e.net.any() {
		e.net.acks.flush(e.clock.now)
		more = e.net.flushPort() || more
	}
	return more || e.shared.EventsKept() || e.local.replies.Len() > 0
}
