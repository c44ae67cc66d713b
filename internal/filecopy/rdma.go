package filecopy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

const (
	// messagesAhead is how many messages may be unacknowledged. The peer acknowledges every messagesAck of them.
	messagesAhead = 16
	messagesAck   = 4
	// maxSlots is the largest window.
	maxSlots = 32
	// receives is how many receives are posted: for messages, chunks or credits, and acknowledgements of messages.
	receives = messagesAhead + maxSlots + messagesAhead/messagesAck
	// sendBuffers is twice messagesAhead: the peer may have received a message whose completion comes later.
	sendBuffers = 2 * messagesAhead
	// quietAhead is how many writes and credits may be posted without a known completion. A NIC above its receive cap delays
	// acknowledgements but not credits, so credits alone do not limit the queue. Every quietSignal-th is signaled, which completes
	// all before it. The others wake no one up.
	quietAhead  = 2 * maxSlots
	quietSignal = maxSlots / 2
)

// The immediate of a message without data is a credit: the number of a slot, or with takenMessages the number of received messages.
const takenMessages = 1 << 31

// Types of work requests, in the upper half of their IDs.
const (
	workReceive = iota << 32
	workSend
	workQuiet
)

// A device is the RDMA implementation of a Transport.
type device struct {
	dev *verbs.Device
	pd  *verbs.PD
	m   *cm.Manager
}

// OpenRDMA opens the device of a daemon's socket.
func OpenRDMA(ctx context.Context, socket string) (Transport, error) {
	dev, err := verbs.Options{Socket: socket}.Open(ctx)
	if err != nil {
		return Transport{}, err
	}
	d := &device{dev: dev}
	if d.pd, err = dev.AllocPD(); err == nil {
		d.m, err = cm.New(dev)
	}
	if err != nil {
		dev.Close()
		return Transport{}, err
	}
	return Transport{d}, nil
}

const nameRDMA = "RDMA"

func (d *device) name() string { return nameRDMA }

func (d *device) addresses() (list []netip.Addr) {
	entries, err := d.dev.GIDs()
	if err != nil {
		return nil
	}
	for _, e := range entries {
		list = append(list, e.GID.Addr())
	}
	return list
}

func (d *device) close() error { return errors.Join(d.m.Close(), d.dev.Close()) }

// An rdmaConn is a connection over RDMA.
type rdmaConn struct {
	d        *device
	c        *cm.Conn
	cq       *verbs.CQ
	messages *verbs.MR // receives, then sendBuffers, each of maxMessage bytes
	slots    *verbs.MR // of the window, or the source of writes to the peer's; nil: not made yet
	list     []slot    // of slots
	wc       [16]verbs.WC

	// Used by the owner only.
	in       []arrival // received messages, in their receive buffers
	taken    int       // messages received since the last acknowledgement
	chunks   []arrival // received, in their slots
	free     []int     // free slots
	state    []slotState
	rounds   [32]time.Duration // how long the last slots took to come back
	returned uint64            // how many came back
	posted   uint64            // writes and credits
	over     uint64            // of these, known to be complete
	peer     window

	mu    sync.Mutex
	cond  *sync.Cond
	sent  uint64 // guarded by mu: messages
	acked uint64 // guarded by mu: of these, acknowledged by the peer
	gone  uint64 // guarded by mu: of these, complete
	err   error  // guarded by mu: why sending has ended

	shutOnce sync.Once
}

type arrival struct{ at, length int }

// slotState is the state of a posted slot. A slot is free when the peer has returned it, even if its completion was not seen. That is
// safe: the peer's device has executed the write and completed the receive, so it expects a later packet. If our device retransmits
// from the slot, the packet is a duplicate there, which every device acknowledges without executing it (C9-105).
type slotState struct {
	under bool      // posted and not returned
	at    time.Time // when it was posted
}

// newConn makes the resources of a connection before it is established.
func (d *device) newConn() (*rdmaConn, cm.Config, error) {
	c := &rdmaConn{d: d}
	c.cond = sync.NewCond(&c.mu)
	var err error
	if c.cq, err = d.dev.CreateCQ(receives + sendBuffers + quietAhead); err != nil {
		return nil, cm.Config{}, err
	}
	if c.messages, err = d.pd.Alloc((receives+sendBuffers)*maxMessage, verbs.LocalWrite); err != nil {
		c.cq.Close()
		return nil, cm.Config{}, err
	}
	return c, cm.Config{
		PD:      d.pd,
		QP:      verbs.QPConfig{SendCQ: c.cq, MaxSend: sendBuffers + quietAhead, MaxRecv: receives},
		Prepare: c.prepare,
	}, nil
}

func (c *rdmaConn) prepare(q *verbs.QP) error {
	for i := range receives {
		if err := c.receive(q, i); err != nil {
			return err
		}
	}
	return nil
}

func (c *rdmaConn) receive(q *verbs.QP, i int) error {
	return q.PostRecv(&verbs.RecvWR{ID: workReceive | uint64(i), SGL: []verbs.SGE{c.messages.Slice(i*maxMessage, maxMessage)}})
}

