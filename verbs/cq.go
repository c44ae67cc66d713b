package verbs

import (
	"context"
	"fmt"
	"math"
	"sync"

	"vrdma/internal/abi"
	"vrdma/verbs/internal/door"
)

// A CQ is a completion queue. Any goroutine may poll it; one at a time waits.
type CQ struct {
	d      *Device
	handle uint32
	id     uint64
	size   int
	wake   chan struct{}

	mu    sync.Mutex
	ring  *ring // guarded by mu; nil: closed
	empty uint  // polls in a row that found nothing
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
		return nil, fault(op, err)
	}
	c.handle, c.size = r.CQHandle, int(r.CQE)
	if c.ring, err = d.newRing(&rx.MI); err != nil {
		c.Close()
		return nil, fault(op, err)
	}
	return c, nil
}

// completionChannel is the device's, made at first use.
func (d *Device) completionChannel() (int32, error) {
	d.mu.Lock()
	have, id := d.channel != nil, d.channelID
	d.mu.Unlock()
	if have {
		return id, nil
	}
	var r abi.CreateCompChannelResp
	fds, err := exec(d, abi.CmdCreateCompChannel, &abi.CreateCompChannel{Response: d.response()}, nil, decode(&r))
	if err != nil {
		return 0, err
	}
	f, err := d.eventFile(fds, r.FD)
	if err != nil {
		return 0, err
	}
	id = int32(r.FD)
	if len(fds) == 1 {
		id = fds[0].ID
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.channel != nil || d.closed { // somebody else was faster
		f.Close()
		return d.channelID, nil
	}
	d.channel, d.channelID = f, id
	go d.readChannel()
	return id, nil
}

// readChannel wakes those who wait for completions. It ends with the device.
func (d *Device) readChannel() {
	b := make([]byte, abi.Size[abi.CompEvent]())
	for {
		n, err := d.channel.Read(b)
		if err != nil || n == 0 {
			d.end()
			return
		}
		var e abi.CompEvent
		if !abi.Decode(b[:n], &e) {
			continue
		}
		if o, ok := d.objects.Load(e.CQHandle); ok {
			if c, ok := o.(*CQ); ok {
				c.notify()
			}
		}
	}
}

func (c *CQ) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Size is how many completions fit.
func (c *CQ) Size() int { return c.size }

// Poll takes the completions that are there, as many as fit into wc, and returns how many. It does
// not wait and does not allocate. The error is that of the device or queue, not of a completion.
func (c *CQ) Poll(wc []WC) (int, error) {
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
		c.empty = 0
		c.mu.Unlock()
		return n, nil
	}
	c.empty++
	vain := c.empty
	c.mu.Unlock()
	if c.d.gone.Load() {
		return 0, fault("poll", c.d.err())
	}
	if vain%yieldEvery == 0 && len(wc) > 0 {
		door.Yield()
	}
	return 0, nil
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

// Wait waits until there is something to poll. The goroutine sleeps; no thread does.
func (c *CQ) Wait(ctx context.Context) error { return c.wait(ctx, false) }

// WaitSolicited is Wait for completions that the sender marked Solicited, and for errors.
func (c *CQ) WaitSolicited(ctx context.Context) error { return c.wait(ctx, true) }

func (c *CQ) wait(ctx context.Context, solicited bool) error {
	if any, err := c.waiting(); err != nil || any {
		return err
	}
	for {
		if err := c.arm(solicited); err != nil {
			return fault("wait for a completion", err)
		}
		// What came before the arming rings no bell.
		if any, err := c.waiting(); err != nil || any {
			return err
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.d.ended:
			return fault("wait for a completion", c.d.err())
		}
		if any, err := c.waiting(); err != nil || any {
			return err
		}
	}
}

// Next polls, and waits while there is nothing.
func (c *CQ) Next(ctx context.Context, wc []WC) (int, error) {
	for {
		if n, err := c.Poll(wc); n > 0 || err != nil {
			return n, err
		}
		if err := c.Wait(ctx); err != nil {
			return 0, err
		}
	}
}

// Arm asks for a value in Wake with the next completion, or the next one that the sender marked
// Solicited. What came before rings no bell: poll once more before waiting. For those who wait for
// several things at a time; Wait does it all.
func (c *CQ) Arm(solicited bool) error { return fault("wait for a completion", c.arm(solicited)) }

// Wake has a value after Arm, when there may be something to poll.
func (c *CQ) Wake() <-chan struct{} { return c.wake }

func (c *CQ) arm(solicited bool) error {
	if c.d.door.Arm(c.handle, solicited) {
		return nil
	}
	req := abi.ReqNotifyCQ{CQHandle: c.handle}
	if solicited {
		req.SolicitedOnly = 1
	}
	_, err := exec(c.d, abi.CmdReqNotifyCQ, &req, nil, answer{})
	return err
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
		return fault(op, err)
	}
	next, err := c.d.newRing(&rx.MI)
	if err != nil {
		return fault(op, err)
	}
	next.pos = next.consumer()
	c.ring.close()
	c.ring, c.size = next, int(r.CQE)
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
		c.ring = nil
	}
	c.notify()
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
}

// A WCOp is what has completed: enum ibv_wc_opcode.
type WCOp uint32

const (
	WCSend WCOp = iota
	WCWrite
	WCRead
	WCCompareSwap
	WCFetchAdd
	WCBindWindow
	WCLocalInvalidate
	WCAtomicWrite WCOp = 9
	WCRecv        WCOp = 128
	WCRecvImm     WCOp = 129 // a write with immediate took the receive
)

// WCFlags say more about a receive.
type WCFlags uint32

const (
	WithGRH        WCFlags = 1 << 0 // the first 40 bytes are the global route header (UD)
	WithImm        WCFlags = 1 << 1
	WithInvalidate WCFlags = 1 << 3
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
	w.Imm = order.Uint32(b[abi.WCImm:])
	if w.Flags&WithImm != 0 {
		w.Imm = swap32(w.Imm)
	}
}
