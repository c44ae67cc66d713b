package armcheck

import "fmt"

// Bits of the arm word.
const (
	ready     int8 = 1 << iota // the shim may set the others
	solicited                  // report a completion that is solicited or an error
	all                        // report any

	armBits = solicited | all
)

// Kinds of completions, as they stand in a slot. 0 is a slot that was not written.
const (
	plain int8 = 1 + iota
	urgent
	failed
)

// matches is whether a completion is one that an arm asks for.
func matches(arm, completion int8) bool {
	return arm&all != 0 || arm&solicited != 0 && completion != plain
}

// A made completion: on which queue, of which kind.
type made struct{ queue, kind int8 }

// A mutation is the protocol with a mistake in it.
type mutation int

const (
	correct mutation = iota

	// Right as well:
	skipsWhenArmed // the shim stores nothing if the bit is set already
	byCommand      // every arm is a command, as an old shim does it
	oneByCommand   // the last waiter arms by command, the others in memory

	// Wrong:
	looksFirst       // the daemon looks at the arm word before it writes the completion
	noFence          // the daemon does not wait for its stores before it looks
	shimNoFence      // the shim's arm is a store without a fence
	storesPlainly    // the shim stores what is wanted: solicited lowers all
	orNotAtomic      // the shim loads, and stores with the bit: two instructions
	clearsApart      // the daemon clears the bits by a store, after it looked
	clearsLast       // the daemon clears the bits after it has sent the event
	neverClears      // the daemon leaves the word as it is
	pollsFirst       // the program polls, then arms, then sleeps
	armInRing        // the word is a part of the ring, and is not moved with it
	producerUnfenced // the producer's index may be seen before the completion (pso)
	createKeepsWord  // a new queue of the same handle begins with the old word
	destroyKeeps     // destroying a queue leaves its events in the channel
	commandLowers    // the daemon's command stores what is wanted, without a look
)

// A setup is what is checked: who waits, for what; what completes; what else goes on.
type setup struct {
	name        string
	waiters     [][]int8 // of each waiter: what it arms for, in turn
	completions []made
	cqs         int8
	batch       bool // the completions are made in one pass of the loop
	resize      bool // queue 0, meanwhile
	destroy     bool // queue 0, afterwards; and another is made with its handle
	trace       bool // somebody begins to trace the session, and ends
	lateAck     bool // waiters acknowledge an event after they have polled
	wrong       mutation
}

// system builds the threads.
func (c *setup) system(m memoryModel) *system {
	y := &system{model: m, final: c.final}
	for q := range c.cqs {
		y.start.mem[c.armWordIn(q, 0)] = ready
	}
	for i := range c.waiters {
		y.programs = append(y.programs, c.waiter(i))
	}
	y.programs = append(y.programs, c.daemon())
	if c.resize {
		y.programs = append(y.programs, c.resizer())
	}
	if c.destroy {
		y.programs = append(y.programs, c.destroyer())
	}
	if c.trace {
		y.programs = append(y.programs, c.tracer())
	}
	return y
}

// final judges a state in which nobody moves: every waiter sleeps.
func (c *setup) final(s *state) string {
	if s.waiting > 0 {
		return "an event is in the channel, and nobody reads it"
	}
	for q := range c.cqs {
		u := &s.queues[q]
		if u.dead {
			continue
		}
		for i := u.consumer; i < s.mem[producerWord(q, u.ring)]; i++ {
			kind := s.mem[slotWord(q, u.ring, i)]
			if matches(u.armed, kind) || c.sure(kind) && !c.destroy {
				return fmt.Sprintf("lost wake-up: queue %d is armed (%d, its word is %d) and holds a completion (%d), all sleep, and there is no event",
					q, u.armed, s.mem[armWord(q)], kind)
			}
		}
	}
	return ""
}

// sure is whether a completion of this kind is consumed in the end, because every arm
// asks for it.
func (c *setup) sure(kind int8) bool {
	for _, kinds := range c.waiters {
		for _, k := range kinds {
			if !matches(k, kind) {
				return false
			}
		}
	}
	return true
}

