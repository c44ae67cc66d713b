package stream

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/cm"
)

const (
	// handshake is how long a peer has to finish a connection.
	handshake = 10 * time.Second
	// linger is how long Close waits until what was written has left.
	linger = 5 * time.Second
	// inlineMost is how many bytes are sent out of the request itself.
	inlineMost = 64
	// controls is how many messages without data we may have under way.
	controls = 4
	// spare is how many receives there are beyond those that the peer was promised.
	spare = 16
	// A goroutine looks so often, each time for so long, whether something happens before it
	// sleeps: to be woken takes longer than what most wait for. After so many looks in vain in a
	// row it sleeps at once, but for every so many waits.
	looks     = 50
	look      = 2 * time.Microsecond
	fewMisses = 4
	lookAgain = 8
)

// A Conn is a connection. It implements net.Conn, with CloseRead and CloseWrite.
type Conn struct {
	p    *Provider
	cm   *cm.Conn
	cq   *verbs.CQ
	mr   *verbs.MR
	in   buffer // receive buffer, which the peer writes
	out  buffer // send buffer
	swap bool   // the peer has the other byte order
	peer hello

	readBy, writeBy deadline
	closing         chan struct{} // closed by Close
	closed          sync.Once
	leader          chan struct{} // holds one: whoever has taken it waits for completions

	reading, writing sync.Mutex // one reader and one writer at a time

	mu      sync.Mutex
	changed chan struct{} // closed when something has happened; nil: nobody waits
	err     error         // why nothing works any more
	ended   bool          // the peer sends nothing more
	gone    bool          // the peer takes nothing more either
	noWrite bool          // CloseWrite was called

	// What we may send: messages until sent is promised, bytes into where.
	sent, promised uint16
	where          []area // where we may write to, next first
	entry          int    // of the table, that the peer writes next
	outAt, outFree int    // next byte of out, and how many are free
	requests       int    // free in the send queue
	control        int    // messages without data that we may send
	flying         int    // requests that have not completed

	// What has come: lengths of messages in in, from inAt on.
	messages       []uint32
	head, count    int
	unread         int // bytes of them
	inAt           int
	inFree, inNext int // bytes that the program has read and the peer has not been told of, and where the next half begins
	taken, toldOf  uint16
	theirEntry     uint32
	misses         uint // waits in a row that looking did not end
	growth         growth
	wc             [32]verbs.WC
	write          verbs.SendWR
	sgl            [2]verbs.SGE
}

var _ net.Conn = (*Conn)(nil)

// tableRoom is the beginning of the memory: the table that the peer writes, and what we write into its.
const tableRoom = 4096

// newConn makes what a connection needs before it has a peer.
func (p *Provider) newConn() (*Conn, error) {
	c := &Conn{
		p: p, readBy: newDeadline(), writeBy: newDeadline(), closing: make(chan struct{}), leader: make(chan struct{}, 1),
		messages: make([]uint32, p.cfg.Messages+spare), requests: p.cfg.Messages, control: controls,
	}
	c.leader <- struct{}{}
	var err error
	if c.cq, err = p.dev.CreateCQ(2*p.cfg.Messages + controls + spare); err != nil {
		return nil, err
	}
	if c.mr, err = p.pd.Alloc(tableRoom+2*p.cfg.Buffer, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		c.cq.Close()
		return nil, err
	}
	c.in, c.out = part(c.mr, tableRoom, p.cfg.Buffer), part(c.mr, tableRoom+p.cfg.Buffer, p.cfg.Buffer)
	c.outFree = len(c.out.mem)
	c.inFree, c.inNext = len(c.in.mem)/2, len(c.in.mem)/2
	c.toldOf = uint16(p.cfg.Messages / 2)
	c.theirEntry = 1
	return c, nil
}

