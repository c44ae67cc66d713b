package verbs

import (
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/verbs/internal/ipc"
)

// A CQ is a completion queue. Any goroutine may poll it; one at a time waits.
type CQ struct {
	d      *Device
	handle uint32
	id     uint64
	size   int
	wake   chan struct{}

	// look is the ring, too, for a look without the lock: nil if the ring is a mapping of its own,
	// which Close unmaps.
	look   atomic.Pointer[ring]
	polls  atomic.Uint32 // in a row that found nothing
	misses atomic.Uint32 // looks of Wait in a row that found nothing

	mu   sync.Mutex
	ring *ring // guarded by mu; nil: closed

	waiter struct {
		sync.Mutex
		ipc.Waiter
	}
}

// yieldEvery is after how many polls in vain the processor is offered to others: on few processors
// the device needs it.
const yieldEvery = 16

// CreateCQ makes a completion queue for at least so many completions.
func (d *Device) CreateCQ(entries int) (*CQ, error) {
	const op = "create a completion queue"
	if entries <= 0 || entries > math.MaxInt32 {
		return nil, fault(op, fmt.Errorf("%d entries", entries))
	}
	channel, err := d.completionChannel()
	if err != nil {
		return nil, fault(op, err)
	}
	c := &CQ{d: d, wake: make(chan struct{}, 1)}
	c.id = d.track(c)
	req := abi.CreateCQ{Response: d.response(), UserHandle: c.id, CQE: uint32(entries), CompChannel: channel}
	var r abi.CreateCQResp
	var rx abi.RxeCreateCQResp
	if _, err := exec(d, abi.CmdCreateCQ, &req, nil, decode2(&r, &rx)); err != nil {
		d.objects.Delete(c.id)
		return nil, queueFault(op, err)
	}
	c.handle, c.size = r.CQHandle, int(r.CQE)
	ring, err := d.newRing(&rx.MI)
	if err != nil {
		c.Close()
		return nil, fault(op, err)
	}
	c.use(ring)
	return c, nil
}

// Size is how many completions fit.
func (c *CQ) Size() int { return c.size }

// use makes a ring the queue's.
func (c *CQ) use(r *ring) {
	c.ring = r
	if r != nil && r.own {
		r = nil
	}
	c.look.Store(r)
}

// Poll takes the completions that are there, as many as fit into wc, and returns how many. It does
// not wait and does not allocate. The error is that of the device or queue, not of a completion.
func (c *CQ) Poll(wc []WC) (int, error) {
	if r := c.look.Load(); r != nil && r.empty() {
		return 0, c.vain(len(wc))
	}
	c.mu.Lock()
	if c.ring == nil {
		c.mu.Unlock()
		return 0, errPollClosed
	}
	n := min(int(c.ring.waiting()), len(wc))
	for i := range n {
		wc[i].take(c.ring.slot(c.ring.pos + uint32(i)))
	}
	if n > 0 {
		c.ring.pop(uint32(n))
	}
	c.mu.Unlock()
	if n == 0 {
		return 0, c.vain(len(wc))
	}
	if c.polls.Load() != 0 {
		c.polls.Store(0)
	}
	return n, nil
}

// Completions takes the completions that are there, one after the other: those that come meanwhile,
// too. What an iteration has is valid until the next. It does not wait.
func (c *CQ) Completions() iter.Seq2[*WC, error] {
	return func(yield func(*WC, error) bool) {
		var wc [1]WC // one at a time: who stops early has missed none
		for {
			n, err := c.Poll(wc[:])
			if n == 0 && err == nil || !yield(&wc[0], err) || err != nil {
				return
			}
		}
	}
}

// vain is a poll that found nothing. Now and then others get the processor.
func (c *CQ) vain(wanted int) error {
	if c.d.gone.Load() {
		return fault("poll", c.d.err())
	}
	n := c.polls.Add(1)
	if n%yieldEvery == 0 && wanted > 0 && c.waiter.TryLock() {
		c.d.door.GiveWay(&c.waiter.Waiter, n == yieldEvery)
		c.waiter.Unlock()
	}
	return nil
}

var errPollClosed = &Error{Op: "poll", Err: ErrClosed}

// waiting reports whether there is something to poll.
func (c *CQ) waiting() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return false, errPollClosed
	}
	return c.ring.waiting() > 0, nil
}

