package nic

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
)

// fullChannel makes a channel, sends it events until more wait for room, numbered from
// 0 on, and returns the client's end and how many there are.
func fullChannel(t *testing.T, s *Session, waiting int) (*eventQueue, int, uint64) {
	t.Helper()
	id, fd, err := openChannel(t, s)
	if err != nil {
		t.Fatal(err)
	}
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

// TestWithdraw: the events of one object are taken back, from the channel and from what waits
// for it; those of others stay, in order, and only what waits is charged.
func TestWithdraw(t *testing.T) {
	who := account(budget.Bill{budget.State: 1 << 20})
	s := &Session{SessionOptions: SessionOptions{Account: who}, nic: New(Config{})}
	s.SetOwner(newFakeLoop())
	var end *os.File
	sink, err := socket(&end)()
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	fd := int(end.Fd())
	q := newEventQueue(s, sink)
	defer q.close()
	n := uint64(0)
	for ; len(q.waiting) < 1000; n++ {
		q.post(compEvent(n))
	}
	third := func(e *event) bool { return e.element()%3 == 0 }
	if got, want := q.withdraw(1, third), uint32((n+2)/3); got != want {
		t.Errorf("%d events withdrawn, want %d", got, want)
	}
	if want := (budget.Bill{budget.State: uint64(len(q.waiting)) * eventBill[budget.State]}); who.Used() != want {
		t.Errorf("%d events wait, charged %v, want %v", len(q.waiting), who.Used(), want)
	}
	for next := uint64(1); next < n; next++ {
		if next%3 == 0 {
			continue
		}
		q.pump()
		var e event
		if _, _, err := unix.Recvfrom(fd, e.b[:], unix.MSG_DONTWAIT); err != nil || e.element() != next {
			t.Fatalf("event %d, %v, want %d of %d", e.element(), err, next, n)
		}
	}
	if len(q.waiting) != 0 || who.Used() != (budget.Bill{}) {
		t.Errorf("%d events wait, charged %v", len(q.waiting), who.Used())
	}
}
