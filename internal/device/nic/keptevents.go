package nic

// An event wakes a program. That is a system call of some microseconds, and of 10 or 20 if the
// program runs on the loop's processor: it does so at once. A message may make several events. While
// somebody is served for whom that is long, the loop has events kept (KeepEvents) and sends them one
// at a time (SendEvent), so that it can look at doorbells between two of them.
type keptEvents struct {
	on    bool
	at, n int // list[at:at+n], round the end
	list  [mostKept]keptEvent
}

type keptEvent struct {
	to    *eventQueue
	event event
}

// mostKept bounds how many events are kept. With more, the oldest is sent for each that comes.
const mostKept = 32

// KeepEvents has events kept from now on, or sent as they come after those that are kept.
func (l *Loop) KeepEvents(on bool) { l.kept.on = on }

// EventsKept reports whether there are events that SendEvent sends.
func (l *Loop) EventsKept() bool { return l.kept.n > 0 }

// SendEvent sends the event that was kept first, and returns whose it is.
func (l *Loop) SendEvent() *Session {
	k := &l.kept
	o := k.list[k.at]
	k.list[k.at] = keptEvent{}
	k.at, k.n = (k.at+1)%mostKept, k.n-1
	o.to.send(o.event)
	return o.to.session
}

// sendKept sends all that are kept.
func (l *Loop) sendKept() {
	for l.EventsKept() {
		l.SendEvent()
	}
}

// keep keeps an event, if events are kept.
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
