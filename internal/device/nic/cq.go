package nic

import (
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

const cqeSize = 64 // elements are powers of two, and abi.WCSize is not

// A CQ is a completion queue: a ring that we fill and the client empties.
type CQ struct {
	session    *Session
	serial     uint32
	userHandle uint64
	ring       ring
	cqe        uint32
	prod       uint32 // free running
	seen       uint32 // free running: the client's consumer as last read
	channel    *eventQueue
	arm        arm
	overrun    bool
	refs       int
	events     uint32 // completion events sent
	async      uint32 // asynchronous events sent
	gone       bool

	// Completions that are held back, see fault.go.
	held      int
	heldUntil ib.Time

	_ [16]byte // to full cache lines: the next CQ may be another loop's
}

// CQParams ask for a completion queue.
type CQParams struct {
	UserHandle uint64
	CQE        uint32
	Vector     uint32
	Channel    int32 // -1: none
	Flags      uint32
}

// CQInfo describes one.
type CQInfo struct {
	Handle, CQE uint32
	Ring        MMap
}

// CreateCQ makes a completion queue.
func (s *Session) CreateCQ(p CQParams) (CQInfo, error) {
	if p.CQE == 0 || p.CQE > s.nic.Limits.CQE || p.Vector >= CompVectors {
		return CQInfo{}, syscall.EINVAL
	}
	c := &CQ{session: s, serial: s.nic.Serial(), userHandle: p.UserHandle}
	if p.Channel >= 0 {
		q, err := s.channels.get(uint32(p.Channel))
		if err != nil {
			return CQInfo{}, syscall.EBADF
		}
		c.channel = q
	}
	r, err := newRing(s.Arena, p.CQE, cqeSize)
	if err != nil {
		return CQInfo{}, err
	}
	c.ring, c.cqe = r, r.mask
	h, err := s.cqs.add(c)
	if err != nil {
		c.ring.release()
		return CQInfo{}, err
	}
	c.arm.open(s.Arena, h, c.lookAt())
	if c.channel != nil {
		c.channel.cqs++
	}
	return CQInfo{Handle: h, CQE: c.cqe, Ring: c.ring.at}, nil
}

// lookAt is the ring that the client looks at when it arms the queue; 0: there are no events.
func (c *CQ) lookAt() uint64 {
	if c.channel == nil {
		return 0
	}
	return c.ring.at.Offset
}

// CompVectors is how many completion vectors the device claims.
const CompVectors = 1

// ResizeCQ moves a queue's completions to a ring of another size.
func (s *Session) ResizeCQ(h, cqe uint32) (CQInfo, error) {
	c, err := s.cqs.get(h)
	if err != nil {
		return CQInfo{}, err
	}
	if cqe == 0 || cqe > s.nic.Limits.CQE {
		return CQInfo{}, syscall.EINVAL
	}
	c.look()
	held := c.prod - c.seen
	if cqe < held {
		return CQInfo{}, syscall.EINVAL
	}
	r, err := newRing(s.Arena, cqe, cqeSize)
	if err != nil {
		return CQInfo{}, err
	}
	if err := r.move(&c.ring, c.seen, held); err != nil {
		r.release()
		return CQInfo{}, err
	}
	c.ring.release()
	seen, prod := c.seen, c.prod
	c.ring, c.cqe, c.prod, c.seen = r, r.mask, held, 0
	c.arm.move(c.lookAt(), seen, prod, r.mask)
	return CQInfo{Handle: h, CQE: c.cqe, Ring: r.at}, nil
}

// DestroyCQ ends a queue that no queue pair uses and returns how many of its events
// the client has read, because that is how many it will acknowledge.
func (s *Session) DestroyCQ(h uint32) (comp, async uint32, err error) {
	c, err := s.cqs.get(h)
	if err != nil {
		return 0, 0, err
	}
	if c.refs > 0 {
		return 0, 0, syscall.EBUSY
	}
	s.cqs.remove(h)
	c.gone = true
	c.arm.close()
	if c.channel != nil {
		c.channel.cqs--
	}
	comp = c.events - c.channel.withdraw(c.events, func(e *event) bool { return e.element() == c.userHandle })
	async = c.async - s.async.withdraw(c.async, func(e *event) bool {
		return e.asyncOwner() == 'c' && e.element() == c.userHandle
	})
	c.ring.release()
	return comp, async, nil
}

// ReqNotify arms the queue for one event, for clients that cannot do it themselves, and looks: see
// arm.go.
func (s *Session) ReqNotify(h uint32, solicitedOnly bool) error {
	c, err := s.cqs.get(h)
	if err != nil {
		return err
	}
	c.arm.set(solicitedOnly)
	c.announce()
	return nil
}

// LookArmed sends the event of an armed queue if it has completions that no event announced. The
// client has set the bit before.
func (s *Session) LookArmed(h uint32) error {
	c, err := s.cqs.get(h)
	if err != nil {
		return err
	}
	c.announce()
	return nil
}

func (c *CQ) announce() {
	c.look()
	if any, urgent := c.arm.unannounced(c.seen, c.prod); any && c.arm.wants(urgent) {
		c.fire()
	}
}

// fire sends the event that the queue is armed for.
func (c *CQ) fire() (rang bool) {
	c.look()
	c.arm.fire(c.seen, c.prod, c.ring.mask)
	if c.channel == nil {
		return false
	}
	c.events++
	c.channel.post(compEvent(c.userHandle))
	return true
}

// look reads how far the client has come. Its index is only believed as far as
// there was something to consume: the stock provider's next_poll/end_poll pair may
// step one past the producer, and a hostile client may write anything.
func (c *CQ) look() {
	step := (c.ring.consumer() - c.seen) & c.ring.mask
	if held := c.prod - c.seen; step > held {
		step = held
	}
	c.seen += step
}

// A completion is what goes into the ring: struct ib_uverbs_wc.
type completion struct {
	wrID      uint64
	status    transport.Status
	opcode    uint32
	byteLen   uint32
	imm       uint32
	qpNum     uint32
	srcQP     uint32
	flags     uint32
	sl        uint8
	solicited bool
}

// A wc is a completion as it stands in the ring: struct ib_uverbs_wc. What is not put is 0.
type wc [abi.WCSize / 8]uint64

func (b *wc) put64(off int, v uint64) { b[off/8] = v }
func (b *wc) put32(off int, v uint32) { b[off/8] |= uint64(v) << (off % 8 * 8) }
func (b *wc) put8(off int, v uint8)   { b[off/8] |= uint64(v) << (off % 8 * 8) }

// push writes a completion and rings the channel if it is armed. A queue that is
// full loses the completion and reports the error that this is. rang says whether there was an
// event.
func (c *CQ) push(w *completion) (rang bool) {
	if c.prod-c.seen >= c.cqe {
		c.look()
		if c.prod-c.seen >= c.cqe {
			c.overflow()
			return false
		}
	}
	var b wc
	b.put64(abi.WCWRID, w.wrID)
	b.put32(abi.WCStatus, uint32(w.status))
	b.put32(abi.WCOpcode, w.opcode)
	b.put32(abi.WCByteLen, w.byteLen)
	b.put32(abi.WCImm, w.imm)
	b.put32(abi.WCQPNum, w.qpNum)
	b.put32(abi.WCSrcQP, w.srcQP)
	b.put32(abi.WCFlags, w.flags)
	b.put8(abi.WCSL, w.sl)
	b.put8(abi.WCPortNum, 1)
	putWords(c.ring.slot(c.prod), b[:])
	c.prod++
	urgent := w.solicited || w.status != transport.Success
	c.arm.advance(c.prod, c.ring.mask, urgent)
	c.ring.setProducer(c.prod)
	c.session.waiting.completed(c.session)
	return c.arm.wants(urgent) && c.fire()
}

func (c *CQ) overflow() {
	if c.overrun {
		return
	}
	c.overrun = true
	c.async++
	c.session.async.post(asyncEvent(c.userHandle, abi.EventCQErr))
}
