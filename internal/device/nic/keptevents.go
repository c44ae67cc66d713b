package nic

// keptEvents is a ring of events that the loop sends later. An event wakes a program with a system
// call of some microseconds, or 10 to 20 if the program preempts the loop on its processor. A message
// may cause several events. While a NIC of class latency is busy, the loop keeps events (KeepEvents)
// and sends them one at a time (SendEvent). It polls doorbells after each.
type keptEvents struct {
	on    bool
	at, n int // list[at:at+n], modulo mostKept
	list  [mostKept]keptEvent
}

type keptEvent struct {
	to    *eventQueue
	event event
}

// mostKept is the maximum number of kept events. When the ring is full, a new event sends the oldest.
const mostKept = 32

// KeepEvents switches keeping on or off. After the switch to off, new events are still kept until all kept events are
// sent, so that the order stays.
func (l *Loop) KeepEvents(on bool) { l.kept.on = on }

// EventsKept reports whether there are events that SendEvent sends.
func (l *Loop) EventsKept() bool { return l.kept.n > 0 }

// SendEvent sends the oldest kept event, and returns its session.
func (l *Loop) SendEvent() *Session {
	k := &l.kept
	o := k.list[k.at]
	k.list[k.at] = keptEvent{}
	k.at, k.n = (k.at+1)%mostKept, k.n-1
	o.to.send(o.event)
	return o.to.session
}

// sendKept sends all kept events.
func (l *Loop) sendKept() {
	for l.EventsKept() {
		l.SendEvent()
	}
}

// keep adds an event to the ring. It returns false if the caller has to send the event itself.
func (l *Loop) keep(to *eventQueue, e event) bool {
	k := &l.kept
	if !k.on && k.n == 0 {
		return false
	}
	if k.n == mostKept {
		l.SendEvent()
	}
	k.list[(k.at+k.n)%mostKept] = keptEvent{to, e}
	k.n++
	return true
}
