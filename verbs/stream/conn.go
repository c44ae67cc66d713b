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
	// handshake is the time limit for a peer to finish a connection.
	handshake = 10 * time.Second
	// linger is the longest time that Close waits for written data to be delivered.
	linger = 5 * time.Second
	// inlineMost is the largest message that is sent as inline data.
	inlineMost = 64
	// controls is the maximum number of control messages (without data) in flight.
	controls = 4
	// spare is the number of receives beyond those that the peer may use.
	spare = 16
	// A goroutine polls `spinRounds` times, for `spinTime` each, before it sleeps: waking up takes longer than most
	// waits. After maxMisses unsuccessful phases in a row it sleeps at once, but polls again in every
	// pollAgain-th wait.
	spinRounds = 50
	spinTime   = 2 * time.Microsecond
	maxMisses  = 4
	pollAgain  = 8
)

// A Conn is a connection. It implements net.Conn, with CloseRead and CloseWrite.
type Conn struct {
	p    *Provider
	cm   *cm.Conn
	cq   *verbs.CQ
	mr   *verbs.MR
	in   buffer // receive buffer, written by the peer
	out  buffer // send buffer
	swap bool   // the peer has the opposite byte order
	peer hello

	readBy, writeBy deadline
	closing         chan struct{} // closed by Close
	closed          sync.Once
	leader          chan struct{} // a token: the goroutine that holds it waits for completions

	reading, writing sync.Mutex // allow one reader and one writer at a time

	mu      sync.Mutex
	changed chan struct{} // closed at a change; nil if no goroutine waits
	err     error         // set when the connection has failed
	ended   bool          // the peer has shut down its sending side
	gone    bool          // the peer has disconnected
	noWrite bool          // CloseWrite was called

	// Flow control for sending: messages up to number promised, bytes into the areas where.
	sent, promised uint16
	where          []area // areas of the peer's buffer, in order of use
	entry          int    // index of the table entry that the peer writes next
	outAt, outFree int    // next byte of out, and number of free bytes
	requests       int    // free entries of the send queue
	control        int    // control messages that may be sent
	flying         int    // outstanding requests

	// Received data: lengths of the messages in the buffer in, from inAt on.
	messages       []uint32
	head, count    int
	unread         int // their bytes
	inAt           int
	inFree, inNext int // bytes read but not yet offered to the peer again, and the start of the next half
	taken, toldOf  uint16
	theirEntry     uint32
	misses         uint // consecutive waits in which polling was unsuccessful
	growth         growth
	wc             [32]verbs.WC
	write          verbs.SendWR
	sgl            [2]verbs.SGE
}

var _ net.Conn = (*Conn)(nil)

// tableRoom is the size of the first part of the memory: the table that the peer writes, and the entries to
// write into the peer's table.
const tableRoom = 4096

// newConn allocates what a connection needs before it has a peer.
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

// config returns the configuration of the connection's queue pair.
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

// receive marks the ID of a receive. The ID of a send is its immediate value: operation and argument.
const receive = 1 << 63

// parseHello parses the peer's hello.
func (c *Conn) parseHello(b []byte) error { return c.peer.parse(b) }

// begin makes the connection ready to use.
func (c *Conn) begin(conn *cm.Conn) error {
	if c.peer.table.length == 0 {
		if err := c.parseHello(conn.Private()); err != nil {
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

// free releases the resources of newConn.
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

// fault converts an error to a *net.OpError.
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
	c.offerSpace()
	return n, nil
}

// take copies received data to b.
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

// offerSpace offers free buffer space to the peer, if it is worth a message.
func (c *Conn) offerSpace() {
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

// sendControl sends a message without data; it can also write an entry of the peer's table.
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

// mayWrite reports whether send can proceed, or never will.
func (c *Conn) mayWrite() bool {
	return c.noWrite || c.gone || c.requests > 0 && c.outFree > 0 && c.sent != c.promised && len(c.where) > 0
}

// send sends one message with as much of b as fits.
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
		c.readOffers()
	}
	return n, nil
}

// readOffers reads from the table the areas that the peer offers.
func (c *Conn) readOffers() {
	for len(c.where) < sgls {
		at := c.mr.Bytes()[c.entry*sglSize : (c.entry+1)*sglSize]
		// The peer may be writing this entry. Skip an incomplete entry: the message that announces it follows,
		// and then we read the entry again. We reset each entry to zero after reading.
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

// fail marks the connection as failed.
func (c *Conn) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.ended, c.gone = true, true
}

// CloseWrite shuts down the sending side. Reading continues.
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

// CloseRead shuts down the reading side. The peer does not notice.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.broadcast()
	return nil
}

// finish sends the last control message.
func (c *Conn) finish(what uint32) {
	limit := newDeadline()
	limit.set(time.Now().Add(linger))
	defer limit.set(time.Time{})
	if c.await(&limit, func() bool { return c.control > 0 || c.gone }) == nil && !c.gone {
		c.sendControl(message(opControl, what), nil, 0)
	}
	c.broadcast()
}

// Close implements net.Conn. It waits until all written data has been delivered, at most for linger.
func (c *Conn) Close() error {
	c.p.forget(c)
	if err := c.end(true); err != nil {
		return c.fault("close", err)
	}
	return nil
}

// end closes the connection and frees its resources. If orderly is true, it delivers written data and sends
// a disconnect to the peer first.
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

// errTimeout is the error of an expired deadline.
var errTimeout = os.ErrDeadlineExceeded
