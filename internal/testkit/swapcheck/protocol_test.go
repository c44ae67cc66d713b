package swapcheck

// A mistake is a protocol that loses writes or fails calls.
type mistake int

const (
	none mistake = iota

	// Of registrations:
	noHalt          // threads run on
	haltsLate       // checks for pins and an io_uring, then halts, then moves without a check
	ignoresRing     // replaces pages of a process with an io_uring
	noPinCheck      // moves pinned pages as well
	checksFirst     // checks for pins at the old address, then moves the page
	copiesFirst     // copies, then maps over the page, without moving it away
	leavesVacant    // UFFDIO_MOVE, and the empty range is not registered with the userfaultfd
	mapsFirst       // maps the memfd's page, then copies into it
	resumesEarly    // resumes before the page is mapped
	resumesUnmended // a pinned page: resumes, then moves it back
	ignoresRegions  // replaces pages that another region covers as foreign memory

	// Of deregistrations:
	deregNoHalt
	deregIgnoresRing // makes pages private that an io_uring may have pinned
	deregCopiesFirst // copies, then maps over the shared page, without moving it away
	deregMapsFirst   // maps empty private memory, then fills it
	punchesFirst     // releases the memfd's page before it is copied
)

// A method says how a page is moved away and how a pin is found.
type method int

const (
	byUserfaultfd method = iota // UFFDIO_MOVE
	byMremap                    // mremap, and fork with bit 56 of pagemap
)

// A registrar registers and deregisters the page n times.
type registrar struct {
	turns  int
	method method
	wrong  mistake
}

func (r registrar) program() *program {
	p := &program{name: "registering thread"}
	for range r.turns {
		r.register(p)
		r.deregister(p)
	}
	return p
}

// halt appends the step that waits until the thread is between two operations.
func halt(p *program, left bool) {
	if left {
		return
	}
	p.do("halt", func(s *state, _ *actor) bool {
		if s.inCall {
			return false
		}
		s.halted = true
		return true
	})
}

func resume(p *program) {
	p.do("resume", func(s *state, _ *actor) bool { s.halted = false; return true })
}

// A label is a step that others jump to.
type label struct{ at int }

func (p *program) here(l *label) { l.at = len(p.steps) }

func (r registrar) register(p *program) {
	var foreign, mend, end label
	alreadyOwn := func(s *state, a *actor) bool { // a deregistration left it shared
		if s.memfd != 0 {
			return a.jump(end.at)
		}
		return true
	}
	p.do("is it shared already?", alreadyOwn)
	if r.wrong != ignoresRegions {
		p.do("is it foreign to another region?", func(s *state, a *actor) bool {
			if s.covered {
				return a.jump(foreign.at)
			}
			return true
		})
	}
	if r.wrong == haltsLate {
		r.looksForRing(p, &foreign)
		p.do("look for pins", func(s *state, a *actor) bool {
			if s.pins[s.at] > 0 {
				return a.jump(foreign.at)
			}
			return true
		})
	}
	halt(p, r.wrong == noHalt)
	if r.wrong != ignoresRing && r.wrong != haltsLate {
		r.looksForRing(p, &foreign)
	}
	switch {
	case r.wrong == copiesFirst:
		p.do("look for pins, copy to the memfd", func(s *state, a *actor) bool {
			if s.pins[s.at] > 0 {
				return a.jump(foreign.at)
			}
			s.memfd = s.fresh()
			s.data[s.memfd] = s.data[s.at]
			return true
		})
	case r.method == byUserfaultfd:
		r.uffdMove(p, &foreign)
	default:
		r.mremap(p, &foreign, &mend)
	}
	copies := func() {
		p.do("copy to the memfd", func(s *state, _ *actor) bool {
			if s.memfd == 0 {
				s.memfd = s.fresh()
			}
			s.data[s.memfd] = s.data[s.scratch]
			return true
		})
	}
	maps := func() {
		p.do("map the memfd", func(s *state, _ *actor) bool {
			if s.reading {
				return false
			}
			if s.memfd == 0 {
				s.memfd = s.fresh()
			}
			s.mapping, s.at, s.own = present, s.memfd, true
			return true
		})
	}
	switch r.wrong {
	case copiesFirst:
		maps()
	case mapsFirst:
		maps()
		copies()
	case resumesEarly:
		copies()
		resume(p)
		maps()
	default:
		copies()
		maps()
	}
	p.do("unmap the scratch area", func(s *state, a *actor) bool {
		s.scratch = 0
		return a.jump(foreign.at)
	})
	p.here(&mend)
	if r.wrong == resumesUnmended {
		resume(p)
	}
	p.do("move the pinned page back", func(s *state, _ *actor) bool {
		s.mapping, s.at, s.scratch = present, s.scratch, 0
		return true
	})
	p.here(&foreign)
	resume(p)
	p.here(&end)
	p.do("registered", func(*state, *actor) bool { return true })
}

