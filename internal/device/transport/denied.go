package transport

import "vrdma.dev/vrdma/internal/ib"

// Rules may take operations away from a connection, and end it. Which and when is not decided
// here: the queue pair is told.

// Deny takes operations away from the connection, in both directions; others come back. A
// request for one of them is refused as one with a wrong key is: REM_ACCESS_ERR for who asks. RESET
// ends it.
func (q *QP) Deny(ops ib.Operations) { q.common.Attr.Denied = ops }

// Revoke ends the connection: the queue pair fails. Its peer may not know that yet, and would
// repeat its next request in vain for long: that one is answered, once, with the NAK of a remote
// operational error.
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

// dismiss answers the first request after Revoke.
func (rs *responder) dismiss(c *respCall, b *Burst) {
	if c.State != ib.StateError {
		return
	}
	rs.Revoked = false
	// All before rs.PSN was carried out, and what is repeated may have been.
	psn := rs.PSN
	if ib.PSNDist(psn, b.PSN) >= ib.PSNHalf {
		psn = b.PSN
	}
	rs.answer(c, KindAck, psn, NakOperation, 0, rs.MSN)
}

// operation is what a request does to the responder.
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

// denies reports whether a request is for an operation that was taken away. Most connections
// have all of them.
func (c *common) denies(k Kind) bool {
	if c.Attr.Denied&k.operation() == 0 {
		return false
	}
	c.Count.Denied++
	return true
}
