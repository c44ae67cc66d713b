package engine

import "vrdma.dev/vrdma/internal/device/fifo"

// starved are the queue pairs whose peer, on this host, had no receive posted. Posting a receive
// rings no doorbell, and the timer in the RNR NAK is a guess. While the loop is awake it therefore
// looks at the peer's receive queue itself. Looks go round the sessions, like turns.
type starved struct {
	flows fifo.Queue[*flow] // sessions with starved queue pairs
	n     int               // queue pairs of all sessions
}

// starvedLooks bounds the looks in one pass. Each is a cache miss.
const starvedLooks = 2

// add records that t waits for its peer to post a receive.
func (s *starved) add(t *task) {
	f := &t.c.flow
	if f.gone || t.starved {
		return
	}
	t.starved = true
	*f.starved.Push() = t
	s.n++
	s.queue(f)
}

// queue puts f at the end of flows.
func (s *starved) queue(f *flow) {
	if !f.starving {
		f.starving = true
		*s.flows.Push() = f
	}
}

// retry schedules queue pairs whose peer has posted a receive.
func (s *starved) retry() {
	for range min(s.n, starvedLooks) {
		f := *s.flows.Pop()
		t := *f.starved.Pop()
		s.n--
		t.starved = false
		if f.starving = false; f.starved.Len() > 0 {
			s.queue(f)
		}
		if !f.gone && t.starvesStill() { // it reads a client's memory, and may fault
			s.add(t)
		}
	}
}

// starvesStill schedules t if its peer has posted a receive, and reports whether t has to wait
// longer.
func (t *task) starvesStill() bool {
	m := t.q.Transport()
	peer := t.peer
	switch {
	case t.waitsForMove(), t.q.Gone() || peer == nil || peer.q.Gone() || !m.WaitsForReceiver():
		return false
	case t.e.faults != nil && t.e.faults.refusing(peer):
		return true
	case peer.q.HasReceive():
		m.ReceiverReady()
		t.schedule()
		return false
	}
	return true
}