func (r registrar) looksForRing(p *program, foreign *label) {
	p.do("look for an io_uring", func(s *state, a *actor) bool {
		if s.ring {
			return a.jump(foreign.at)
		}
		return true
	})
}

// uffdMove appends UFFDIO_MOVE: it refuses pinned pages, and unmaps others in the same step.
func (r registrar) uffdMove(p *program, foreign *label) {
	p.do("UFFDIO_MOVE to the scratch area", func(s *state, a *actor) bool {
		if s.pins[s.at] > 0 && r.wrong != noPinCheck && r.wrong != haltsLate {
			return a.jump(foreign.at)
		}
		s.scratch, s.at, s.mapping = s.at, 0, guardedV
		if r.wrong == leavesVacant {
			s.mapping = vacant
		}
		return true
	})
}

// mremap appends the older method: the mapping moves even if its pages are pinned, and pins are checked at an address
// that nothing else knows.
func (r registrar) mremap(p *program, foreign, mend *label) {
	if r.wrong == checksFirst {
		p.do("look for pins", func(s *state, a *actor) bool {
			if s.pins[s.at] > 0 {
				return a.jump(foreign.at)
			}
			return true
		})
	}
	p.do("mremap to the scratch area", func(s *state, _ *actor) bool {
		if s.reading {
			return false
		}
		s.scratch, s.at, s.mapping = s.at, 0, hole
		return true
	})
	if r.wrong == checksFirst || r.wrong == noPinCheck || r.wrong == haltsLate {
		return
	}
	p.do("look for pins in the scratch area", func(s *state, a *actor) bool {
		if s.pins[s.scratch] > 0 {
			return a.jump(mend.at)
		}
		return true
	})
}

func (r registrar) deregister(p *program) {
	var out, end label
	p.do("is it shared?", func(s *state, a *actor) bool {
		if !s.own {
			return a.jump(end.at)
		}
		return true
	})
	halt(p, r.wrong == deregNoHalt)
	if r.wrong != deregIgnoresRing {
		p.do("look for an io_uring", func(s *state, a *actor) bool {
			if s.ring {
				return a.jump(out.at) // it stays shared
			}
			return true
		})
	}
	punch := func() {
		p.do("punch the memfd's page", func(s *state, _ *actor) bool {
			s.data[s.memfd] = 0
			return true
		})
	}
	away := func() {
		p.do("move the shared mapping away", func(s *state, _ *actor) bool {
			s.at, s.mapping = 0, hole
			return true
		})
	}
	copies := func() {
		p.do("copy to private memory", func(s *state, _ *actor) bool {
			if s.scratch == 0 {
				s.scratch = s.fresh()
			}
			s.data[s.scratch] = s.data[s.memfd]
			return true
		})
	}
	maps := func() {
		p.do("map the private memory", func(s *state, _ *actor) bool {
			if s.scratch == 0 {
				s.scratch = s.fresh()
			}
			s.mapping, s.at = present, s.scratch
			return true
		})
	}
	switch r.wrong {
	case deregCopiesFirst:
		copies()
		maps()
		punch()
	case deregMapsFirst:
		maps()
		copies()
		punch()
	case punchesFirst:
		away()
		punch()
		copies()
		maps()
	default:
		away()
		copies()
		maps()
		punch()
	}
	p.do("forget the memfd's page", func(s *state, _ *actor) bool {
		s.own, s.memfd, s.scratch = false, 0, 0
		return true
	})
	p.here(&out)
	resume(p)
	p.here(&end)
	p.do("deregistered", func(*state, *actor) bool { return true })
}

// ---- the others ----

// A counter gives every write its bit.
type counter struct{ n uint }

func (c *counter) next() bits {
	c.n++
	return 1 << (c.n - 1)
}

// store appends a plain store of a thread.
func store(p *program, w bits) {
	p.do("store", func(s *state, _ *actor) bool {
		if s.halted {
			return false
		}
		f, how := s.touch(false)
		switch how {
		case waits:
			return false
		case refused:
			s.fail("a store of a thread gets SIGSEGV")
			return true
		}
		s.data[f] |= w
		s.made |= w
		return true
	})
}

// call appends a system call of a thread that copies into the page at once.
func call(p *program, w bits) {
	p.do("read(2)", func(s *state, _ *actor) bool {
		if s.halted {
			return false
		}
		f, how := s.touch(true)
		if how != reached {
			s.fail("a system call of a thread gets EFAULT")
			return true
		}
		s.data[f] |= w
		s.made |= w
		return true
	})
}

