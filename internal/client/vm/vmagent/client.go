package vmagent

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A client is a program's connection to the agent. listen forwards its messages to the daemon, speak forwards the daemon's answers to it.
type client struct {
	a    *Agent
	id   uint32
	conn *protocol.Conn
	kind protocol.Kind
	// token identifies the program's process.
	token protocol.Token
	out   chan message
	gone  chan struct{} // closed when the conversation has ended completely

	mu      sync.Mutex
	greeted bool      // the greeting was answered
	freed   bool      // guarded by mu, as the rest
	handles []int     // descriptors for the next message
	space   int       // the memfd of a process's registered memory; 0: none
	arena   int       // the memfd of queues; 0: none
	size    uint64    // size of the arena that has pages
	pins    []*pinned // pins of the arena
	bell    int       // the descriptor to which the program writes; 0: none
}

// A message is a message for the program, with descriptors that are closed after sending.
type message struct {
	b   []byte
	fds []int
}

const (
	mostMessages = 256
	// firstArena is the initial size of an arena: the doorbell page, the arm words, and the rings of an ordinary program.
	firstArena = 2 << 20
	arenaSize  = 1 << 30
	spaceSize  = 1 << 47
)

// listen forwards the program's messages to the daemon.
func (c *client) listen() {
	defer c.conn.Close()
	cred, err := credentials.Credentials(c.conn.UnixConn)
	if err != nil || c.a.line.send(vmproto.Open, c.id, vmproto.OpenBody(vmproto.Person{Pid: uint32(cred.Pid), UID: cred.Uid, GID: cred.Gid})) != nil {
		return
	}
	// The daemon's Close answers this one, when the session has ended completely.
	defer c.a.line.send(vmproto.Close, c.id)
	buf := make([]byte, protocol.MaxMessage)
	for first := true; ; first = false {
		n, fds, err := c.conn.ReadMessage(buf)
		if err != nil {
			return
		}
		protocol.CloseFDs(fds)
		if first {
			err = c.greet(buf[:n], int(cred.Pid))
		} else {
			err = c.describe(buf[:n])
		}
		if err == nil {
			err = c.a.line.send(vmproto.Message, c.id, buf[:n])
		}
		if err != nil {
			c.a.cfg.Log.Warn("a program is not served any more", "pid", cred.Pid, "error", err)
			return
		}
	}
}

// greet creates the descriptors that belong to the answer to a greeting.
func (c *client) greet(b []byte, pid int) error {
	h, err := protocol.ParseHello(b)
	if err != nil {
		return nil // the daemon refuses it
	}
	c.mu.Lock()
	c.kind = h.Kind
	c.mu.Unlock()
	switch h.Kind {
	case protocol.KindProcess:
		fd, err := newMemfd("vrdma-memory", spaceSize)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.space = fd
		c.mu.Unlock()
		// A child may have a copy of the socket, so watch the process itself.
		if pidfd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK); err == nil {
			stop := credentials.Watch(pidfd, func() { c.conn.Close() })
			go func() {
				<-c.gone
				stop()
			}()
		}
	case protocol.KindUverbs:
		c.a.mu.Lock()
		c.token = h.Token
		c.a.mu.Unlock()
		return c.openQueues()
	}
	return nil
}

func newMemfd(name string, size int64) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, err
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openQueues creates the memory for queues, and the doorbell descriptor.
func (c *client) openQueues() error {
	fd, err := newMemfd("vrdma-uverbs", arenaSize)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arena = fd
	runs, err := c.extend(firstArena)
	if err != nil {
		return err
	}
	bell := uint32(0)
	if c.a.bell < 0 {
		bell = vmproto.BellFrames
		if c.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			return err
		}
		fd, err := unix.FcntlInt(uintptr(c.bell), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		go c.rings(fd)
	}
	return c.sendRuns(vmproto.Arena, bell, runs)
}

// rings sends a frame to the daemon for each ring, if there is no bell port.
func (c *client) rings(fd int) {
	defer unix.Close(fd)
	for {
		var b [8]byte
		if _, err := unix.Read(fd, b[:]); err != nil && err != unix.EINTR {
			return
		}
		select {
		case <-c.gone:
			return
		default:
		}
		if c.a.line.send(vmproto.Bell, c.id) != nil {
			return
		}
	}
}

// extend adds pages to the arena. The caller holds mu.
func (c *client) extend(size uint64) ([]vmproto.Run, error) {
	if size > arenaSize-c.size {
		return nil, syscall.ENOMEM
	}
	p, runs, err := c.a.pinner.pin(c.arena, c.size, size, true)
	if err != nil {
		return nil, err
	}
	if len(runs) > vmproto.MostRuns {
		c.a.pinner.unpin(p)
		return nil, fmt.Errorf("%d bytes for queues are in %d pieces of the guest's memory, which are too many: %w", size, len(runs), syscall.ENOMEM)
	}
	c.pins = append(c.pins, p)
	c.size += size
	return runs, nil
}

// grow gives the daemon more pages for queues. An answer without pages means that there are none.
func (c *client) grow(size uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.arena == 0 || c.freed {
		return nil
	}
	runs, err := c.extend(size)
	if err != nil {
		c.a.cfg.Log.Warn("there is no more memory for queues", "error", err)
	} else if err := c.sendRuns(vmproto.Grown, 0, runs); err != nil {
		return err
	}
	return c.a.line.send(vmproto.Grown, c.id, vmproto.RunsBody(0, nil))
}

