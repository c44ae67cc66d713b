package nic

import (
	"sync/atomic"
	"syscall"
	"testing"

	"vrdma/internal/protocol"
	"vrdma/internal/transport"
)

// armWord is a queue's word as its client has it.
func armWord(s *Session, handle uint32) *atomic.Uint32 {
	return shared32(s.Arena.mem, protocol.ArmWords+int(handle)*protocol.ArmStride)
}

// armedCQ is a queue that reports to a channel of its own.
func armedCQ(t *testing.T, s *Session) (c *CQ, handle uint32, fd int) {
	t.Helper()
	ch, fd, err := openChannel(t, s)
	wants(t, "CreateChannel", err, 0)
	handle = must(s.CreateCQ(CQParams{CQE: 10, Channel: int32(ch), UserHandle: 77}))(t).Handle
	c, _ = s.cqs.get(handle)
	return c, handle, fd
}

// A client arms by setting a bit of its word, and the word says whether it may: the events are
// those of the command.
func TestArmInSharedMemory(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s := r.open()
	c, h, fd := armedCQ(t, s)
	w := armWord(s, h)
	const solicited, all = protocol.ArmSolicited, protocol.ArmAll
	for _, tc := range []struct {
		name string
		set  uint32
		push completion
		want int
		left uint32
	}{
		{"not armed", 0, completion{solicited: true}, 0, 0},
		{"for all", all, completion{}, 1, 0},
		{"once only", 0, completion{}, 0, 0},
		{"for solicited, one that is not", solicited, completion{}, 0, solicited},
		{"still, one that is", 0, completion{solicited: true}, 1, 0},
		{"for solicited, an error", solicited, completion{status: transport.WRFlushErr}, 1, 0},
		{"for both", solicited | all, completion{}, 1, 0},
		{"with bits that mean nothing", 0xfffffff8, completion{solicited: true}, 0, 0xfffffff8},
		{"with every bit", 0xffffffff, completion{}, 1, 0xfffffff8},
	} {
		w.Or(tc.set)
		c.push(&tc.push)
		if got := readEvents(fd); len(got) != tc.want {
			t.Errorf("%s: events %v, want %d", tc.name, got, tc.want)
		}
		if got := w.Load(); got != protocol.ArmReady|tc.left {
			t.Errorf("%s: the word is %#x, want %#x", tc.name, got, protocol.ArmReady|tc.left)
		}
		c.ring.setConsumer(c.prod)
	}
	// The command sets the same bits, and what the client does to READY is its own matter.
	w.Store(0)
	wants(t, "ReqNotify", s.ReqNotify(h, true), 0)
	wants(t, "ReqNotify", s.ReqNotify(h, false), 0)
	if got := w.Load(); got != solicited|all {
		t.Errorf("after two commands the word is %#x", got)
	}
	c.push(&completion{})
	if got := readEvents(fd); len(got) != 1 {
		t.Errorf("armed by command: events %v, want 1", got)
	}
}

// A queue stays armed when it is resized, and the next queue with its handle is not armed,
// whatever the client wrote meanwhile.
func TestArmedWhileResizedAndDestroyed(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s := r.open()
	c, h, fd := armedCQ(t, s)
	w := armWord(s, h)
	w.Or(protocol.ArmAll)
	must(s.ResizeCQ(h, 100))(t)
	c.push(&completion{})
	if got := readEvents(fd); len(got) != 1 {
		t.Errorf("after resizing: events %v, want 1", got)
	}
	w.Or(protocol.ArmAll)
	comp, _, err := s.DestroyCQ(h)
	if wants(t, "DestroyCQ", err, 0); comp != 1 {
		t.Errorf("%d events reported, want 1", comp)
	}
	if got := w.Load(); got != 0 {
		t.Errorf("the word of a queue that is gone is %#x", got)
	}
	w.Store(0xffffffff)
	s.cqs.next = h
	c, again, fd := armedCQ(t, s)
	if again != h || w.Load() != protocol.ArmReady {
		t.Fatalf("handle %d, word %#x; want %d and a queue that is not armed", again, w.Load(), h)
	}
	c.push(&completion{})
	if got := readEvents(fd); len(got) != 0 {
		t.Errorf("events %v of a queue that nobody armed", got)
	}
}

// A full queue that is armed gives no event for a completion that it loses.
func TestArmedAndFull(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s := r.open()
	c, h, fd := armedCQ(t, s)
	for range c.cqe {
		c.push(&completion{})
	}
	armWord(s, h).Or(protocol.ArmAll)
	c.push(&completion{})
	if got := readEvents(fd); len(got) != 0 || !c.overrun {
		t.Errorf("events %v, overrun %v", got, c.overrun)
	}
}

// Handles are dense, so that all have a word; where the limit is higher the others are armed
// by command.
func TestArmWords(t *testing.T) {
	r := newRig(t, DefaultLimits)
	s := r.open()
	for range protocol.ArmCQs + 10 {
		h := must(s.CreateCQ(CQParams{CQE: 1, Channel: -1}))(t).Handle
		if h >= protocol.ArmCQs {
			t.Fatalf("handle %d has no word", h)
		}
		if armWord(s, h).Load() != protocol.ArmReady {
			t.Fatalf("handle %d cannot be armed", h)
		}
		_, _, err := s.DestroyCQ(h)
		wants(t, "DestroyCQ", err, 0)
	}

	l := DefaultLimits
	l.CQs = protocol.ArmCQs + 2
	s = newRig(t, l).open()
	s.cqs.next = protocol.ArmCQs + 1
	c, h, fd := armedCQ(t, s)
	if h != protocol.ArmCQs+1 || c.ring.at.Offset < protocol.SharedSize {
		t.Fatalf("handle %d, ring at %d", h, c.ring.at.Offset)
	}
	wants(t, "ReqNotify", s.ReqNotify(h, false), 0)
	c.push(&completion{})
	if got := readEvents(fd); len(got) != 1 {
		t.Errorf("a handle without a word: events %v, want 1", got)
	}
	wants(t, "a handle that is not there", s.ReqNotify(protocol.ArmCQs, false), syscall.ENOENT)
}

// While somebody traces a session its client is told to arm by command.
func TestArmByCommand(t *testing.T) {
	s := newRig(t, DefaultLimits).open()
	told := shared32(s.Arena.mem, protocol.ArmByCommand)
	for _, on := range []bool{true, true, false} {
		if s.ArmByCommand(on); (told.Load() != 0) != on {
			t.Errorf("ArmByCommand(%v): the client reads %d", on, told.Load())
		}
	}
}