func (c *rdmaConn) discard() {
	c.cq.Close()
	c.messages.Close()
}

func (d *device) dial(ctx context.Context, addr string) (conn, error) {
	c, cfg, err := d.newConn()
	if err != nil {
		return nil, err
	}
	if c.c, err = d.m.Dial(ctx, addr, cfg); err != nil {
		c.discard()
		return nil, err
	}
	return c, nil
}

type rdmaListener struct {
	d *device
	l *cm.Listener
}

func (d *device) listen(addr string) (listener, error) {
	l, err := d.m.Listen(addr, nil)
	if err != nil {
		return nil, err
	}
	return &rdmaListener{d, l}, nil
}

func (l *rdmaListener) accept(ctx context.Context) (func(context.Context) (conn, error), error) {
	r, err := l.l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (conn, error) {
		c, cfg, err := l.d.newConn()
		if err != nil {
			r.Reject(nil)
			return nil, err
		}
		if c.c, err = r.Accept(ctx, cfg); err != nil {
			c.discard()
			return nil, err
		}
		return c, nil
	}, nil
}

func (l *rdmaListener) addr() string { return l.l.Addr().String() }
func (l *rdmaListener) close() error { return l.l.Close() }

func (c *rdmaConn) remote() string { return c.c.RemoteAddr().Addr().String() }

// send implements conn.
func (c *rdmaConn) send(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && (c.sent-c.acked >= messagesAhead || c.sent-c.gone >= sendBuffers) {
		c.cond.Wait()
	}
	if c.err != nil {
		return c.err
	}
	at := (receives + int(c.sent%sendBuffers)) * maxMessage
	b := encode(c.messages.Bytes()[at:at:at+maxMessage], m)
	if len(b) > maxMessage {
		return fmt.Errorf("a message of %d bytes: %d fit", len(b), maxMessage)
	}
	wr := verbs.SendWR{ID: workSend, Op: verbs.Send, Flags: verbs.Signaled, SGL: []verbs.SGE{c.messages.Slice(at, len(b))}}
	if err := c.c.QP().PostSend(&wr); err != nil {
		return broken(context.Background(), err)
	}
	c.sent++
	return nil
}

// credit sends an immediate without data.
func (c *rdmaConn) credit(ctx context.Context, imm uint32) error {
	if err := c.room(ctx); err != nil {
		return err
	}
	return c.quiet(&verbs.SendWR{Op: verbs.SendImm, Imm: imm})
}

// room waits until a write or credit may be posted.
func (c *rdmaConn) room(ctx context.Context) error {
	for c.posted-c.over >= quietAhead {
		if err := c.poll(ctx); err != nil {
			return err
		}
	}
	return nil
}

// quiet posts a write or credit after room has returned.
func (c *rdmaConn) quiet(wr *verbs.SendWR) error {
	wr.ID = workQuiet
	if (c.posted+1)%quietSignal == 0 {
		wr.Flags |= verbs.Signaled
	}
	if err := c.c.QP().PostSend(wr); err != nil {
		return broken(context.Background(), err)
	}
	c.posted++
	return nil
}

// fail records for senders why the connection cannot be used.
func (c *rdmaConn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.cond.Broadcast()
}

// poll waits for completions and dispatches them.
func (c *rdmaConn) poll(ctx context.Context) error {
	n, err := c.cq.Next(ctx, c.wc[:])
	if err != nil {
		return broken(ctx, err)
	}
	for i := range n {
		if err := c.completed(&c.wc[i]); err != nil {
			err = broken(ctx, err)
			c.fail(err)
			return err
		}
	}
	return nil
}

func (c *rdmaConn) completed(w *verbs.WC) error {
	if err := w.Err(); err != nil {
		if w.Status == verbs.Flushed {
			return errors.New("the other side is gone")
		}
		return err
	}
	n := int(uint32(w.ID))
	switch {
	case w.ID&^0xffffffff == workSend:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gone++
		c.cond.Broadcast()
		return nil
	case w.ID&^0xffffffff == workQuiet:
		c.over += quietSignal
		return nil
	case w.Op == verbs.WCRecvImm:
		if uint64(w.Imm) >= uint64(len(c.list)) || w.Bytes < headSize || w.Bytes > headSize+maxChunk {
			return violation("a chunk of %d bytes into slot %d of %d", w.Bytes, w.Imm, len(c.list))
		}
		c.chunks = append(c.chunks, arrival{int(w.Imm), int(w.Bytes) - headSize})
		if len(c.chunks) > len(c.list) {
			return violation("more chunks than it has credits for")
		}
	case w.Flags&verbs.WithImm != 0:
		if err := c.credited(w.Imm); err != nil {
			return err
		}
	default:
		c.in = append(c.in, arrival{n, int(w.Bytes)})
		if len(c.in) > messagesAhead {
			return violation("more than %d messages ahead", messagesAhead)
		}
		return nil // the receive is posted again after the message was decoded
	}
	return c.receive(c.c.QP(), n)
}

