package armcheck

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// The sizes of a state.
const (
	maxThreads = 6
	maxBuffer  = 4 // stores in a processor's buffer
	maxEvents  = 8 // in the channel
	maxSlots   = 8 // completions of one ring
	maxCQs     = 2 // on the channel
	registers  = 4 // of a thread
	rings      = 2 // of a queue: before and after it is resized
	ringWords  = maxSlots + 2
	lineWords  = 3                                      // arm word, woken, urgent
	toldWord   = maxCQs * (lineWords + rings*ringWords) // not 0: arming must use commands
	maxWords   = toldWord + 1
)

// Every shared word has an address. A queue has a line that begins with the arm word, and rings.
func armWord(q int8) int8            { return q * (lineWords + rings*ringWords) }
func wokenWord(q int8) int8          { return armWord(q) + 1 }
func urgentWord(q int8) int8         { return armWord(q) + 2 }
func producerWord(q, ring int8) int8 { return armWord(q) + lineWords + ring*ringWords }
func consumerWord(q, ring int8) int8 { return producerWord(q, ring) + 1 }
func slotWord(q, ring, i int8) int8  { return consumerWord(q, ring) + 1 + i }

// A memory model says which stores a processor may hold back, and which loads it may make early.
type memoryModel int

const (
	sequential memoryModel = iota // none
	tso                           // any; they reach memory in the order they were made (x86)
	pso                           // any; a store passes others to other words, unless it releases
	rmo                           // like pso; a load that is not ordered passes earlier steps (arm64)
)

func (m memoryModel) String() string { return [...]string{"sequential", "tso", "pso", "rmo"}[m] }

// A store that other processors do not see yet.
type store struct {
	address, value int8
	release        bool
}

// An early load was made before its turn.
type early struct {
	address, value int8
	made           bool
}

// A thread is its next step, its registers, its store buffer, oldest first, and at most one load that was made early.
type thread struct {
	early  early
	pc     uint8
	reg    [registers]int8
	held   int8
	buffer [maxBuffer]store
}

// A queue is the state of a completion queue besides its shared words.
type queue struct {
	polling  bool // the provider's lock
	ring     int8 // where the program polls
	consumer int8 // the program's own; others see the word later
	daemons  int8 // ring that the daemon fills
	producer int8 // the daemon's own count
	dead     bool // destroyed: the bit that lets the shim arm it is off
	told     int8 // number of events that the program had read when it destroyed the queue
	acked    int8

	// The record of an observer that sees everything at once: the strongest arm since the last event, and the numbers
	// of arms and events.
	armed, arms, events int8
}

// A state is the whole state at one moment. It is comparable.
type state struct {
	mem     [maxWords]int8
	threads [maxThreads]thread
	queues  [maxCQs]queue
	loop    bool // the daemon's loop is taken
	made    int8 // completions so far
	started int8 // waiters that have armed every queue
	channel [maxEvents]int8
	waiting int8 // events in the channel
	broken  bool // a property is violated; note says which
}

// A step is one thread's next action, with at most one access to shared memory. It returns false and changes nothing if
// the thread cannot continue now.
type step func(x *processor) bool

// A program is the steps of a thread. A thread behind the last step is done.
type program struct {
	name  string
	steps []step
	said  []string
	sleep map[uint8]bool // where a thread may stop for ever

	early map[uint8]func(*processor) int8 // the words that may be loaded before a step, by a load behind it
}

// passes says that the load of a word, which comes later, may pass the next step: it orders nothing. That load is a loadEarly.
func (p *program) passes(word func(*processor) int8) {
	if p.early == nil {
		p.early = map[uint8]func(*processor) int8{}
	}
	p.early[uint8(len(p.steps))] = word
}

// A label is a place in a program that steps jump to.
type label struct{ at uint8 }

func (p *program) here(l *label) { l.at = uint8(len(p.steps)) }

func (p *program) do(said string, s step) {
	p.steps = append(p.steps, s)
	p.said = append(p.said, said)
}

// A processor executes the next step of one thread.
type processor struct {
	*state
	*thread
	model memoryModel
	note  string // why the state is broken
}

func (x *processor) jump(l *label) bool { x.pc = l.at; return true }

// load reads a word: the thread's own latest store, or memory. It is an acquire: no later load is made before it.
func (x *processor) load(a int8) int8 {
	x.early = early{}
	return x.read(a)
}

// loadEarly reads a word that the processor may have read before.
func (x *processor) loadEarly(a int8) int8 {
	if e := x.early; e.made && e.address == a {
		x.early = early{}
		return e.value
	}
	return x.read(a)
}

func (x *processor) read(a int8) int8 {
	for i := x.held - 1; i >= 0; i-- {
		if x.buffer[i].address == a {
			return x.buffer[i].value
		}
	}
	return x.mem[a]
}

// store writes a word, which others may see later.
func (x *processor) store(a, v int8, release bool) bool {
	if x.model == sequential {
		x.mem[a] = v
		return true
	}
	if x.held == maxBuffer {
		return false
	}
	x.buffer[x.held] = store{a, v, release}
	x.held++
	return true
}

// fenced reports whether all stores of the thread are in memory. Fences and locked instructions wait for that, and no later load is
// made before them.
func (x *processor) fenced() bool {
	x.early = early{}
	return x.held == 0
}

// heldElsewhere reports whether another thread's store to a word is not in memory yet. A lock that was released after
// that store cannot be taken before the store is visible.
func (x *processor) heldElsewhere(a int8) bool {
	for i := range x.threads {
		t := &x.threads[i]
		if t == x.thread {
			continue
		}
		for _, s := range t.buffer[:t.held] {
			if s.address == a {
				return true
			}
		}
	}
	return false
}