// sendRuns sends runs, in as many frames as they need.
func (c *client) sendRuns(k vmproto.Kind, number uint32, runs []vmproto.Run) error {
	for len(runs) > 0 {
		n := min(len(runs), vmproto.MaxRuns)
		if err := c.a.line.send(k, c.id, vmproto.RunsBody(number, runs[:n])); err != nil {
			return err
		}
		runs = runs[n:]
	}
	return nil
}

// describe pins the memory that a request registers, and sends its location. If that fails, it sends nothing, and the daemon
// refuses the request.
func (c *client) describe(b []byte) error {
	if c.kind != protocol.KindUverbs {
		return nil
	}
	var r protocol.Request
	if r.Parse(b) != nil || r.Op != protocol.OpCommand || len(r.Extents) == 0 {
		return nil
	}
	fd, release := c.spaceOf()
	defer release()
	var pins []*pinned
	var all []vmproto.Run
	for _, e := range r.Extents {
		if fd < 0 || e.Kind != protocol.ExtentOwn || e.Length == 0 {
			continue
		}
		if e.Start >= spaceSize || e.Length > spaceSize-e.Start {
			c.a.release(pins)
			return errors.New("the range that it registers is not memory")
		}
		p, runs, err := c.a.pinner.pin(fd, e.Start, e.Length, false)
		if err != nil {
			c.a.cfg.Log.Warn("memory cannot be registered", "bytes", e.Length, "error", err)
			c.a.release(pins)
			return nil
		}
		pins, all = append(pins, p), append(all, runs...)
	}
	if len(pins) == 0 {
		return nil
	}
	return c.sendRuns(vmproto.Pin, c.a.keep(pins), all)
}

// answer forwards a message of the daemon with the descriptors that belong to it.
func (c *client) answer(b []byte) {
	c.mu.Lock()
	introduced := c.kind == protocol.KindProcess && !c.greeted
	c.mu.Unlock()
	if introduced { // the sysfs tree arrived before this answer
		if err := c.a.nameInterfaces(); err != nil {
			c.a.cfg.Log.Warn("the interfaces of GIDs are not known", "error", err)
		}
	}
	c.mu.Lock()
	fds := c.handles
	c.handles = nil
	if !c.greeted && !c.freed {
		c.greeted = true
		fds = append(fds, c.welcome(b)...)
	}
	c.mu.Unlock()
	select {
	case c.out <- message{b, fds}:
	default: // the program does not read
		protocol.CloseFDs(fds)
		c.conn.Close()
	}
}

// welcome returns the descriptors for the answer to a greeting. The caller holds mu.
func (c *client) welcome(b []byte) (fds []int) {
	w, err := protocol.ParseWelcome(b)
	if err != nil || w.Error != 0 {
		return nil
	}
	dup := func(fd int) {
		if n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			fds = append(fds, n)
		}
	}
	switch c.kind {
	case protocol.KindProcess:
		dup(c.space)
		c.introduce(w.Token)
	case protocol.KindUverbs:
		dup(c.arena)
		if c.bell != 0 {
			dup(c.bell)
		} else {
			dup(c.a.bell)
		}
	}
	return fds
}

// attach adds a handle's descriptor to the next message.
func (c *client) attach(id uint32) {
	h, err := c.a.handle(id)
	if err != nil {
		c.conn.Close()
		return
	}
	fd, err := unix.FcntlInt(uintptr(h.peer), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		c.conn.Close()
		return
	}
	h.client = c.id
	c.mu.Lock()
	c.handles = append(c.handles, fd)
	c.mu.Unlock()
}

// recall returns unread events to the daemon.
func (c *client) recall() error {
	c.a.mu.Lock()
	var mine []*handle
	for _, h := range c.a.handles {
		if h.client == c.id {
			mine = append(mine, h)
		}
	}
	c.a.mu.Unlock()
	for _, h := range mine {
		for list := h.empty(); len(list) > 0; {
			n := min(len(list), vmproto.MaxReturned)
			if err := c.a.line.send(vmproto.Returned, c.id, vmproto.ReturnedBody(list[:n])); err != nil {
				return err
			}
			list = list[n:]
		}
	}
	return c.a.line.send(vmproto.Returned, c.id)
}

// speak forwards the daemon's messages to the program.
func (c *client) speak() {
	for {
		select {
		case m := <-c.out:
			err := c.conn.WriteMessage(m.b, m.fds...)
			protocol.CloseFDs(m.fds)
			if err != nil {
				c.conn.Close()
			}
		case <-c.gone:
			return
		}
	}
}

// free releases the resources of the conversation, after the daemon has.
func (c *client) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.freed {
		return
	}
	c.freed = true
	close(c.gone)
	for _, p := range c.pins {
		c.a.pinner.unpin(p)
	}
	protocol.CloseFDs(c.handles)
	for _, fd := range []int{c.space, c.arena} {
		if fd != 0 {
			unix.Close(fd)
		}
	}
	if c.bell != 0 {
		unix.Write(c.bell, []byte{0: 1, 7: 0}) // wakes rings, which then ends
		unix.Close(c.bell)
	}
}

// introduce registers the token by which the devices of a process find it. The caller holds mu.
func (c *client) introduce(t protocol.Token) {
	c.a.mu.Lock()
	defer c.a.mu.Unlock()
	c.token = t
	c.a.tokens[t] = c
}

// spaceOf returns the memfd of the process to which a device belongs, held until release; -1: it is gone.
func (c *client) spaceOf() (fd int, release func()) {
	c.a.mu.Lock()
	p := c.a.tokens[c.token]
	c.a.mu.Unlock()
	if p == nil {
		return -1, func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.freed {
		return -1, func() {}
	}
	fd, err := unix.FcntlInt(uintptr(p.space), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, func() {}
	}
	return fd, func() { unix.Close(fd) }
}
