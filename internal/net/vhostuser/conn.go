package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Device describes the device that a back end serves.
type Device struct {
	// Features are the virtio features of the device, besides those of rings.
	Features uint64
	// Rings is the maximum number of virtqueues. Queues is the answer to GET_QUEUE_NUM, which counts pairs for a network card.
	Rings, Queues int
	// MTU is the required MTU of the front end, if it sets one (NetMTU); 0 allows any.
	MTU int

	// Unlogged: the user of the package writes to the guest's memory besides the rings. LogAll is not offered, so QEMU refuses to migrate.
	Unlogged bool

	// Kicked is called on the ring's own goroutine when the driver has made chains available, and once when the ring is enabled.
	Kicked func(*Ring)
	// Remembers is called between two requests when the guest's memory has changed, or is gone with the front end.
	Remembers func(*Conn)
	// Starts is called before the first ring starts. After an error the connection ends.
	Starts func(*Conn) error
	// Stops is called when the last ring has stopped, because the guest was paused, reset, shut down or is being migrated, or the front
	// end has gone. The front end waits for its answer until Stops returns.
	Stops func(*Conn)
	// Announce is called when the guest was migrated to this host and its MAC must be announced.
	Announce func(mac [6]byte)
	// Broken is called for a ring that was stopped because its driver violated the protocol. The ring is locked.
	Broken func(*Ring, error)

	// Map is called before size bytes of the guest's memory are mapped. It returns an error to refuse that, or a function that is
	// called when they are unmapped. A front end can keep old memory mapped and connect several times, and a sparse file can have any
	// size. If Map is nil, only the limits of one table apply.
	Map func(size uint64) (unmapped func(), err error)

	// Held counts the goroutines of all connections of this device that front ends may block. If there are many, the next connection is
	// refused. nil counts only those of this connection.
	Held *atomic.Int32
}

// features returns what is offered.
func (d *Device) features() uint64 {
	f := d.Features | ringFeatures
	if !d.Unlogged {
		f |= LogAll
	}
	return f
}

// A Conn is the connection with one front end.
type Conn struct {
	device *Device
	socket *net.UnixConn
	wake   chan struct{} // a driver must be interrupted
	ended  chan struct{}
	held   *atomic.Int32
	pause  atomic.Pointer[pause] // nil: requests are answered (succession.go)
	runs   bool                  // between Starts and Stops; only Serve uses it

	mu       sync.Mutex // guards the fields below
	memory   *Memory    // nil: none
	features uint64     // accepted by the driver
	protocol uint64     // accepted by the front end
	log      *Region    // the log of written pages (dirtylog.go); nil: none
	rings    []*Ring    // never changes
	body     [maxPayload]byte
}

// Serve serves a device to the front end at a socket until the front end disconnects, which is not an error, or violates the protocol.
// ready is called with the Conn before the first request. Serve closes the socket.
func Serve(socket *net.UnixConn, d *Device, ready func(*Conn)) error {
	defer socket.Close()
	c := newConn(socket, d)
	if n := c.held.Load(); n > mostHeld {
		return fmt.Errorf("front ends before this one hold up %d goroutines by their eventfds: they have to end first", n)
	}
	if ready != nil {
		ready(c)
	}
	c.spawn(c.caller)
	return c.answerAll()
}

func newConn(socket *net.UnixConn, d *Device) *Conn {
	c := &Conn{device: d, socket: socket, rings: make([]*Ring, d.Rings), wake: make(chan struct{}, 1), ended: make(chan struct{}), held: d.Held}
	if c.held == nil {
		c.held = new(atomic.Int32)
	}
	for i := range c.rings {
		c.rings[i] = &Ring{Index: i, conn: c}
	}
	return c
}

// answerAll answers requests until the front end disconnects, and releases all resources.
func (c *Conn) answerAll() error {
	defer c.end()
	for {
		m, err := c.receive()
		if errors.Is(err, os.ErrDeadlineExceeded) { // no part of a message has arrived
			c.rest()
			continue
		}
		if err == nil {
			err = c.contained(func() error { return c.answer(&m) })
			closeAll(m.fds)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return err
		}
	}
}

// Close makes Serve return.
func (c *Conn) Close() { c.socket.Close() }

// Rings returns the device's rings, started or not.
func (c *Conn) Rings() []*Ring { return c.rings }

// Features returns the features that the driver accepted.
func (c *Conn) Features() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.features
}

// Memory returns the guest's current RAM, which the caller must release; nil if there is none.
func (c *Conn) Memory() *Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memory == nil {
		return nil
	}
	return c.memory.hold()
}

// Owns reports whether an address of this process, at which a fault occurred, lies in the guest's memory, or in its log.
func (c *Conn) Owns(at uintptr) bool {
	c.mu.Lock()
	logged := c.log != nil && c.log.contains(at)
	c.mu.Unlock()
	if logged {
		return true
	}
	m := c.Memory()
	if m == nil {
		return false
	}
	defer m.Release()
	return m.Contains(at)
}

// receive reads a message. The descriptors come with its header.
func (c *Conn) receive() (m message, err error) {
	var header [headerSize]byte
	oob := make([]byte, unix.CmsgSpace(4*maxRegions))
	n, oobn, flags, _, err := c.socket.ReadMsgUnix(header[:], oob)
	if err != nil {
		return m, err
	}
	fds := descriptors(oob[:oobn])
	defer func() {
		if err != nil {
			closeAll(fds)
		}
	}()
	if n == 0 {
		return m, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return m, fmt.Errorf("a message had more than %d descriptors", maxRegions)
	}
	if err := c.readAll(header[n:]); err != nil {
		return m, err
	}
	m, size, err := parseHeader(header[:])
	if err != nil {
		return m, err
	}
	if f := forms[m.request]; len(fds) > f.fds {
		return m, fmt.Errorf("%v came with %d descriptors: it has %d at most", m.request, len(fds), f.fds)
	}
	m.body, m.fds = c.body[:size], fds
	return m, c.readAll(m.body)
}

// readAll reads the rest of a message, also while Pause waits.
func (c *Conn) readAll(b []byte) error {
	for {
		n, err := io.ReadFull(c.socket, b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		b = b[n:]
		c.socket.SetReadDeadline(time.Time{}) // fails if it is closed, as ReadFull does
	}
}

// descriptors returns the descriptors of a message. They are close-on-exec, because the runtime sets MSG_CMSG_CLOEXEC.
func descriptors(oob []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// answer executes a request.
func (c *Conn) answer(m *message) error {
	reply, err := forms[m.request].do(c, m)
	if err != nil {
		err = fmt.Errorf("%v: %w", m.request, err)
	}
	if reply == nil && m.flags&flagNeed != 0 && c.protocol&protocolReplyAck != 0 {
		reply = make([]byte, 8)
		if err != nil {
			reply[0] = 1
		}
	}
	if reply != nil {
		if _, werr := c.socket.Write(putReply(m.request, reply)); err == nil {
			err = werr
		}
	}
	return err
}

// end releases all resources.
func (c *Conn) end() {
	var all sync.WaitGroup
	for _, r := range c.rings {
		all.Go(r.stop) // concurrently: each may take a while
	}
	all.Wait()
	c.stopped()
	for _, r := range c.rings {
		r.mu.Lock()
		r.place(nil)
		r.mu.Unlock()
		r.setCall(nil)
	}
	close(c.ended)
	c.setMemory(nil)
	c.setLog(nil)
	c.atMost(0)
}
