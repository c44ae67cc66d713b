package nic

import (
	"slices"
	"testing"
)

// TestKeptEvents: events that are kept are sent one at a time and in order, no more than some are
// kept, and they are withdrawn with their object and gone with their channel.
func TestKeptEvents(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s := r.open()
	ch, fd, err := openChannel(t, s)
	wants(t, "CreateChannel", err, 0)
	q, _ := s.channels.get(ch)
	l := r.loop.loop
	next := uint64(0)
	post := func(n int) {
		for range n {
			q.post(compEvent(next))
			next++
		}
	}
	expect := func(what string, want ...uint64) {
		t.Helper()
		if got := readEvents(fd); !slices.Equal(got, want) {
			t.Errorf("%s: events %v, want %v", what, got, want)
		}
	}
	post(1)
	expect("nothing is kept", 0)

	l.KeepEvents(true)
	post(2)
	expect("kept")
	if l.SendEvent() != s {
		t.Error("an event of another session")
	}
	expect("the first", 1)
	l.KeepEvents(false)
	post(1)
	expect("behind those that are kept")
	for l.EventsKept() {
		l.SendEvent()
	}
	expect("the others", 2, 3)

	l.KeepEvents(true)
	post(mostKept + 2)
	expect("too many", 4, 5)
	if got := q.withdraw(1, func(e *event) bool { return e.element() != 6 }); got != mostKept-1 || l.EventsKept() {
		t.Errorf("%d events withdrawn, want %d, and none kept", got, mostKept-1)
	}
	expect("withdrawn", 6)

	post(1)
	q.close()
	l.SendEvent()
	if l.KeepEvents(false); l.EventsKept() || len(q.waiting) > 0 {
		t.Error("an event of a channel that is closed is kept")
	}
}