// Resize changes how many completions fit. Those that are there stay.
func (c *CQ) Resize(entries int) error {
	const op = "resize a completion queue"
	if entries <= 0 || entries > math.MaxInt32 {
		return fault(op, fmt.Errorf("%d entries", entries))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return fault(op, ErrClosed)
	}
	req := abi.ResizeCQ{Response: c.d.response(), CQHandle: c.handle, CQE: uint32(entries)}
	var r abi.ResizeCQResp
	var rx abi.RxeResizeCQResp
	if _, err := exec(c.d, abi.CmdResizeCQ, &req, nil, decode2(&r, &rx)); err != nil {
		return queueFault(op, err)
	}
	next, err := c.d.newRing(&rx.MI)
	if err != nil {
		return fault(op, err)
	}
	next.pos = next.consumer()
	c.ring.close()
	c.use(next)
	c.size = int(r.CQE)
	return nil
}

// Close frees the queue. The queue pairs that complete to it are closed by then.
func (c *CQ) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var r abi.DestroyCQResp
	_, err := exec(c.d, abi.CmdDestroyCQ, &abi.DestroyCQ{Response: c.d.response(), CQHandle: c.handle}, nil, decode(&r))
	if err = closed("free a completion queue", err); err != nil {
		return err
	}
	c.d.objects.Delete(c.id)
	if c.ring != nil {
		c.ring.close()
		c.use(nil)
	}
	c.notify()
	c.d.interrupt()
	return nil
}

// A WC is a completion. If Status is not Success, only ID, Status, QPN and VendorErr mean something.
type WC struct {
	ID        uint64 // of the work request
	Status    Status
	Op        WCOp
	Bytes     uint32 // received
	QPN       uint32 // whose queue pair it is of
	SrcQP     uint32 // UD: who sent it
	Imm       uint32 // if Flags has WithImm: as the sender gave it; WithInvalidate: the key
	Flags     WCFlags
	VendorErr uint32
	PKeyIndex uint16 // UD, and so are the next three; RoCE has none of them, and they are 0
	SLID      uint16
	SL        uint8
	PathBits  uint8
}

// A WCOp is what has completed: enum ibv_wc_opcode.
type WCOp uint32

const (
	WCSend            WCOp = abi.WCOpSend
	WCWrite           WCOp = abi.WCOpWrite
	WCRead            WCOp = abi.WCOpRead
	WCCompareSwap     WCOp = abi.WCOpCmpSwap
	WCFetchAdd        WCOp = abi.WCOpFetchAdd
	WCBindWindow      WCOp = abi.WCOpBindMW
	WCLocalInvalidate WCOp = abi.WCOpLocalInv
	WCFlush           WCOp = abi.WCOpFlush
	WCAtomicWrite     WCOp = abi.WCOpAtomicWrite
	WCRecv            WCOp = abi.WCOpRecv
	WCRecvImm         WCOp = abi.WCOpRecvWriteImm // a write with immediate took the receive
)

// WCFlags say more about a receive.
type WCFlags uint32

const (
	WithGRH        WCFlags = abi.WCFlagGRH // the first 40 bytes are the global route header (UD)
	WithImm        WCFlags = abi.WCFlagImm
	WithInvalidate WCFlags = abi.WCFlagInv
)

// Err is nil if the work succeeded, else its status.
func (w *WC) Err() error { return w.Status.Err() }

// take copies a completion out of its slot.
func (w *WC) take(b []byte) {
	_ = b[abi.WCSize-1]
	w.ID = order.Uint64(b[abi.WCWRID:])
	w.Status = Status(order.Uint32(b[abi.WCStatus:]))
	w.Op = WCOp(order.Uint32(b[abi.WCOpcode:]))
	w.VendorErr = order.Uint32(b[abi.WCVendorErr:])
	w.Bytes = order.Uint32(b[abi.WCByteLen:])
	w.QPN = order.Uint32(b[abi.WCQPNum:])
	w.SrcQP = order.Uint32(b[abi.WCSrcQP:])
	w.Flags = WCFlags(order.Uint32(b[abi.WCFlags:]))
	w.PKeyIndex, w.SLID = order.Uint16(b[abi.WCPKeyIndex:]), order.Uint16(b[abi.WCSLID:])
	w.SL, w.PathBits = b[abi.WCSL], b[abi.WCPathBits]
	w.Imm = order.Uint32(b[abi.WCImm:])
	if w.Flags&WithImm != 0 {
		w.Imm = swap32(w.Imm)
	}
}