// credited handles a credit of the peer.
func (c *rdmaConn) credited(imm uint32) error {
	if imm&takenMessages != 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		n := uint64(imm &^ takenMessages)
		if n > c.sent-c.acked {
			return violation("word that it took %d messages, of %d", n, c.sent-c.acked)
		}
		c.acked += n
		c.cond.Broadcast()
		return nil
	}
	if uint64(imm) >= uint64(len(c.state)) || !c.state[imm].under {
		return violation("a credit for slot %d, which it does not have", imm)
	}
	c.rounds[c.returned%uint64(len(c.rounds))] = time.Since(c.state[imm].at)
	c.returned++
	c.state[imm] = slotState{}
	c.free = append(c.free, int(imm))
	return nil
}

// recv implements conn.
func (c *rdmaConn) recv(ctx context.Context) (message, error) {
	for len(c.in) == 0 {
		if err := c.poll(ctx); err != nil {
			return nil, err
		}
	}
	a := c.in[0]
	c.in = c.in[1:]
	// The peer cannot change it: only a send writes there, and the receive is not posted.
	m, err := decode(c.messages.Bytes()[a.at*maxMessage:][:a.length])
	if err != nil {
		return nil, err
	}
	if err := c.receive(c.c.QP(), a.at); err != nil {
		return nil, broken(ctx, err)
	}
	if c.taken++; c.taken == messagesAck {
		c.taken = 0
		if err := c.credit(ctx, takenMessages|messagesAck); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// make makes the memory of n slots.
func (c *rdmaConn) make(n int, access verbs.Access) (err error) {
	if n < 1 || n > maxSlots {
		return violation("a window of %d slots, where 1 to %d are possible", n, maxSlots)
	}
	if c.slots, err = c.d.pd.Alloc(n*slotSize, access); err != nil {
		return err
	}
	b := c.slots.Bytes()
	c.list = make([]slot, n)
	for i := range c.list {
		c.list[i] = newSlot(i, b[i*slotSize:])
	}
	return nil
}

// open implements conn.
func (c *rdmaConn) open(slots int) error {
	if err := c.make(slots, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		return err
	}
	return c.send(&window{Addr: c.slots.Addr(0), RKey: c.slots.RKey(), Slots: uint32(slots)})
}

// next implements conn.
func (c *rdmaConn) next(ctx context.Context) (*slot, error) {
	for len(c.chunks) == 0 {
		if len(c.in) > 0 {
			return nil, violation("a message among chunks")
		}
		if err := c.poll(ctx); err != nil {
			return nil, err
		}
	}
	a := c.chunks[0]
	c.chunks = c.chunks[1:]
	s := &c.list[a.at]
	s.length = a.length
	return s, nil
}

// release implements conn.
func (c *rdmaConn) release(s *slot) error {
	return c.credit(context.Background(), uint32(s.number)) // shut ends this wait
}

// attach implements conn.
func (c *rdmaConn) attach(ctx context.Context, most int) error {
	m, err := c.recv(ctx)
	if err != nil {
		return err
	}
	w, ok := m.(*window)
	if !ok {
		return violation("%T, not its window", m)
	}
	c.peer = *w
	if w.Slots > maxSlots {
		return violation("a window of %d slots, where 1 to %d are possible", w.Slots, maxSlots)
	}
	if err := c.make(min(int(w.Slots), most), 0); err != nil {
		return err
	}
	c.state = make([]slotState, len(c.list))
	for i := range c.list {
		c.free = append(c.free, i)
	}
	return nil
}

// buffer implements conn.
func (c *rdmaConn) buffer(ctx context.Context) (*slot, error) {
	for len(c.free) == 0 {
		if err := c.poll(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.room(ctx); err != nil {
		return nil, err
	}
	// The slot that came back last is still in the caches.
	last := len(c.free) - 1
	n := c.free[last]
	c.free = c.free[:last]
	return &c.list[n], nil
}

// round implements conn.
func (c *rdmaConn) round() (int, time.Duration) {
	n := min(c.returned, uint64(len(c.rounds)))
	if n == 0 {
		return len(c.list), 0
	}
	return len(c.list), slices.Min(c.rounds[:n])
}

func (c *rdmaConn) unused(s *slot) { c.free = append(c.free, s.number) }

// post implements conn.
func (c *rdmaConn) post(s *slot, n int) error {
	c.state[s.number] = slotState{under: true, at: time.Now()}
	at := s.number*slotSize + slotHead - headSize
	return c.quiet(&verbs.SendWR{
		Op: verbs.WriteImm, Imm: uint32(s.number),
		SGL:        []verbs.SGE{c.slots.Slice(at, headSize+n)},
		RemoteAddr: c.peer.Addr + uint64(at), RKey: c.peer.RKey,
	})
}

// shut implements conn.
func (c *rdmaConn) shut() {
	c.shutOnce.Do(func() {
		c.fail(errors.New("the connection is closed"))
		c.c.Close()
		c.cq.Close() // wakes the owner up
	})
}

func (c *rdmaConn) close() error {
	c.shut()
	err := c.messages.Close()
	if c.slots != nil {
		err = errors.Join(err, c.slots.Close())
	}
	return err
}
