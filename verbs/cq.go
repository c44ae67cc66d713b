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

// A CQ is a completion queue. Any number of goroutines may poll it; only one may wait for it at a time.
type CQ struct {
	d      *Device
	handle uint32
	id     uint64
	size   int
	wake   chan struct{}

	// look is the same ring as the field ring, for reading the indices without the lock. It is nil if
	// Close unmaps the ring.
	look   atomic.Pointer[ring]
	polls  atomic.Uint32 // consecutive polls that found no completion
	misses atomic.Uint32 // consecutive waits of Wait whose busy polling found no completion

	mu   sync.Mutex
	ring *ring // guarded by mu; nil after Close

	waiter struct {
		sync.Mutex
		ipc.Waiter
	}
}

// yieldEvery is the number of consecutive empty polls after which the thread yields the processor. On a
// machine with few processors the daemon needs that processor.
const yieldEvery = 16

// CreateCQ creates a completion queue with a capacity of at least entries completions.
func (d *Device) CreateCQ(entries int) (*CQ, error) {
	const op = "create a completion queue"
	if entries <= 0 || entries > math.MaxInt32 {
		return nil, fault(op, fmt.Errorf("%d entries: ask for at least 1", entries))
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

// Size returns the queue's capacity in completions.
func (c *CQ) Size() int { return c.size }

// use installs r as the queue's ring.
func (c *CQ) use(r *ring) {
	c.ring = r
	if r != nil && r.own {
		r = nil
	}
	c.look.Store(r)
}

// Poll takes up to len(wc) completions from the queue and returns their number. It neither waits nor
// allocates. The error concerns the device or the queue; the result of a work request is in WC.Status.
func (c *CQ) Poll(wc []WC) (int, error) {
	if r := c.look.Load(); r != nil && r.empty() {
		return 0, c.emptyPoll(len(wc))
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
		return 0, c.emptyPoll(len(wc))
	}
	if c.polls.Load() != 0 {
		c.polls.Store(0)
	}
	return n, nil
}

// Completions iterates over the completions in the queue until the queue is empty. It does not wait. The
// WC of an iteration is valid until the next iteration.
func (c *CQ) Completions() iter.Seq2[*WC, error] {
	return func(yield func(*WC, error) bool) {
		var wc [1]WC // one at a time: a caller that stops early loses no completion
		for {
			n, err := c.Poll(wc[:])
			if n == 0 && err == nil || !yield(&wc[0], err) || err != nil {
				return
			}
		}
	}
}

// emptyPoll handles a poll that found no completion: every yieldEvery-th one yields the processor.
func (c *CQ) emptyPoll(wanted int) error {
	if c.d.gone.Load() {
		return fault("poll", c.d.err())
	}
	n := c.polls.Add(1)
	if n%yieldEvery == 0 && wanted > 0 && c.waiter.TryLock() {
		c.d.backend.Yield(&c.waiter.Waiter, n == yieldEvery)
		c.waiter.Unlock()
	}
	return nil
}

var errPollClosed = &Error{Op: "poll", Err: ErrClosed}

// waiting reports whether the queue has a completion to poll.
func (c *CQ) waiting() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ring == nil {
		return false, errPollClosed
	}
	return c.ring.waiting() > 0, nil
}

// Resize changes the queue's capacity. Completions in the queue are kept.
func (c *CQ) Resize(entries int) error {
	const op = "resize a completion queue"
	if entries <= 0 || entries > math.MaxInt32 {
		return fault(op, fmt.Errorf("%d entries: ask for at least 1", entries))
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

// Close destroys the queue. Close the queue pairs that use it first.
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

// A WC is a completion. If Status is not Success, only ID, Status, QPN and VendorErr are valid.
type WC struct {
	ID        uint64 // the ID of the work request
	Status    Status
	Op        WCOp
	Bytes     uint32 // bytes received
	QPN       uint32 // number of the local queue pair
	SrcQP     uint32 // UD: number of the sender's queue pair
	Imm       uint32 // the immediate value if Flags has WithImm; the invalidated key if it has WithInvalidate
	Flags     WCFlags
	VendorErr uint32
	PKeyIndex uint16 // UD; this field and the next three are 0 on RoCE
	SLID      uint16
	SL        uint8
	PathBits  uint8
}

// A WCOp is the operation that a completion is for: enum ibv_wc_opcode.
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
	WCRecvImm         WCOp = abi.WCOpRecvWriteImm // an RDMA write with immediate consumed the receive
)

// WCFlags describe a completed receive.
type WCFlags uint32

const (
	WithGRH        WCFlags = abi.WCFlagGRH // the first 40 bytes are the global route header (UD)
	WithImm        WCFlags = abi.WCFlagImm
	WithInvalidate WCFlags = abi.WCFlagInv
)

// Err returns nil if the work request succeeded, and its Status otherwise.
func (w *WC) Err() error { return w.Status.Err() }

// take decodes a completion from its ring entry b.
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