func (x *processor) breaks(format string, args ...any) {
	x.broken = true
	x.note = fmt.Sprintf(format, args...)
}

// drains reports whether the store at i of t's buffer may reach memory now.
func (t *thread) drains(m memoryModel, i int8) bool {
	if i == 0 {
		return true
	}
	if m < pso || t.buffer[i].release {
		return false
	}
	for _, earlier := range t.buffer[:i] {
		if earlier.address == t.buffer[i].address {
			return false
		}
	}
	return true
}

func (s *state) drain(t, i int8) {
	th := &s.threads[t]
	s.mem[th.buffer[i].address] = th.buffer[i].value
	copy(th.buffer[i:], th.buffer[i+1:th.held])
	th.held--
	th.buffer[th.held] = store{}
}

// A move is a possible next event: a step of a thread, one of its stores reaches memory, or a load is made early.
type move struct{ thread, drain int8 } // drain: index, noDrain or earlyLoad

const (
	noDrain   = -1 // a step
	earlyLoad = -2
)

// loadsEarly makes a load of t before its turn.
func (y *system) loadsEarly(x *processor, s *state, t *thread, p *program) bool {
	word := p.early[t.pc]
	if word == nil || t.early.made {
		return false
	}
	x.state, x.thread, x.model = s, t, y.model
	a := word(x)
	t.early = early{a, x.read(a), true}
	return true
}

// A system is threads over shared words, and the condition for a state without moves.
type system struct {
	programs []*program
	model    memoryModel
	start    state
	final    func(*state) string // "" or what is wrong
}

// try makes a move in s and reports whether it was possible. x executes it.
func (y *system) try(x *processor, s *state, m move) bool {
	t := &s.threads[m.thread]
	if m.drain == earlyLoad {
		return y.loadsEarly(x, s, t, y.programs[m.thread])
	}
	if m.drain != noDrain {
		if m.drain >= t.held || !t.drains(y.model, m.drain) {
			return false
		}
		s.drain(m.thread, m.drain)
		return true
	}
	p := y.programs[m.thread]
	if int(t.pc) >= len(p.steps) {
		return false
	}
	at := t.pc
	t.pc++
	x.state, x.thread, x.model = s, t, y.model
	if !p.steps[at](x) {
		t.pc = at
		return false
	}
	return true
}

// verdict returns what is wrong with a state without moves.
func (y *system) verdict(s *state) string {
	for i, p := range y.programs {
		pc := s.threads[i].pc
		if int(pc) < len(p.steps) && !p.sleep[pc] {
			return fmt.Sprintf("%s hangs at: %s", p.name, p.said[pc])
		}
	}
	return y.final(s)
}

// moves calls f for every move that might be possible.
func (y *system) moves(s *state, f func(move)) {
	for t := range int8(len(y.programs)) {
		f(move{t, noDrain})
		for i := range s.threads[t].held {
			f(move{t, i})
		}
		if y.model == rmo {
			f(move{t, earlyLoad})
		}
	}
}

// A node is a state that was reached, and how.
type node struct {
	state
	parent int32
	by     move
	chain  int32 // the next of the same hash, -1 for none
}

// A search has every reachable state of a system.
type search struct {
	*system
	nodes []node
	index map[uint64]int32
	seed  maphash.Seed
}

// explore visits every state, nearest first, and returns their number. fault is empty, or describes the first faulty
// state and the moves that lead to it.
func (y *system) explore() (states int, fault string) {
	r := &search{system: y, index: map[uint64]int32{}, seed: maphash.MakeSeed()}
	r.add(&y.start, -1, move{})
	x := new(processor)
	for at := 0; at < len(r.nodes); at++ {
		moved := false
		y.moves(&r.nodes[at].state, func(m move) {
			next := r.nodes[at].state
			if fault != "" || !y.try(x, &next, m) {
				return
			}
			moved = true
			if added := r.add(&next, int32(at), m); added && next.broken {
				fault = x.note + r.story(int32(len(r.nodes)-1))
			}
		})
		if fault == "" && !moved {
			if wrong := y.verdict(&r.nodes[at].state); wrong != "" {
				fault = wrong + r.story(int32(at))
			}
		}
		if fault != "" {
			break
		}
	}
	return len(r.nodes), fault
}

// add records a state and reports whether it is new.
func (r *search) add(s *state, parent int32, by move) bool {
	h := maphash.Comparable(r.seed, *s)
	first, found := r.index[h]
	if !found {
		first = -1
	}
	for i := first; i >= 0; i = r.nodes[i].chain {
		if r.nodes[i].state == *s {
			return false
		}
	}
	r.index[h] = int32(len(r.nodes))
	r.nodes = append(r.nodes, node{*s, parent, by, first})
	return true
}

// story describes the moves that lead to a state.
func (r *search) story(at int32) string {
	var lines []string
	for ; r.nodes[at].parent >= 0; at = r.nodes[at].parent {
		n := &r.nodes[at]
		lines = append(lines, r.tell(&r.nodes[n.parent].state, n.by))
	}
	var b strings.Builder
	for i := len(lines) - 1; i >= 0; i-- {
		fmt.Fprintf(&b, "\n  %s", lines[i])
	}
	return b.String()
}

func (y *system) tell(s *state, m move) string {
	t, p := &s.threads[m.thread], y.programs[m.thread]
	if m.drain == earlyLoad {
		return fmt.Sprintf("%s: a later load passes: %s", p.name, p.said[t.pc])
	}
	if m.drain != noDrain {
		return fmt.Sprintf("%s: its store of %d to word %d reaches memory", p.name, t.buffer[m.drain].value, t.buffer[m.drain].address)
	}
	return fmt.Sprintf("%s: %s", p.name, p.said[t.pc])
}
