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

// none is in woken and urgent words: nothing is recorded.
const none int8 = -1

// matches reports whether an arm asks for this completion.
func matches(arm, completion int8) bool {
	return arm&all != 0 || arm&solicited != 0 && completion != plain
}

// A made completion: on which queue, of which kind.
type made struct{ queue, kind int8 }

// A mutation is the protocol with a deliberate mistake.
type mutation int

const (
	correct mutation = iota

	// Right as well:
	skipsWhenArmed // the shim stores nothing if the bit is set already
	byCommand      // every arm is a command, as an old shim does it
	oneByCommand   // the last waiter arms by command, the others in memory

	// Wrong:
	looksFirst       // the daemon reads the arm word before it writes the completion
	noFence          // the daemon reads the arm word before its stores are visible
	shimNoFence      // the shim's arm is a store without a fence
	storesPlainly    // the shim stores what is wanted, so "solicited" replaces "all"
	orNotAtomic      // the shim loads, and stores with the bit: two instructions
	clearsApart      // the daemon clears the bits by a store, after it looked
	clearsLast       // the daemon clears the bits after it has sent the event
	neverClears      // the daemon leaves the word as it is
	neverLooks       // the shim does not read the ring after arming
	looksTooSoon     // the shim reads the ring before it sets the bit
	lookArms         // the daemon arms again when it must look
	lookIgnoresArm   // the daemon sends an event when it must look, armed or not
	wokenAlways      // the daemon notes the consumer's index if nothing is left to poll, too
	urgentLast       // the daemon notes a solicited completion after it has published it
	resizeKeeps      // the notes do not move with the ring
	resizeForgets    // the note of a solicited completion is lost with the ring
	looksForItself   // the shim looks for what it was asked for, not for what the queue is armed for
	armInRing        // the word is a part of the ring, and does not move with it
	producerUnfenced // the producer's index may be seen before the completion (pso)
	createKeepsWord  // a new queue of the same handle begins with the old word
	destroyKeeps     // destroying a queue leaves its events in the channel
	commandLowers    // the daemon's command stores what is wanted without reading first
	orUnfenced       // the shim has no fence between the fetch-and-or and the look (rmo)
	pollsRelaxed     // the poll loads the producer's index without an acquire (rmo)
)

// A setup has the waiters with what they wait for, the completions, and other activities.
type setup struct {
	name        string
	waiters     [][]int8 // of each waiter: what it arms for, in turn
	completions []made
	cqs         int8
	batch       bool // the completions are made in one pass of the loop
	resize      bool // queue 0, meanwhile
	destroy     bool // queue 0, afterwards; and another is made with its handle
	trace       bool // another client starts to trace the session, and ends
	lateAck     bool // waiters acknowledge an event after they have polled
	pollFirst   bool // waiters poll, arm, and sleep without another poll
	wrong       mutation
}

