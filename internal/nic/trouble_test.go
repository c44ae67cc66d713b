package nic

import (
	"testing"

	"golang.org/x/sys/unix"
)

// fullChannel makes a channel, sends it events until more wait for room, numbered from
// 0 on, and returns the client's end and how many there are.
func fullChannel(t *testing.T, s *Session, waiting int) (*eventQueue, int, uint64) {
	t.Helper()
	id, fd, err := s.CreateChannel()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	q, err := s.channels.get(id)
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	for ; len(q.waiting) < waiting; n++ {
		q.post(compEvent(n))
	}
	return q, fd, n
}

// TestFullChannels: events that found their channel full are delivered when the client has
// read, in order and to the last. One call delivers a bounded number, and a session with
// many full channels does not delay another's.
func TestFullChannels(t *testing.T) {
	n, loop := New(Config{Name: "rxe0"}), newFakeLoop()
	var s [2]*Session
	for i := range s {
		a, err := NewArena()
		if err != nil {
			t.Fatal(err)
		}
		if s[i], err = n.Open(SessionOptions{Arena: a}); err != nil {
			t.Fatal(err)
		}
		s[i].SetOwner(loop)
		t.Cleanup(func() {
			s[i].Close()
			a.Close()
		})
	}
	for range 100 {
		fullChannel(t, s[0], 1)
	}
	const waiting, limit = 100, 16
	q, fd, events := fullChannel(t, s[1], waiting)
	if !loop.loop.Troubled() {
		t.Fatal("nobody knows that channels are full")
	}
	read := uint64(0)
	for calls := 0; read < events; calls++ {
		if calls > 4*waiting/pumpEvents {
			t.Fatalf("after %d calls %d of %d events are delivered", calls, read, events)
		}
		for {
			var e event
			if _, _, err := unix.Recvfrom(fd, e.b[:], unix.MSG_DONTWAIT); err != nil {
				break
			}
			if e.element() != read {
				t.Fatalf("event %d comes where %d should", e.element(), read)
			}
			read++
		}
		before := len(q.waiting)
		loop.loop.VisitTroubled(limit)
		if sent := before - len(q.waiting); sent > limit/pumpCost*pumpEvents {
			t.Fatalf("one call sent %d events of a channel", sent)
		}
	}
	if q.stalled {
		t.Error("a channel that is not full is looked after for ever")
	}
	for _, s := range s {
		s.Close()
	}
	for range 100 {
		loop.loop.VisitTroubled(limit)
	}
	if loop.loop.Troubled() {
		t.Error("sessions that are closed are looked after for ever")
	}
}
