package nic

import (
	"sync/atomic"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/transport"
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

// TestArmByCommand: while a session is traced, the client arms by command.
func TestArmByCommand(t *testing.T) {
	s := newRig(t, DefaultLimits).open()
	told := shared32(s.Arena.mem, protocol.ArmByCommand)
	for _, on := range []bool{true, true, false} {
		if s.ArmByCommand(on); (told.Load() != 0) != on {
			t.Errorf("ArmByCommand(%v): the client reads %d", on, told.Load())
		}
	}
}

// Arming with completions that no event announced gives the event at once, by either way of arming.
func TestArmedLate(t *testing.T) {
	for _, tc := range []struct {
		name      string
		pushed    []completion
		polled    uint32
		solicited bool
		want      int
	}{
		{"nothing there", nil, 0, false, 0},
		{"one", []completion{{}}, 0, false, 1},
		{"all polled", []completion{{}, {}}, 2, false, 0},
		{"some polled", []completion{{}, {}}, 1, false, 1},
		{"polled one too many", []completion{{}}, 2, false, 0},
		{"solicited only, a plain one", []completion{{}}, 0, true, 0},
		{"solicited only, a solicited one", []completion{{}, {solicited: true}, {}}, 0, true, 1},
		{"solicited only, a failed one", []completion{{status: transport.WRFlushErr}}, 0, true, 1},
		{"solicited only, polled up to it", []completion{{}, {solicited: true}, {}}, 1, true, 1},
		{"solicited only, polled with it", []completion{{}, {solicited: true}, {}}, 2, true, 0},
	} {
		s := newRig(t, DefaultLimits).open()
		c, h, fd := armedCQ(t, s)
		for round := range 3 * (c.ring.mask + 1) { // every position in the ring
			for i := range tc.pushed {
				c.push(&tc.pushed[i])
			}
			c.ring.setConsumer(c.ring.producer() - uint32(len(tc.pushed)) + tc.polled)
			bit := uint32(protocol.ArmAll)
			if tc.solicited {
				bit = protocol.ArmSolicited
			}
			if round%2 == 0 {
				armWord(s, h).Or(bit)
				wants(t, "LookArmed", s.LookArmed(h), 0)
			} else {
				wants(t, "ReqNotify", s.ReqNotify(h, tc.solicited), 0)
			}
			if got := readEvents(fd); len(got) != tc.want {
				t.Fatalf("%s, round %d: events %v, want %d", tc.name, round, got, tc.want)
			}
			wants(t, "LookArmed", s.LookArmed(h), 0)
			if got := readEvents(fd); len(got) != 0 {
				t.Fatalf("%s, round %d: one arm gave another event", tc.name, round)
			}
			armWord(s, h).And(^uint32(armBits))
			c.ring.setConsumer(c.prod)
		}
	}
}

// A program that has an event and has not polled since gets no other for what it has not polled.
// One that has polled a single completion does, wherever in the ring it is.
func TestArmedBetweenEventAndPoll(t *testing.T) {
	s := newRig(t, DefaultLimits).open()
	c, h, fd := armedCQ(t, s)
	for round := range 5 * (c.ring.mask + 1) {
		wants(t, "ReqNotify", s.ReqNotify(h, false), 0)
		c.push(&completion{})
		c.push(&completion{})
		if got := readEvents(fd); len(got) != 1 {
			t.Fatalf("round %d: events %v, want 1", round, got)
		}
		if got := shared32(s.Arena.mem, protocol.ArmWords+int(h)*protocol.ArmStride+protocol.ArmWoken).Load(); got != c.ring.consumer() {
			t.Fatalf("round %d: the client reads %d as its position at the event, want %d", round, got, c.ring.consumer())
		}
		wants(t, "ReqNotify", s.ReqNotify(h, false), 0)
		if got := readEvents(fd); len(got) != 0 {
			t.Fatalf("round %d: events %v before a poll, want none", round, got)
		}
		c.ring.setConsumer(c.prod - 1)
		wants(t, "ReqNotify", s.ReqNotify(h, false), 0)
		if got := readEvents(fd); len(got) != 1 {
			t.Fatalf("round %d: events %v after a poll, want 1", round, got)
		}
		c.ring.setConsumer(c.prod)
		for range round % (c.ring.mask + 1) { // it polls without arming
			c.push(&completion{})
			c.ring.setConsumer(c.prod)
		}
	}
	// The note of a position does not outlive the position.
	for n := range c.ring.mask + 2 {
		wants(t, "ReqNotify", s.ReqNotify(h, false), 0)
		c.push(&completion{})
		c.ring.setConsumer(c.prod)
		for range c.ring.mask - 1 + n {
			c.push(&completion{})
			c.ring.setConsumer(c.prod)
		}
		c.push(&completion{})
		readEvents(fd)
		wants(t, "ReqNotify", s.ReqNotify(h, false), 0)
		if got := readEvents(fd); len(got) != 1 {
			t.Fatalf("%d completions later: events %v, want 1", c.ring.mask+n, got)
		}
		c.ring.setConsumer(c.prod)
	}
}

// A resized queue is looked at where it is.
func TestArmedLateAndResized(t *testing.T) {
	s := newRig(t, DefaultLimits).open()
	c, h, fd := armedCQ(t, s)
	for i := range 5 {
		c.push(&completion{solicited: i == 3})
	}
	c.ring.setConsumer(3)
	must(s.ResizeCQ(h, 100))(t)
	ring := shared32(s.Arena.mem, protocol.ArmWords+int(h)*protocol.ArmStride+protocol.ArmRing)
	if got := uint64(ring.Load()) * pageSize; got != c.ring.at.Offset {
		t.Errorf("the client looks at %#x, the ring is at %#x", got, c.ring.at.Offset)
	}
	wants(t, "ReqNotify", s.ReqNotify(h, true), 0)
	if got := readEvents(fd); len(got) != 1 {
		t.Errorf("events %v, want 1", got)
	}
	c.ring.setConsumer(1)
	must(s.ResizeCQ(h, 50))(t)
	wants(t, "ReqNotify", s.ReqNotify(h, true), 0)
	if got := readEvents(fd); len(got) != 0 {
		t.Errorf("events %v of a solicited completion that was polled", got)
	}
	wants(t, "ReqNotify", s.ReqNotify(h, false), 0)
	if got := readEvents(fd); len(got) != 1 {
		t.Errorf("events %v, want 1", got)
	}
	_, _, err := s.DestroyCQ(h)
	if wants(t, "DestroyCQ", err, 0); ring.Load() != 0 {
		t.Error("a queue that is gone has a ring")
	}
	h = must(s.CreateCQ(CQParams{CQE: 10, Channel: -1}))(t).Handle
	c, _ = s.cqs.get(h)
	c.push(&completion{})
	wants(t, "ReqNotify", s.ReqNotify(h, false), 0)
	if ring.Load() != 0 || c.events != 0 {
		t.Errorf("a queue without a channel: ring %d, %d events", ring.Load(), c.events)
	}
}