// system builds the threads.
func (c *setup) system(m memoryModel) *system {
	y := &system{model: m, final: c.final}
	for q := range c.cqs {
		y.start.mem[c.armWordIn(q, 0)] = ready
		y.start.mem[wokenWord(q)], y.start.mem[urgentWord(q)] = none, none
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

// final judges a state without moves: every waiter sleeps.
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

// sure reports whether a completion of this kind is consumed in the end, because every arm asks for it.
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

// waiter is the loop of every program: arm, poll until nothing is left, sleep; or poll, arm, sleep.
func (c *setup) waiter(i int) *program {
	p := &program{name: fmt.Sprintf("waiter %d", i), sleep: map[uint8]bool{}}
	kinds := c.waiters[i]
	round := func(q func(*processor) int8) {
		if c.pollFirst {
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

// arm appends the shim's part: ibv_req_notify_cq. Register 1 is the index of the wanted kind, register 2 the loaded
// word.
func (c *setup) arm(p *program, waiter int, kinds []int8, queue func(*processor) int8) {
	var command, look, done label
	wanted := func(x *processor) int8 { return kinds[x.reg[1]] }
	word := func(x *processor) int8 { return c.armWordIn(queue(x), x.queues[queue(x)].ring) }
	noted := func(x *processor) {
		u := &x.queues[queue(x)]
		u.armed, u.arms = u.armed|wanted(x), u.arms+1
		x.reg[1] = (x.reg[1] + 1) % int8(len(kinds))
		x.reg[2] = 0
	}
	if c.wrong == looksTooSoon {
		var looked label
		c.look(p, kinds, queue, &looked, &done)
		p.here(&looked)
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
				return x.jump(&look)
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
				return (c.wrong == shimNoFence || x.fenced()) && x.jump(&look)
			})
		default:
			if c.wrong == orUnfenced {
				p.passes(func(x *processor) int8 { return producerWord(queue(x), x.queues[queue(x)].daemons) })
			}
			p.do("arm: fetch and or", func(x *processor) bool {
				// It is a release and an acquire, and the fence is behind it.
				if x.held != 0 || c.wrong != orUnfenced && !x.fenced() {
					return false
				}
				was := x.mem[word(x)]
				x.mem[word(x)] |= wanted(x)
				x.reg[2] = 0
				if was&ready == 0 { // destroyed meanwhile: the command says so
					return x.jump(&command)
				}
				noted(x)
				if c.wrong != looksForItself && was&all != 0 {
					x.reg[3] = 1
				}
				return x.jump(&look)
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
			c.announce(x, queue(x))
		}
	})
	p.do("arm: done", func(x *processor) bool { return x.jump(&done) })
	p.here(&look)
	if c.wrong != looksTooSoon && c.wrong != neverLooks {
		c.look(p, kinds, queue, nil, &done)
	}
	p.here(&done)
}

// look appends what the shim does behind the bit: it reads the indices and the notes, and if there
// is a completion that no event announced, the daemon is to look. Register 2 is the
// ring, and 2 more if the queue was armed for all before; register 3 is the two indices. The shim that looks too soon goes on with the arm at otherwise.
func (c *setup) look(p *program, kinds []int8, queue func(*processor) int8, otherwise, done *label) {
	var command label
	const base = maxSlots + 1
	asked := func(x *processor) int8 { // noted has gone on to the next of them
		if c.wrong == looksTooSoon {
			return kinds[x.reg[1]]
		}
		return kinds[(x.reg[1]+int8(len(kinds))-1)%int8(len(kinds))]
	}
	quiet := func(x *processor) bool {
		x.reg[2], x.reg[3] = 0, 0
		if otherwise != nil {
			return x.jump(otherwise)
		}
		return x.jump(done)
	}
	p.do("look: where is the ring?", func(x *processor) bool {
		x.reg[2] = x.queues[queue(x)].daemons + 2*x.reg[3]
		return true
	})
	ring := func(x *processor) int8 { return x.reg[2] % 2 }
	// It is an acquire, which keeps later loads behind it. Only the fence keeps it behind the bit.
	p.do("look: load the producer's index", func(x *processor) bool {
		x.reg[3] = x.loadEarly(producerWord(queue(x), ring(x))) * base
		x.early = early{}
		return true
	})
	p.do("look: load the consumer's index", func(x *processor) bool {
		x.reg[3] += x.load(consumerWord(queue(x), ring(x)))
		return true
	})
	p.do("look: load where the program was woken", func(x *processor) bool {
		consumer := x.reg[3] % base
		if x.reg[3]/base == consumer || x.load(wokenWord(queue(x))) == consumer {
			if x.queues[queue(x)].daemons == ring(x) {
				return quiet(x)
			}
			return x.jump(&command)
		}
		return true
	})
	p.do("look: load where the latest solicited one is", func(x *processor) bool {
		if asked(x)&all == 0 && x.reg[2] < 2 && x.load(urgentWord(queue(x))) <= x.reg[3]%base && x.queues[queue(x)].daemons == ring(x) {
			return quiet(x)
		}
		return true
	})
	p.here(&command)
	c.command(p, "look: the daemon looks", func(x *processor) {
		x.reg[2], x.reg[3] = 0, 0
		q := queue(x)
		switch {
		case x.queues[q].dead: // an error: there is no such queue
		case c.wrong == lookArms:
			x.mem[armWord(q)] |= asked(x)
			c.announce(x, q)
		default:
			c.announce(x, q)
		}
	})
	if otherwise != nil {
		p.do("look: arm", func(x *processor) bool { return x.jump(otherwise) })
	}
}

// announce is the daemon's look at a queue: if it is armed for a completion that was not polled, and
// there was no event since the last poll, it clears the bits and sends one.
func (c *setup) announce(x *processor, q int8) {
	u := &x.queues[q]
	consumer := x.mem[consumerWord(q, u.daemons)]
	word := c.armWordIn(q, u.daemons)
	kind := plain
	if x.mem[urgentWord(q)] > consumer {
		kind = urgent
	}
	if consumer == u.producer || x.mem[wokenWord(q)] == consumer || c.wrong != lookIgnoresArm && !matches(x.mem[word], kind) {
		return
	}
	x.mem[word] &^= armBits
	u.armed = 0
	x.mem[wokenWord(q)] = consumer
	c.send(x, q)
}

// send writes an event to the channel.
func (c *setup) send(x *processor, q int8) {
	u := &x.queues[q]
	if x.waiting == maxEvents {
		x.breaks("more events than arms")
		return
	}
	x.channel[x.waiting] = q
	x.waiting++
	u.events++
	if u.events > u.arms {
		x.breaks("queue %d was armed %d times and reported %d times", q, u.arms, u.events)
	}
}

// armWordIn is where a queue's arm word is. In a wrong protocol it is in the ring, in place
// of the last slot.
func (c *setup) armWordIn(q, ring int8) int8 {
	if c.wrong == armInRing {
		return slotWord(q, ring, maxSlots-1)
	}
	return armWord(q)
}

// poll appends ibv_poll_cq until it finds nothing. Its lock orders the threads that poll: the next
// holder sees the consumer index that the last holder stored. It is no fence for anything else.
func (c *setup) poll(p *program, queue func(*processor) int8) {
	var again, empty label
	p.here(&again)
	if c.wrong == pollsRelaxed {
		p.passes(func(x *processor) int8 {
			u := &x.queues[queue(x)]
			return slotWord(queue(x), u.ring, u.consumer)
		})
	}
	p.do("poll: load the producer's index", func(x *processor) bool {
		q := queue(x)
		u := &x.queues[q]
		if u.polling || x.heldElsewhere(consumerWord(q, u.ring)) {
			return false
		}
		load := x.load
		if c.wrong == pollsRelaxed {
			load = x.read
		}
		if load(producerWord(q, u.ring)) == u.consumer {
			return x.jump(&empty)
		}
		u.polling = true
		return true
	})
	p.do("poll: take the completion", func(x *processor) bool {
		q := queue(x)
		u := &x.queues[q]
		if !x.store(consumerWord(q, u.ring), u.consumer+1, true) {
			return false
		}
		if x.loadEarly(slotWord(q, u.ring, u.consumer)) == 0 {
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
		if u.polling || x.heldElsewhere(consumerWord(0, u.ring)) {
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
		if c.wrong != resizeKeeps {
			x.mem[wokenWord(0)] = none
			if x.mem[urgentWord(0)] > u.consumer && c.wrong != resizeForgets {
				x.mem[urgentWord(0)] -= u.consumer
			} else {
				x.mem[urgentWord(0)] = none
			}
		}
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
		x.mem[wokenWord(0)], x.mem[urgentWord(0)] = none, none
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
	urge := func() {
		p.do("note that it is solicited", func(x *processor) bool {
			u := &x.queues[q]
			at := u.producer + 1
			if c.wrong == urgentLast {
				at = u.producer
			}
			return x.store(urgentWord(q), at, true)
		})
	}
	if m.kind != plain && c.wrong != urgentLast {
		urge()
	}
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
	if m.kind != plain && c.wrong == urgentLast {
		urge()
	}
	p.do("does the completion match?", func(x *processor) bool {
		if !matches(x.reg[0], m.kind) {
			x.made++
			x.reg[0] = 0
			return x.jump(&quiet)
		}
		return true
	})
	p.do("load the consumer's index", func(x *processor) bool {
		u := &x.queues[q]
		x.reg[1] = x.load(consumerWord(q, u.daemons))
		if x.reg[1] == u.producer && c.wrong != wokenAlways {
			x.reg[1] = none
		}
		return true
	})
	p.do("note it", func(x *processor) bool {
		if !x.store(wokenWord(q), x.reg[1], true) {
			return false
		}
		x.reg[1] = 0
		return true
	})
	p.do("clear it", func(x *processor) bool {
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
		c.send(x, q)
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