// ---- the program ----

// waiter is the loop that every program has: arm, poll until there is nothing, sleep.
func (c *setup) waiter(i int) *program {
	p := &program{name: fmt.Sprintf("waiter %d", i), sleep: map[uint8]bool{}}
	kinds := c.waiters[i]
	round := func(q func(*processor) int8) {
		if c.wrong == pollsFirst {
			c.poll(p, q)
			c.arm(p, i, kinds, q)
		} else {
			c.arm(p, i, kinds, q)
			c.poll(p, q)
		}
	}
	for q := range c.cqs {
		round(func(*processor) int8 { return q })
	}
	p.do("all is armed", func(x *processor) bool { x.started++; return true })
	var again label
	p.here(&again)
	p.sleep[again.at] = true
	p.do("read the channel", func(x *processor) bool {
		if x.waiting == 0 {
			return false
		}
		x.reg[0] = x.channel[0]
		copy(x.channel[:], x.channel[1:])
		x.channel[maxEvents-1] = 0
		x.waiting--
		if !c.lateAck {
			x.queues[x.reg[0]].acked++
		}
		return true
	})
	round(func(x *processor) int8 { return x.reg[0] })
	p.do("acknowledge", func(x *processor) bool {
		if c.lateAck {
			x.queues[x.reg[0]].acked++
		}
		x.reg[0] = 0
		return x.jump(&again)
	})
	return p
}

// arm appends the shim's part: ibv_req_notify_cq. Register 1 says which of kinds is wanted
// next, register 2 is the word as it was loaded.
func (c *setup) arm(p *program, waiter int, kinds []int8, queue func(*processor) int8) {
	var command, done label
	wanted := func(x *processor) int8 { return kinds[x.reg[1]] }
	word := func(x *processor) int8 { return c.armWordIn(queue(x), x.queues[queue(x)].ring) }
	noted := func(x *processor) {
		u := &x.queues[queue(x)]
		u.armed, u.arms = u.armed|wanted(x), u.arms+1
		x.reg[1] = (x.reg[1] + 1) % int8(len(kinds))
		x.reg[2] = 0
	}
	if c.wrong != byCommand && c.wrong != commandLowers && (c.wrong != oneByCommand || waiter < len(c.waiters)-1) {
		if c.trace {
			p.do("arm: load, has it to be a command?", func(x *processor) bool {
				if x.load(toldWord) != 0 {
					return x.jump(&command)
				}
				return true
			})
		}
		p.do("arm: load, is it ready?", func(x *processor) bool {
			was := x.load(word(x))
			if was&ready == 0 {
				return x.jump(&command)
			}
			if c.wrong == skipsWhenArmed && was&wanted(x) != 0 {
				noted(x)
				return x.jump(&done)
			}
			x.reg[2] = was
			return true
		})
		switch c.wrong {
		case storesPlainly, orNotAtomic, shimNoFence:
			p.do("arm: store", func(x *processor) bool {
				value := x.reg[2] | wanted(x)
				if c.wrong == storesPlainly {
					value = ready | wanted(x)
				}
				if !x.store(word(x), value, true) {
					return false
				}
				noted(x)
				return true
			})
			p.do("arm: fence", func(x *processor) bool {
				return (c.wrong == shimNoFence || x.fenced()) && x.jump(&done)
			})
		default:
			p.do("arm: fetch and or", func(x *processor) bool {
				if !x.fenced() {
					return false
				}
				was := x.mem[word(x)]
				x.mem[word(x)] |= wanted(x)
				x.reg[2] = 0
				if was&ready == 0 { // destroyed meanwhile: the command says so
					return x.jump(&command)
				}
				noted(x)
				return x.jump(&done)
			})
		}
	}
	p.here(&command)
	c.command(p, "arm by command", func(x *processor) {
		switch {
		case x.queues[queue(x)].dead: // an error: there is no such queue
		case c.wrong == commandLowers:
			x.mem[word(x)] = ready | wanted(x)
			noted(x)
		default:
			x.mem[word(x)] |= wanted(x)
			noted(x)
		}
	})
	p.here(&done)
}