// config is how its queue pair is connected.
func (c *Conn) config() cm.Config {
	h := hello{
		credits: uint16(c.p.cfg.Messages), table: area{c.mr.Addr(0), c.mr.RKey(), sgls},
		data: c.in.area(0, len(c.in.mem)/2),
	}
	if bigEndian() {
		h.flags |= flagNet
	}
	return cm.Config{
		PD: c.p.pd, Private: h.append(nil), Reads: 1,
		QP: verbs.QPConfig{
			SendCQ: c.cq, MaxSend: c.p.cfg.Messages + controls, MaxRecv: c.p.cfg.Messages + spare, MaxSendSGE: 2, MaxInline: inlineMost, SignalAll: true,
		},
		Prepare: func(q *verbs.QP) error {
			for range c.p.cfg.Messages + spare {
				if err := q.PostRecv(&verbs.RecvWR{ID: receive}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// IDs of requests: those of sends have the operation and its argument, as the immediate value has.
const receive = 1 << 63

// greeted takes what the peer says of itself.
func (c *Conn) greeted(b []byte) error { return c.peer.parse(b) }

// begin makes the connection usable.
func (c *Conn) begin(conn *cm.Conn) error {
	if c.peer.table.length == 0 {
		if err := c.greeted(conn.Private()); err != nil {
			return err
		}
	}
	c.cm = conn
	c.swap = (c.peer.flags&flagNet != 0) != bigEndian()
	c.promised = c.peer.credits
	c.where = append(make([]area, 0, sgls), c.peer.data)
	c.entry = 1
	if !c.p.keep(c) {
		return verbs.ErrClosed
	}
	return nil
}

// free gives back what newConn made.
func (c *Conn) free() {
	c.mr.Close()
	c.cq.Close()
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return Addr{c.cm.LocalAddr()} }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return Addr{c.cm.RemoteAddr()} }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readBy, t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeBy, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	if isClosed(c.closing) {
		return c.fault("set", net.ErrClosed)
	}
	d.set(t)
	return nil
}

// fault is an error as package net has them.
func (c *Conn) fault(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.await(&c.readBy, func() bool { return c.count > 0 || c.ended || len(b) == 0 }); err != nil {
		return 0, c.fault("read", err)
	}
	if len(b) == 0 {
		return 0, nil
	}
	n := c.take(b)
	if n == 0 {
		return 0, io.EOF
	}
	c.tell()
	return n, nil
}

// take copies what has come.
func (c *Conn) take(b []byte) (n int) {
	for n < len(b) && c.count > 0 {
		m := &c.messages[c.head]
		k := copy(b[n:], c.in.mem[c.inAt:min(len(c.in.mem), c.inAt+int(*m))])
		n, c.unread = n+k, c.unread-k
		c.inAt = (c.inAt + k) % len(c.in.mem)
		if !c.outgrown(k) {
			c.inFree += k
		}
		if *m -= uint32(k); *m == 0 {
			c.head, c.count = (c.head+1)%len(c.messages), c.count-1
			c.taken++
		}
	}
	return n
}

// tell tells the peer of room, when there is enough of it to be worth a message.
func (c *Conn) tell() {
	half := len(c.in.mem) / 2
	room := c.growth.left == 0 && c.inFree >= half
	if c.gone || c.err != nil || c.control == 0 || !room && int16(c.taken-c.toldOf) < 0 {
		return
	}
	c.toldOf = c.taken + uint16(c.p.cfg.Messages/2)
	imm := message(opSGL, uint32(c.taken+uint16(c.p.cfg.Messages)))
	if !room {
		c.sendControl(imm, nil, 0)
		return
	}
	a := c.grown()
	if a.length == 0 {
		a = c.in.area(c.inNext, half)
		c.inFree -= half
		c.inNext = (c.inNext + half) % len(c.in.mem)
	}
	if c.swap {
		a = a.swapped()
	}
	var entry [sglSize]byte
	a.put(entry[:])
	c.sendControl(imm, entry[:], c.peer.table.addr+uint64(c.theirEntry)*sglSize)
	c.theirEntry = (c.theirEntry + 1) % c.peer.table.length
}

// sendControl sends a message without data, and perhaps writes an entry of the peer's table.
func (c *Conn) sendControl(imm uint32, entry []byte, at uint64) {
	c.control--
	c.flying++
	wr := verbs.SendWR{ID: uint64(imm), Op: verbs.WriteImm, Imm: imm, Data: entry, RemoteAddr: at, RKey: c.peer.table.key}
	if err := c.cm.QP().PostSend(&wr); err != nil {
		c.fail(err)
	}
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for first := true; first || n < len(b); first = false {
		if err := c.await(&c.writeBy, c.mayWrite); err != nil {
			return n, c.fault("write", err)
		}
		switch {
		case c.noWrite || c.gone:
			return n, c.fault("write", syscall.EPIPE)
		case len(b) == 0:
			return 0, nil
		}
		k, err := c.send(b[n:])
		if n += k; err != nil {
			return n, c.fault("write", err)
		}
	}
	return n, nil
}

// mayWrite reports whether a message can be sent, or never will.
func (c *Conn) mayWrite() bool {
	return c.noWrite || c.gone || c.requests > 0 && c.outFree > 0 && c.sent != c.promised && len(c.where) > 0
}

// send sends one message of at most what fits.
func (c *Conn) send(b []byte) (int, error) {
	to := &c.where[0]
	n := min(len(b), c.outFree, int(to.length))
	wr := &c.write
	*wr = verbs.SendWR{ID: uint64(message(opData, uint32(n))), Op: verbs.WriteImm, Imm: message(opData, uint32(n)), RemoteAddr: to.addr, RKey: to.key}
	if n <= inlineMost {
		wr.Data = b[:n]
	} else {
		first := copy(c.out.mem[c.outAt:], b[:n])
		c.sgl[0] = c.out.slice(c.outAt, first)
		wr.SGL = c.sgl[:1]
		if first < n {
			copy(c.out.mem, b[first:n])
			c.sgl[1] = c.out.slice(0, n-first)
			wr.SGL = c.sgl[:2]
		}
	}
	if err := c.cm.QP().PostSend(wr); err != nil {
		c.fail(err)
		return 0, err
	}
	c.outAt, c.outFree = (c.outAt+n)%len(c.out.mem), c.outFree-n
	c.sent++
	c.requests--
	c.flying++
	to.addr, to.length = to.addr+uint64(n), to.length-uint32(n)
	if to.length == 0 {
		c.where = append(c.where[:0], c.where[1:]...)
		c.findRoom()
	}
	return n, nil
}

// findRoom looks where the peer lets us write next.
func (c *Conn) findRoom() {
	for len(c.where) < sgls {
		at := c.mr.Bytes()[c.entry*sglSize : (c.entry+1)*sglSize]
		// The peer may be writing the entry just now. Half of one is left alone: its message is still to come, and
		// then we look again. We have left zeros there.
		a := getArea(at)
		if a.addr == 0 || a.length == 0 || a != getArea(at) {
			return
		}
		area{}.put(at)
		c.where = append(c.where, a)
		c.growOut(int(a.length))
		c.entry = (c.entry + 1) % sgls
	}
}

// fail ends everything.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.ended, c.gone = true, true
}

// CloseWrite tells the peer that nothing more comes. Reading goes on.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isClosed(c.closing) {
		return c.fault("close", net.ErrClosed)
	}
	if c.noWrite || c.gone {
		return nil
	}
	c.noWrite = true
	what := uint32(controlShutdown)
	if c.ended {
		what = controlDisconnect
	}
	c.finish(what)
	return nil
}

