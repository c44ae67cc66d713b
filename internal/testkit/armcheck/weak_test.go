package armcheck

import "fmt"

// This file is a machine for the other protocols over shared memory: doorbell, waiters, rings, mailbox, answers ahead and shelf. Its memory
// is weaker than that of machine_test.go, without a hint from the protocol. A word has a history, the order in which its stores became
// visible. A load reads the word at any time between the latest acquire of its thread and now, so it can be earlier than the steps
// before it. A plain load can also be late: a store behind it that is no release may be visible before. An atomic read-modify-write is
// LDXR and STXR: its load is made at once, and no other store to the word comes between it and its own, which becomes visible
// later. Address dependencies order nothing, as in C11. What follows a branch on a loaded value is not stored before that load. A script
// makes no plain load that can be late from a word that its thread stores to.

// The sizes of a world.
const (
	weakThreads = 3
	weakWords   = 12
	weakHistory = 24
	weakBuffer  = 6
	weakRegs    = 4
	weakNotes   = 12
)

// An order is that of an access, as in C11. Go's atomics are seqCst.
type order int8

const (
	plainly order = iota // also memory_order_relaxed
	acquire
	release
	acqRel
	seqCst
)

func (o order) acquires() bool { return o == acquire || o >= acqRel }
func (o order) releases() bool { return o >= release }

// A visible is a store that all threads can see.
type visible struct{ word, value int8 }

// A hidden is a store that only its own thread can see.
type hidden struct {
	visible
	ordered   bool // everything earlier comes first
	exclusive bool // of a read-modify-write: nothing else is stored to the word before it
	bits      bool // it sets the bits of its value
}

// A core is the processor of one thread. Times are numbers of visible stores.
type core struct {
	pc     uint8
	reg    [weakRegs]int8
	late   [weakRegs]int8 // word of the load into this register that is not made yet, plus one
	buffer [weakBuffer]hidden
	n      int8
	floor  int8            // no load is earlier
	seen   [weakWords]int8 // no load of the word is earlier
	last   int8            // of the latest load; an acquire fence makes it the floor
	stored int8            // when the latest release became visible; no seqCst load (LDAR) is earlier
}

// A world is the whole state at one moment. It is comparable.
type world struct {
	base    [weakWords]int8 // before history
	history [weakHistory]visible
	now     int8
	cores   [weakThreads]core
	note    [weakNotes]int8 // what is no shared memory: messages, and the record of an observer
	broken  bool
}

// at returns the value of a word at a time, and when it became visible.
func (w *world) at(word, time int8) (value, since int8) {
	for i := time; i > 0; i-- {
		if h := w.history[i-1]; h.word == word {
			return h.value, i
		}
	}
	return w.base[word], 0
}

// A cpu makes the next step of one core.
type cpu struct {
	*world
	*core
	model   memoryModel
	pick    int8 // which of the choices the step makes
	choices int8
	why     string
}

func (x *cpu) breaks(format string, args ...any) {
	x.broken = true
	x.why = fmt.Sprintf(format, args...)
}

func (x *cpu) jump(l *label) { x.pc = l.at }

// waits reports whether a load is late.
func (c *core) waits() bool { return c.late != [weakRegs]int8{} }

// own returns the thread's latest store to a word that is not visible yet.
func (c *core) own(word int8) (h hidden, found bool) {
	for i := c.n - 1; i >= 0; i-- {
		if c.buffer[i].word == word {
			return c.buffer[i], true
		}
	}
	return h, false
}

// read makes the load that x.pick says.
func (x *cpu) read(word int8, o order) (int8, bool) {
	if x.model == rmo && o == seqCst {
		for _, h := range x.buffer[:x.n] {
			if h.ordered {
				return 0, false // STLR before LDAR
			}
		}
	}
	if h, ok := x.own(word); ok {
		return h.value, !h.bits
	}
	if x.model != rmo {
		v, _ := x.at(word, x.now)
		return v, true
	}
	from := max(x.floor, x.seen[word])
	if o == seqCst {
		from = max(from, x.stored)
	}
	value, _ := x.at(word, from)
	time, k := from, int8(0)
	x.choices = 1
	for i := from; i < x.now; i++ {
		if h := x.history[i]; h.word == word {
			if x.choices++; k < x.pick {
				k++
				value, time = h.value, i+1
			}
		}
	}
	if o.acquires() {
		x.floor = time
	}
	x.seen[word] = time
	x.last = max(x.last, time)
	return value, true
}

// write makes a store.
func (x *cpu) write(word, value int8, o order, exclusive bool) bool {
	if x.model == rmo || x.model == tso && o != seqCst && !exclusive {
		if x.n == weakBuffer {
			return false
		}
		x.buffer[x.n] = hidden{visible: visible{word, value}, ordered: o.releases() || x.model == tso, exclusive: exclusive}
		x.n++
		return true
	}
	if x.n > 0 || x.reserved(word) {
		return false
	}
	x.publish(x.core, hidden{visible: visible{word, value}})
	return true
}

// reserved reports whether another core has a read-modify-write of the word under way.
func (x *cpu) reserved(word int8) bool {
	for i := range x.cores {
		c := &x.cores[i]
		if c == x.core {
			continue
		}
		for _, h := range c.buffer[:c.n] {
			if h.exclusive && h.word == word {
				return true
			}
		}
	}
	return false
}

// publish makes a store of c visible.
func (x *cpu) publish(c *core, h hidden) {
	if int(x.now) == weakHistory {
		panic("weakHistory is too small")
	}
	x.history[x.now] = h.visible
	x.now++
	c.seen[h.word] = x.now
	if h.ordered {
		c.stored = x.now
	}
}

// drain makes the store at i of the buffer visible, if that is possible.
func (x *cpu) drain(i int8) bool {
	if i >= x.n {
		return false
	}
	h := x.buffer[i]
	if h.ordered && (i > 0 || x.waits()) || x.reserved(h.word) {
		return false
	}
	for _, e := range x.buffer[:i] {
		if e.word == h.word {
			return false
		}
	}
	copy(x.buffer[i:], x.buffer[i+1:x.n])
	x.n--
	x.buffer[x.n] = hidden{}
	if h.bits {
		v, _ := x.at(h.word, x.now)
		h.value |= v
	}
	x.publish(x.core, h)
	return true
}

// perform makes the late load into a register.
func (x *cpu) perform(r int8) bool {
	word := x.late[r] - 1
	if word < 0 {
		return false
	}
	x.reg[r], _ = x.read(word, plainly)
	x.late[r] = 0
	return true
}