// armWordIn is where a queue's arm word is. In a wrong protocol it is in the ring, in place
// of the last slot.
func (c *setup) armWordIn(q, ring int8) int8 {
	if c.wrong == armInRing {
		return slotWord(q, ring, maxSlots-1)
	}
	return armWord(q)
}

// poll appends ibv_poll_cq until it finds nothing. Its lock is no fence here: a program may
// poll without.
func (c *setup) poll(p *program, queue func(*processor) int8) {
	var again, empty label
	p.here(&again)
	p.do("poll: load the producer's index", func(x *processor) bool {
		q := queue(x)
		u := &x.queues[q]
		if u.polling {
			return false
		}
		if x.load(producerWord(q, u.ring)) == u.consumer {
			return x.jump(&empty)
		}
		u.polling = true
		return true
	})
	p.do("poll: take the completion", func(x *processor) bool {
		q := queue(x)
		u := &x.queues[q]
		if x.load(slotWord(q, u.ring, u.consumer)) == 0 {
			x.breaks("the program polled a completion that is not written")
		}
		u.consumer++
		u.polling = false
		return x.jump(&again)
	})
	p.here(&empty)
}

// resizer is ibv_resize_cq: no thread polls meanwhile, but they arm.
func (c *setup) resizer() *program {
	p := &program{name: "resizer"}
	p.do("resize: lock the queue", func(x *processor) bool {
		u := &x.queues[0]
		if u.polling {
			return false
		}
		u.polling = true
		return true
	})
	c.command(p, "resize: the daemon moves the completions", func(x *processor) {
		u := &x.queues[0]
		held := u.producer - u.consumer
		for i := range held {
			x.mem[slotWord(0, 1, i)] = x.mem[slotWord(0, 0, u.consumer+i)]
		}
		x.mem[producerWord(0, 1)] = held
		u.daemons, u.producer = 1, held
		x.mem[c.armWordIn(0, 1)] |= ready
	})
	p.do("resize: use the new ring, unlock", func(x *processor) bool {
		u := &x.queues[0]
		u.ring, u.consumer, u.polling = 1, 0, false
		return true
	})
	return p
}

// destroyer is ibv_destroy_cq when all has completed, which waits for the
// acknowledgements, and ibv_create_cq, which gets the same handle. The new queue is not
// armed: its completion is not reported.
func (c *setup) destroyer() *program {
	p := &program{name: "destroyer"}
	p.do("destroy: the queue pairs are gone", func(x *processor) bool {
		return int(x.made) == len(c.completions) && int(x.started) == len(c.waiters)
	})
	c.command(p, "destroy: the daemon takes back events", func(x *processor) {
		u := &x.queues[0]
		u.dead, u.told = true, u.events
		x.mem[armWord(0)] = 0
		if c.wrong == destroyKeeps {
			u.told -= x.waiting
			return
		}
		kept := int8(0)
		for i := range x.waiting {
			if q := x.channel[i]; q != 0 {
				x.channel[kept] = q
				kept++
			} else {
				u.told--
			}
		}
		for i := kept; i < x.waiting; i++ {
			x.channel[i] = 0
		}
		x.waiting = kept
	})
	p.do("destroy: wait for the acknowledgements", func(x *processor) bool { return x.queues[0].acked == x.queues[0].told })
	c.command(p, "create: the same handle", func(x *processor) {
		u := &x.queues[0]
		for r := range int8(rings) {
			for i := range int8(ringWords) {
				x.mem[producerWord(0, r)+i] = 0
			}
		}
		if c.wrong != createKeepsWord {
			x.mem[armWord(0)] = 0
		}
		x.mem[armWord(0)] |= ready
		*u = queue{}
	})
	c.command(p, "create: is it armed?", func(x *processor) {
		if x.mem[armWord(0)]&armBits != 0 {
			x.breaks("a queue that nobody armed is armed: its first completion would be reported")
		}
	})
	return p
}

