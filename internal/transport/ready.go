package transport

// WaitsForReceiver reports whether an RNR NAK holds the requester back.
func (q *QP) WaitsForReceiver() bool { return q.req.RNRAt != 0 && (q.state == RTS || q.state == SQD) }

// ReceiverReady ends the wait after an RNR NAK early. The timer in the NAK is the
// receiver's guess at when it will have posted; whoever sees both ends and knows that
// it has need not wait for the guess.
func (q *QP) ReceiverReady() {
	if q.WaitsForReceiver() {
		q.req.RNRAt = 0
		q.req.Kick = true
	}
}
