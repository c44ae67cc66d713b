package armcheck

// A script is the steps of one thread.
type script struct {
	name  string
	steps []func(*cpu) bool
	said  []string
	sleep map[uint8]bool // where the thread may stop for ever
	local map[uint8]bool // steps that follow at once, because no other thread can tell
	loads [weakWords]bool
}

func newScript(name string) *script {
	return &script{name: name, sleep: map[uint8]bool{}, local: map[uint8]bool{}}
}

func (s *script) here(l *label) { l.at = uint8(len(s.steps)) }

// then appends a step that only uses the registers.
func (s *script) then(said string, step func(*cpu)) {
	s.local[uint8(len(s.steps))] = true
	s.do(said, func(x *cpu) bool { step(x); return true })
}

// do appends a step that uses the registers. It returns false if it cannot be made now.
func (s *script) do(said string, step func(*cpu) bool) {
	s.steps = append(s.steps, func(x *cpu) bool { return !x.waits() && step(x) })
	s.said = append(s.said, said)
}

// mem appends a step that does not use the registers. It loads the words.
func (s *script) mem(said string, step func(*cpu) bool, words ...int8) {
	for _, a := range words {
		s.loads[a] = true
	}
	s.steps = append(s.steps, step)
	s.said = append(s.said, said)
}

// load appends a load whose value is used at once.
func (s *script) load(said string, o order, word int8, then func(x *cpu, v int8)) {
	s.mem(said, func(x *cpu) bool {
		v, ok := x.read(word, o)
		if ok {
			then(x, v)
		}
		return ok
	}, word)
}

// copy appends a plain load into a register.
func (s *script) copy(said string, r, word int8) {
	s.copyAt(said, r, func(*cpu) int8 { return word }, word)
}

// copyAt is copy of one of some words.
func (s *script) copyAt(said string, r int8, word func(*cpu) int8, words ...int8) {
	s.mem(said, func(x *cpu) bool {
		before, a := *x.core, word(x)
		if x.late[r] != 0 {
			return false
		}
		x.reg[r], _ = x.read(a, plainly)
		if _, own := x.own(a); own || x.model != rmo {
			return true
		}
		if x.choices++; x.pick == x.choices-1 {
			*x.core = before
			x.reg[r], x.late[r] = 0, a+1
		}
		return true
	}, words...)
}

// store appends a store of a value that does not come from a late load.
func (s *script) store(said string, o order, word, value int8) {
	s.mem(said, func(x *cpu) bool { return x.write(word, value, o, false) })
}

// rmw appends an atomic read-modify-write. change returns false to store nothing; it may jump.
func (s *script) rmw(said string, o order, word int8, change func(x *cpu, v int8) (int8, bool)) {
	s.mem(said, func(x *cpu) bool {
		if _, own := x.own(word); own || x.reserved(word) || x.model != rmo && x.n > 0 || x.n == weakBuffer {
			return false
		}
		v, since := x.at(word, x.now)
		if x.model == rmo {
			time := max(x.floor, x.seen[word], since)
			if o.acquires() {
				x.floor = time
			}
			x.seen[word], x.last = time, max(x.last, time)
		}
		if next, ok := change(x, v); ok {
			x.write(word, next, o, true)
		}
		return true
	}, word)
}

// or appends an atomic read-modify-write that sets bits, if nothing uses the value before, and it is no acquire: with the instructions
// of ARMv8.1 (LDSET) all of it happens when the store becomes visible.
func (s *script) or(said string, o order, word, bits int8) {
	s.mem(said, func(x *cpu) bool {
		if x.model == rmo {
			if x.n == weakBuffer {
				return false
			}
			x.buffer[x.n] = hidden{visible: visible{word, bits}, ordered: o.releases(), bits: true}
			x.n++
			return true
		}
		v, _ := x.at(word, x.now)
		return x.write(word, v|bits, o, true)
	})
}

// fence appends a fence.
func (s *script) fence(o order) {
	s.mem("fence", func(x *cpu) bool {
		if x.waits() || o.releases() && x.n > 0 {
			return false
		}
		if o == acquire {
			x.floor = max(x.floor, x.last)
		} else if o == seqCst {
			x.floor = x.now
		}
		return true
	})
}

// send appends a message to another thread, by a system call. It is a release.
func (s *script) send(said string, f func(x *cpu)) {
	s.do(said, func(x *cpu) bool {
		if x.n > 0 {
			return false
		}
		f(x)
		return true
	})
}

// receive appends the receipt of a message, if f says that there is one. It is an acquire.
func (s *script) receive(said string, f func(x *cpu) bool) {
	s.do(said, func(x *cpu) bool {
		if !f(x) {
			return false
		}
		x.floor = x.now
		return true
	})
}
