//go:build !race

package nic

import (
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A completion of an armed queue, and its event, allocate nothing.
func TestArmedDoesNotAllocate(t *testing.T) {
	s := newRig(t, DefaultLimits).open()
	c, h, fd := armedCQ(t, s)
	w, b := armWord(s, h), make([]byte, 8)
	if n := testing.AllocsPerRun(100, func() {
		w.Or(protocol.ArmAll)
		c.push(&completion{})
		c.ring.setConsumer(c.prod)
		syscall.Read(fd, b)
	}); n != 0 {
		t.Errorf("an armed completion allocates %v times", n)
	}
}

// An event that is kept and sent allocates nothing.
func TestKeptEventsDoNotAllocate(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s, l := r.open(), r.loop.loop
	if n := testing.AllocsPerRun(100, func() { l.KeepEvents(true); s.async.post(compEvent(1)); l.SendEvent() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	l.KeepEvents(false)
}
