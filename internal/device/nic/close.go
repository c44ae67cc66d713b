package nic

// CloseSome is Close in pieces: it destroys about n objects and reports whether it has to be
// called again. A session may have tens of thousands, and the loop serves others besides.
// From the first call on nothing else may use the session.
func (s *Session) CloseSome(n int) (more bool) {
	if s.closed {
		return false
	}
	s.Arena.dying = true
	n = s.qps.some(n, func(q *QP) { q.detachAll(); q.destroy() })
	n = s.mws.some(n, func(w *MW) { w.free() })
	n = s.mrs.some(n, func(m *MR) { m.free() })
	n = s.srqs.some(n, func(q *SRQ) { q.ring.release() })
	n = s.cqs.some(n, func(c *CQ) { c.ring.release() })
	n = s.channels.some(n, func(q *eventQueue) { q.close() })
	n = s.ahs.some(n, func(*AH) {})
	n = s.pds.some(n, func(*PD) {})
	if n == 0 {
		return true
	}
	s.Close()
	return false
}

// some calls f for n objects at most, which are forgotten, and returns how many less than n
// there were.
func (t *table[T]) some(n int, f func(T)) int {
	for h, v := range t.items {
		if n == 0 {
			break
		}
		n--
		f(v)
		t.remove(h)
	}
	return n
}
