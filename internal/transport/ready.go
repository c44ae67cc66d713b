package transport

import "vrdma/internal/ib"

// WaitsForReceiver reports whether an RNR NAK holds the requester back.
func (q *QP) WaitsForReceiver() bool {
	return q.req.RNRAt != 0 && (q.state == ib.StateRTS || q.state == ib.StateSQD)
}

// ReceiverReady ends the wait after an RNR NAK early. The timer in the NAK is the
// receiver's guess at when it will have posted; whoever sees both ends and knows that
// it has need not wait for the guess. If others take what was posted (it may be shared),
// the try has not cost the time that a retry stands for, so it counts for none.
func (q *QP) ReceiverReady() {
	if !q.WaitsForReceiver() {
		return
	}
	r := &q.req
	r.RNRAt, r.Kick = 0, true
	if r.RNRRetry < q.attr.RNRRetry {
		r.RNRRetry++
	}
}

// Stalled reports whether requests that have arrived wait for memory: Respond takes them up.
func (q *QP) Stalled() bool { return q.resp.Stalled }

// Excuse gives the peer its full time to answer once more: whoever sees both ends knows that
// it is there and busy.
func (q *QP) Excuse(now ib.Time) {
	if q.req.RetransAt != 0 {
		q.restartTimer(now)
	}
}
