package transport

import "vrdma.dev/vrdma/internal/ib"

// This file enforces policy decisions on a queue pair: it refuses operations, or ends the connection.
// The caller makes the decisions.

// Deny sets the operations that the connection may not use, in both directions. A request for one of them
// is refused like a request with a wrong key: the requester gets REM_ACCESS_ERR. RESET clears the set.
func (q *QP) Deny(ops ib.Operations) { q.common.Attr.Denied = ops }

// Revoke ends the connection: the queue pair enters the state Error. The peer may not know that yet and
// would retry its next request for a long time. So the queue pair answers that request, once, with the
// NAK for a remote operational error.
func (q *QP) Revoke(now ib.Time, h *Env) {
	c := &q.common
	switch c.State {
	case ib.StateReset, ib.StateInit, ib.StateError:
		return
	}
	h.responder.Event(EventFatal)
	q.resp.Revoked = c.Conf.Type == ib.RC
	c.fail()
	q.endCall(now, h)
}

// dismiss answers the first request after Revoke with a NAK.
func (rs *responder) dismiss(c *respCall, b *Burst) {
	if c.State != ib.StateError {
		return
	}
	rs.Revoked = false
	// Everything before rs.PSN was executed, and a repeated request may have been.
	psn := rs.PSN
	if ib.PSNDist(psn, b.PSN) >= ib.PSNHalf {
		psn = b.PSN
	}
	rs.answer(c, KindAck, psn, NakOperation, 0, rs.MSN)
}

// operation returns the operation that a request needs.
func (k Kind) operation() ib.Operations {
	switch k {
	case KindSend, KindSendImm, KindSendInv:
		return ib.OpSend
	case KindWrite, KindWriteImm, KindAtomicWrite, KindFlush:
		return ib.OpWrite
	case KindReadReq:
		return ib.OpRead
	case KindCmpSwap, KindFetchAdd:
		return ib.OpAtomic
	}
	return 0
}

// denies reports whether Deny forbids a request.
func (c *common) denies(k Kind) bool {
	if c.Attr.Denied&k.operation() == 0 {
		return false
	}
	c.Count.Denied++
	return true
}
