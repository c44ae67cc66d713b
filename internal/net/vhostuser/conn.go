package vhostuser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A Device is what a back end serves.
type Device struct {
	// Features are those of virtio that it has beside those of rings.
	Features uint64
	// Rings is how many virtqueues there may be; Queues is what GET_QUEUE_NUM answers, which is
	// pairs for a network card.
	Rings, Queues int
	// MTU is the one that the front end is to have, if it has one (NetMTU); 0: any.
	MTU int

	// Kicked hears that the driver has made something available, on the ring's own goroutine, and
	// once when the ring is enabled.
	Kicked func(*Ring)
	// Remembers hears that the guest has another memory now, or none when the front end has gone. It
	// is called between two requests.
	Remembers func(*Conn)
	// Stops hears that the driver has stopped a ring, because the guest was reset, shut down or is being
	// migrated, before the front end is answered: it does not go on until Stops returns.
	Stops func(*Conn)
	// Announce hears that the guest has come here, and is to be announced by this MAC: it was
	// migrated.
	Announce func(mac [6]byte)
	// Broken hears of a ring that was stopped because its driver broke the rules. The ring is held.
	Broken func(*Ring, error)

	// Map hears that so many bytes of the guest's memory are to be mapped, and says who hears that they no longer
	// are, or why they may not be. A front end can have memory kept that it has not any more, and come several
	// times; a file that is empty has any size. nil: there is no limit but that of one table.
	Map func(size uint64) (unmapped func(), err error)

	// Held counts goroutines that front ends can hold up, of all connections with this device: one after another
	// could leave some. While there are many the next is refused. nil: those of this connection only.
	Held *atomic.Int32
}

// A Conn is the connection with one front end.
type Conn struct {
	device *Device
	socket *net.UnixConn
	wake   chan struct{} // somebody is to be called
	ended  chan struct{}
	held   *atomic.Int32

	mu       sync.Mutex // guards what is below
	memory   *Memory    // nil: there is none
	features uint64     // that the driver took
	protocol uint64     // that the front end took
	rings    []*Ring    // does not change
	body     [maxPayload]byte
}

// Serve serves a device to the front end at a socket, until that has gone, which is no error, or has done
// something that cannot be. ready hears of the Conn before the first request. The socket is closed.
func Serve(socket *net.UnixConn, d *Device, ready func(*Conn)) error {
	defer socket.Close()
	c := &Conn{device: d, socket: socket, rings: make([]*Ring, d.Rings), wake: make(chan struct{}, 1), ended: make(chan struct{}), held: d.Held}
	if c.held == nil {
		c.held = new(atomic.Int32)
	}
	if n := c.held.Load(); n > mostHeld {
		return fmt.Errorf("front ends before this one hold up %d goroutines by their eventfds: they have to end first", n)
	}
	for i := range c.rings {
		c.rings[i] = &Ring{Index: i, conn: c}
	}
	if ready != nil {
		ready(c)
	}
	c.spawn(c.caller)
	defer c.end()
	for {
		m, err := c.receive()
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

// Close has Serve return.
func (c *Conn) Close() { c.socket.Close() }

// Rings returns the device's, started or not.
func (c *Conn) Rings() []*Ring { return c.rings }

// Features are those that the driver took.
func (c *Conn) Features() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.features
}

// Memory returns the guest's RAM as it is now, which whoever asks releases; nil: there is none.
func (c *Conn) Memory() *Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memory == nil {
		return nil
	}
	return c.memory.hold()
}

// Owns reports whether an address of ours, at which there was a fault, is in the guest's memory.
func (c *Conn) Owns(at uintptr) bool {
	m := c.Memory()
	if m == nil {
		return false
	}
	defer m.Release()
	for _, r := range m.regions {
		if at-address(r.whole) < uintptr(len(r.whole)) {
			return true
		}
	}
	return false
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
	if _, err := io.ReadFull(c.socket, header[n:]); err != nil {
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
	_, err = io.ReadFull(c.socket, m.body)
	return m, err
}

// descriptors are those that came with a message. They are not inherited by what the daemon starts:
// the runtime asks for MSG_CMSG_CLOEXEC.
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

// answer does what a message asks for.
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

// end lets go of everything.
func (c *Conn) end() {
	var all sync.WaitGroup
	for _, r := range c.rings {
		all.Go(r.stop) // each may take a while
	}
	all.Wait()
	for _, r := range c.rings {
		r.mu.Lock()
		r.place(nil)
		r.mu.Unlock()
		r.setCall(nil)
	}
	close(c.ended)
	c.setMemory(nil)
	c.atMost(0)
}
