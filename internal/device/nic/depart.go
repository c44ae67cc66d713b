package nic

// A NIC moves to another host. Its programs let go of this daemon, and find the other host's daemon by themselves: their descriptors
// do not travel. Events that they have not read from event files travel with the state.

// TakeBack moves the events that the client has not read, from the event files of s to st, a state of s. It clears the counters of
// the queue pairs in st: what they have counted stays with this host. It runs on the loop, right after Freeze.
func (s *Session) TakeBack(st *SessionState) {
	for i := range st.Channels {
		c := &st.Channels[i]
		if q, err := s.channels.get(c.Handle); err == nil {
			c.Waiting = append(q.takeBack(), c.Waiting...)
		}
	}
	if s.async != nil && st.Async != nil {
		st.Async.Waiting = append(s.async.takeBack(), st.Async.Waiting...)
	}
	for i := range st.QPs {
		st.QPs[i].Transport.Common.Count = QPState{}.Transport.Common.Count
	}
}

// takeBack takes all events that the client has not read.
func (q *eventQueue) takeBack() (all []byte) {
	if q.closed {
		return nil
	}
	for {
		e, n := q.sink.Withdraw()
		if n == 0 {
			return all
		}
		all = append(all, e[:n]...)
	}
}

// Continue makes a NIC that has no sessions continue with the numbers of one on another host. Counters stay its own.
// It runs on the loop.
func (n *NIC) Continue(st *NICState) { n.serial = max(n.serial, st.Serial) }