// tracer begins to trace, so that arms have to be commands, and ends.
func (c *setup) tracer() *program {
	p := &program{name: "tracer"}
	for _, value := range []int8{1, 0} {
		said := fmt.Sprintf("trace: arms are commands: %d", value)
		c.command(p, said, func(x *processor) { x.mem[toldWord] = value })
	}
	return p
}

// ---- the daemon ----

// command appends a command that a program's thread gives. It is done on the loop while
// the thread waits, so the thread does it here; a message to the loop and back is a fence.
func (c *setup) command(p *program, said string, f func(*processor)) {
	p.do(said, func(x *processor) bool {
		if x.loop || !x.fenced() {
			return false
		}
		f(x)
		return true
	})
}

// daemon makes the completions.
func (c *setup) daemon() *program {
	p := &program{name: "daemon"}
	take := func(x *processor) bool {
		if x.loop || !x.fenced() {
			return false
		}
		x.loop = true
		return true
	}
	leave := func(x *processor) bool {
		if !x.fenced() {
			return false
		}
		x.loop = false
		return true
	}
	for i, m := range c.completions {
		if i == 0 || !c.batch {
			p.do("a pass of the loop begins", take)
		}
		c.push(p, m)
		if i == len(c.completions)-1 || !c.batch {
			p.do("the pass ends", leave)
		}
	}
	return p
}

// push appends the daemon's part: a completion is written, and reported if the queue is
// armed for it. Register 0 is the arm word as it was loaded.
func (c *setup) push(p *program, m made) {
	var quiet label
	q := m.queue
	look := func(x *processor) bool {
		x.reg[0] = x.load(c.armWordIn(q, x.queues[q].daemons))
		if matches(x.reg[0], m.kind) && c.wrong == clearsApart {
			x.queues[q].armed = 0
		}
		return true
	}
	if c.wrong == looksFirst {
		p.do("look at the arm word", look)
	}
	p.do(fmt.Sprintf("write a completion (%d) to queue %d", m.kind, q), func(x *processor) bool {
		u := &x.queues[q]
		return x.store(slotWord(q, u.daemons, u.producer), m.kind, false)
	})
	p.do("publish it", func(x *processor) bool {
		u := &x.queues[q]
		if !x.store(producerWord(q, u.daemons), u.producer+1, c.wrong != producerUnfenced) {
			return false
		}
		u.producer++
		return true
	})
	if c.wrong != noFence {
		p.do("fence", (*processor).fenced)
	}
	if c.wrong != looksFirst {
		p.do("look at the arm word", look)
	}
	p.do("clear it, if the completion matches", func(x *processor) bool {
		if !matches(x.reg[0], m.kind) {
			x.made++
			x.reg[0] = 0
			return x.jump(&quiet)
		}
		a := c.armWordIn(q, x.queues[q].daemons)
		switch c.wrong {
		case neverClears, clearsLast:
			x.queues[q].armed = 0
			return true
		case clearsApart:
			return x.store(a, x.reg[0]&^armBits, true)
		}
		if !x.fenced() {
			return false
		}
		x.mem[a] &^= armBits
		x.queues[q].armed = 0
		return true
	})
	p.do("send the event", func(x *processor) bool {
		u := &x.queues[q]
		if x.waiting == maxEvents {
			x.breaks("more events than arms")
			return true
		}
		x.channel[x.waiting] = q
		x.waiting++
		u.events++
		if u.events > u.arms {
			x.breaks("queue %d was armed %d times and reported %d times", q, u.arms, u.events)
		}
		x.made++
		x.reg[0] = 0
		return true
	})
	if c.wrong == clearsLast {
		p.do("clear the arm word", func(x *processor) bool {
			if x.fenced() {
				x.mem[armWord(q)] &^= armBits
			}
			return x.fenced()
		})
	}
	p.here(&quiet)
}