// CloseRead ends reading. To the peer nothing changes.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.broadcast()
	return nil
}

// finish sends a last message.
func (c *Conn) finish(what uint32) {
	limit := newDeadline()
	limit.set(time.Now().Add(linger))
	defer limit.set(time.Time{})
	if c.await(&limit, func() bool { return c.control > 0 || c.gone }) == nil && !c.gone {
		c.sendControl(message(opControl, what), nil, 0)
	}
	c.broadcast()
}

// Close implements net.Conn. What was written before has left when it returns.
func (c *Conn) Close() error {
	c.p.forget(c)
	if err := c.end(true); err != nil {
		return c.fault("close", err)
	}
	return nil
}

// end ends the connection and frees what it has; orderly: the peer is told, and what was written leaves.
func (c *Conn) end(orderly bool) error {
	err := net.ErrClosed
	c.closed.Do(func() {
		c.mu.Lock()
		if orderly && !c.gone {
			c.noWrite = true
			c.finish(controlDisconnect)
			limit := newDeadline()
			limit.set(time.Now().Add(linger))
			_ = c.await(&limit, func() bool { return c.flying == 0 || c.gone })
			limit.set(time.Time{})
		}
		close(c.closing)
		c.fail(net.ErrClosed)
		c.broadcast()
		c.mu.Unlock()
		err = errors.Join(c.cm.Close(), c.cq.Close(), c.mr.Close(), c.growth.close())
	})
	return err
}

// errTimeout is what a deadline gives.
var errTimeout = os.ErrDeadlineExceeded