// direct appends a read with O_DIRECT: no halt interrupts it.
func direct(p *program, w bits) {
	p.do("O_DIRECT: pin the page", func(s *state, a *actor) bool {
		if s.halted {
			return false
		}
		f, how := s.touch(true)
		if how != reached {
			s.fail("a read with O_DIRECT gets EFAULT")
			return true
		}
		s.pins[f]++
		s.inCall, a.held = true, f
		return true
	})
	p.do("O_DIRECT: the device writes", func(s *state, a *actor) bool {
		s.data[a.held] |= w
		s.made |= w
		return true
	})
	p.do("O_DIRECT: unpin", func(s *state, a *actor) bool {
		s.pins[a.held]--
		s.inCall, a.held = false, 0
		return true
	})
}

// thread is a thread of the program.
func thread(c *counter, kinds ...func(*program, bits)) *program {
	p := &program{name: "thread"}
	for _, k := range kinds {
		k(p, c.next())
	}
	return p
}

// pinnedRing is an io_uring with a registered buffer and READ_FIXED.
func pinnedRing(c *counter) *program {
	p, w := &program{name: "io_uring"}, c.next()
	p.do("a thread pins the page", func(s *state, a *actor) bool {
		if s.halted {
			return false
		}
		f, how := s.touch(true)
		if how != reached {
			s.fail("IORING_REGISTER_BUFFERS gets EFAULT")
			return true
		}
		s.ring = true
		s.pins[f]++
		a.held = f
		return true
	})
	p.do("READ_FIXED writes", func(s *state, a *actor) bool {
		s.data[a.held] |= w
		s.made |= w
		return true
	})
	p.do("unpin", func(s *state, a *actor) bool {
		s.pins[a.held]--
		a.held = 0
		return true
	})
	return p
}

// pendingRing is an io_uring whose operation resolves its address when the data arrives.
func pendingRing(c *counter) *program {
	p, w := &program{name: "io_uring"}, c.next()
	p.do("a thread submits a recv", func(s *state, _ *actor) bool {
		if s.halted {
			return false
		}
		s.ring = true
		return true
	})
	p.do("the data arrives", func(s *state, _ *actor) bool {
		f, how := s.touch(true)
		if how != reached {
			s.fail("an operation of io_uring gets EFAULT")
			return true
		}
		s.data[f] |= w
		s.made |= w
		return true
	})
	return p
}

// remote is another process: process_vm_writev, then process_vm_readv. brief: it pins and writes
// in one step.
func remote(c *counter, brief bool) *program {
	p, w := &program{name: "other process"}, c.next()
	var end label
	write := func(s *state, a *actor) bool {
		s.data[a.held] |= w
		s.made |= w
		if !brief {
			s.pins[a.held]--
		}
		a.held = 0
		return true
	}
	p.do("process_vm_writev finds the page", func(s *state, a *actor) bool {
		f, how := s.touch(true)
		if how != reached { // EFAULT: an exception that the documentation lists
			return a.jump(end.at)
		}
		a.held = f
		if brief {
			return write(s, a)
		}
		s.pins[f]++
		return true
	})
	if !brief {
		p.do("process_vm_writev writes, and unpins", write)
	}
	p.do("process_vm_readv", func(s *state, _ *actor) bool {
		if s.mapping == present && s.data[s.at]&w == 0 || s.mapping == vacant {
			s.fail("lost write: another process does not see what it wrote")
		}
		return true
	})
	p.here(&end)
	p.do("ends", func(*state, *actor) bool { return true })
	return p
}

// daemon is a WRITE into the page for another region, whose memory is foreign: /proc/PID/mem takes
// a plain reference, no pin, and holds the lock of the page tables for reading.
func daemon(c *counter) *program {
	p, w := &program{name: "daemon"}, c.next()
	p.do("/proc/PID/mem finds the page", func(s *state, a *actor) bool {
		f, how := s.touch(true)
		if how != reached {
			s.fail("a WRITE of the daemon gets EFAULT")
			return true
		}
		s.reading, a.held = true, f
		return true
	})
	p.do("/proc/PID/mem writes", func(s *state, a *actor) bool {
		s.data[a.held] |= w
		s.made |= w
		s.reading, a.held = false, 0
		return true
	})
	return p
}

// build puts the actors together. The page exists, and the program wrote to it before.
func build(r registrar, others ...*program) *system {
	y := &system{programs: append([]*program{r.program()}, others...)}
	y.start.frames, y.start.at = 1, 1
	y.start.data[1] = 1 << 15
	y.start.made = 1 << 15
	return y
}
