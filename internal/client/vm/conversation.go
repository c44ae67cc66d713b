package vm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/client/uverbs"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
)

// A conversation is the daemon's side of one connection between a program and its agent. The session serves one end of a socket
// pair (near), as for a process; the other end (far) belongs to this package. It has three goroutines: the guest's reads frames
// from the link, feed passes requests to the session one by one, and relay sends its replies to the agent. They wait outside of the
// gate, and keep nothing in variables of their own meanwhile: a live upgrade finds the whole state in these fields (freeze.go). It is
// a server.ClientEnd, and after a live upgrade a server.Continued.
//
//	leave: no more requests ─▶ the session sees the end of near ─▶ … ─▶ Over ─▶ Close to the agent
//
// The end of near does not mean that the session has ended. The loop writes to the guest's pages until then, and the agent
// unpins them after Close. So Close is sent after Over.
type conversation struct {
	*protocol.Conn // the near end, which the session serves
	m              *guest
	id             uint32
	pid            int            // of its program, in the guest
	far            *protocol.Conn // the end of this package
	wake           chan struct{}  // holds one for feed, if the first request may be able to go on
	leaving        chan struct{}  // closed when no goroutine should wait for the agent any more
	leaveOnce      sync.Once
	over           chan struct{} // closed when the session has ended completely

	mu        sync.Mutex
	ended     bool // relay has ended: requests and pins are not taken any more
	greeted   bool // the greeting was passed on
	process   bool // the greeting was of kind PROCESS
	queue     []request
	arena     []vmproto.Run
	pages     *arenaPages        // of the session; nil: none
	thawed    *ConversationState // until the goroutines start; nil: no daemon was before this one
	bellPort  bool               // its program rings at the bell port
	bells     []*os.File         // doorbells that frames ring
	coming    *pin               // pin of the next request
	pin       *pin               // pin of the current request; nil: taken, or none
	taken     map[uint32]bool    // pins that the session has taken and not released
	sinks     map[*sink]bool     // destinations of events
	recalling bool               // sinks are held for a request, until its reply
	recalled  bool               // that is done for the first request of the queue
	asked     bool               // the agent has not returned all unread events
	returning []vmproto.Returning
	wants     bool // more pages have been requested
	grown     chan []vmproto.Run
	growing   []vmproto.Run
}

// A request is a message for the session, with its pin.
type request struct {
	message []byte
	pin     *pin
}

// mostRequests is the maximum number of waiting requests. A program sends one at a time, netlink several.
const mostRequests = 64

func newConversation(m *guest, id uint32) (*conversation, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	near, err1 := conn(fds[0])
	far, err2 := conn(fds[1])
	if err := errors.Join(err1, err2); err != nil {
		for _, c := range []*protocol.Conn{near, far} {
			if c != nil {
				c.Close()
			}
		}
		return nil, err
	}
	return conversationOf(m, id, near, far), nil
}

// conversationOf makes a conversation with these ends.
func conversationOf(m *guest, id uint32, near, far *protocol.Conn) *conversation {
	return &conversation{
		Conn: near, m: m, id: id, far: far, wake: make(chan struct{}, 1), leaving: make(chan struct{}), over: make(chan struct{}),
		sinks: make(map[*sink]bool), taken: make(map[uint32]bool), grown: make(chan []vmproto.Run, 1),
	}
}

// conn converts a descriptor to a connection that owns it.
func conn(fd int) (*protocol.Conn, error) {
	f := os.NewFile(uintptr(fd), "conversation")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return protocol.NewConn(c.(*net.UnixConn)), nil
}

// leave closes the session's connection in both directions, because some sessions only write. It may be called again.
func (c *conversation) leave() {
	c.leaveOnce.Do(func() {
		close(c.leaving)
		hangUp(c.far)
	})
}

// hangUp closes an end of a conversation, which is not detached. The other end sees that at once, also in the first moments after a live
// upgrade, when the other daemon has the descriptors, too.
func hangUp(c *protocol.Conn) {
	c.CloseRead()
	c.CloseWrite()
	c.Close()
}

// Over implements server.ClientEnd.
func (c *conversation) Over() { close(c.over) }

// take queues a request of the program.
func (c *conversation) take(message []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := request{message: message, pin: c.coming}
	c.coming = nil
	if c.ended || !c.keep(len(message)) {
		c.m.unpin(r.pin)
		return
	}
	if len(c.queue) >= mostRequests {
		c.leave() // the program does not wait for answers
		c.unkeep(len(message))
		c.m.unpin(r.pin)
		return
	}
	c.queue = append(c.queue, r)
	c.look()
}

// look wakes feed.
func (c *conversation) look() {
	select {
	case c.wake <- struct{}{}:
	default: // it is awake
	}
}

// feed passes requests to the session.
func (c *conversation) feed() {
	pause := time.Duration(0) // the session reads slowly
	for {
		if pause == 0 {
			select {
			case <-c.wake:
			case <-c.leaving:
				return
			}
		} else {
			select {
			case <-time.After(pause):
			case <-c.leaving:
				return
			}
		}
		c.m.gate.Enter()
		full := c.pass()
		c.m.gate.Leave()
		if pause = 0; full {
			pause = fullPause
		}
	}
}

// fullPause is how long feed waits while the session's socket is full.
const fullPause = time.Millisecond

// pass passes requests to the session, up to one that has to wait. It reports whether the session's socket is full.
func (c *conversation) pass() (full bool) {
	for {
		if c.prepare() {
			c.m.link.sendLater(vmproto.Recall, c.id)
		}
		more, err := c.passFirst()
		switch {
		case err == syscall.EAGAIN:
			return true
		case err != nil:
			c.leave()
			return false
		case !more:
			return false
		}
	}
}

// prepare does what has to be done before the first request is passed on. It reports whether that is a recall.
func (c *conversation) prepare() (recall bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(c.queue) == 0 || c.recalled || c.ended:
		return false
	case !c.greeted:
		c.greets(c.queue[0].message)
		return false
	case !c.takesEvents(c.queue[0].message):
		return false
	}
	c.recalled = true
	return c.recall()
}

// passFirst passes the first request on, unless that has to wait. It reports whether there is another one.
func (c *conversation) passFirst() (more bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 || c.asked || c.ended {
		return false, nil
	}
	r := c.queue[0]
	had := c.pin
	c.pin = r.pin // the session may take it at once
	if err := c.writeFar(r.message); err != nil {
		c.pin = had
		return false, err
	}
	c.m.unpin(had) // the session did not take it
	c.queue[0] = request{}
	if c.queue = c.queue[1:]; len(c.queue) == 0 {
		c.queue = nil
	}
	c.unkeep(len(r.message))
	c.greeted, c.recalled = true, false
	return len(c.queue) > 0, nil
}

// writeFar sends a message to the session without waiting.
func (c *conversation) writeFar(b []byte) error {
	raw, err := c.far.SyscallConn()
	if err != nil {
		return err
	}
	for {
		if cerr := raw.Control(func(fd uintptr) { _, err = unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) }); cerr != nil {
			return cerr
		}
		if err != unix.EINTR {
			return err
		}
	}
}

// greets inspects a greeting. Programs in a guest have no mailbox, because that is a file; they may have faults. The caller holds mu.
func (c *conversation) greets(b []byte) {
	const kind, flags = 8, 12 // offsets in struct vrdma_hello
	if len(b) < protocol.HelloSize {
		return
	}
	binary.LittleEndian.PutUint32(b[flags:], binary.LittleEndian.Uint32(b[flags:])&protocol.HelloFaults)
	c.process = protocol.Kind(b[kind]) == protocol.KindProcess
}

// takesEvents reports whether a request is a command that withdraws events.
func (c *conversation) takesEvents(b []byte) bool {
	var r protocol.Request
	return r.Parse(b) == nil && r.Op == protocol.OpCommand && uverbs.TakesEvents(r.Command)
}

// relay sends the session's messages to the agent, and Close when the session has ended completely.
func (c *conversation) relay() {
	g := c.m.gate
	g.Enter()
	defer g.Leave()
	buf := make([]byte, protocol.MaxMessage)
	for g.Await(c.far) == nil {
		n, fds, err := c.far.ReadMessage(buf)
		if err != nil {
			break
		}
		protocol.CloseFDs(fds) // none is expected
		c.reply(buf[:n])
	}
	c.leave()
	g.Outside(func() { <-c.over })
	c.mu.Lock()
	c.ended = true
	c.leavePin()
	c.m.unpin(c.coming)
	c.coming = nil
	c.unkeep(runBytes*(len(c.arena)+len(c.growing)) + returnBytes*len(c.returning))
	c.arena, c.growing, c.returning = nil, nil, nil
	c.asked, c.wants = false, false
	for _, r := range c.queue {
		c.unkeep(len(r.message))
		c.m.unpin(r.pin)
	}
	c.queue = nil
	c.mu.Unlock()
	c.m.close(c)
}

// reply sends a reply, or the answer to a greeting.
func (c *conversation) reply(b []byte, handles ...uverbs.Handle) {
	c.mu.Lock()
	c.leavePin()
	process := c.process
	c.mu.Unlock()
	if process {
		c.m.sendTree() // before the program reads it
	}
	c.release()
	for _, h := range handles {
		if h, ok := h.(handle); ok {
			c.m.link.send(vmproto.Handle, c.id, vmproto.Number(uint64(h.s.id)))
		}
	}
	c.m.link.sendLater(vmproto.Message, c.id, b)
}

// leavePin releases a pin that the session did not take. The caller holds mu.
func (c *conversation) leavePin() {
	c.m.unpin(c.pin)
	c.pin = nil
}

// Send implements server.ClientEnd.
func (c *conversation) Send(reply []byte, handles []uverbs.Handle) error {
	c.reply(reply, handles...)
	return nil
}

// Welcome implements server.ClientEnd. The agent creates the descriptors that belong to it.
func (c *conversation) Welcome(w *protocol.Welcome, _ ...*os.File) error {
	c.reply(w.Append(nil))
	return nil
}

// NewSpace implements server.ClientEnd.
func (c *conversation) NewSpace(quota uint64) (*memory.Space, error) {
	return memory.NewSpaceIn(backing{c.m.ram.hold()}, quota), nil
}

// Extents implements server.ClientEnd.
func (c *conversation) Extents(in []protocol.Extent) (out []memory.Extent, number uint32, done func(), err error) {
	c.mu.Lock()
	p := c.pin
	c.pin = nil
	if p != nil {
		c.taken[p.id] = true
	}
	c.mu.Unlock()
	var runs []vmproto.Run
	if p != nil {
		runs, number = p.runs, p.id
		c.m.pending.Add(-int64(len(runs)))
		done = c.Released(number)
	}
	for _, e := range in {
		switch {
		case e.Kind > protocol.ExtentForeign || e.Prot&^(0xff<<protocol.WhyShift) > protocol.ProtRead|protocol.ProtWrite:
			err = syscall.EINVAL
		case e.Kind == protocol.ExtentOwn:
			out, runs, err = cut(out, e.Start, e.Length, uint8(e.Prot&3), runs)
		default:
			out = append(out, memory.Extent{Start: e.Start, Length: e.Length, Kind: memory.ExtentKind(e.Kind), Prot: uint8(e.Prot & 3), Why: uint8(e.Prot >> protocol.WhyShift)})
		}
		if err != nil {
			if done != nil {
				done()
			}
			return nil, 0, nil, err
		}
	}
	return out, number, done, nil
}

// Released implements server.Continued.
func (c *conversation) Released(number uint32) func() {
	return func() {
		c.mu.Lock()
		delete(c.taken, number)
		c.mu.Unlock()
		c.m.link.send(vmproto.Unpin, number)
	}
}

// OpenQueues implements server.ClientEnd.
func (c *conversation) OpenQueues(account *budget.Account) (*nic.Arena, server.Bell, error) {
	arena, bell, err := c.openQueues(account)
	if err != nil && c.m.port.noDevice.now() {
		c.m.port.cfg.Log.Error("cannot open the device for a program in a virtual machine", "nic", c.m.port.cfg.NIC, "machine", c.m.name, "error", err)
	}
	return arena, bell, err
}

func (c *conversation) openQueues(account *budget.Account) (*nic.Arena, server.Bell, error) {
	c.mu.Lock()
	first, port := c.arena, c.bellPort
	c.arena = nil
	c.unkeep(runBytes * len(first))
	c.mu.Unlock()
	bell, err := c.openBell(port)
	if err != nil {
		return nil, nil, err
	}
	arena, err := c.arenaOf(first, false, account)
	if err != nil {
		bell.Close()
		return nil, nil, err
	}
	return arena, bell, nil
}

// arenaOf makes an arena of the agent's pages. used is that of newArenaPages.
func (c *conversation) arenaOf(runs []vmproto.Run, used bool, account *budget.Account) (*nic.Arena, error) {
	pages, err := newArenaPages(c.m.ram, runs, used, &c.m.runs, account, c.grow)
	if err != nil {
		return nil, fmt.Errorf("memory for queues in a virtual machine: %w", err)
	}
	pages.lost = func() { c.Close() }
	pages.refused = func(size uint64, why error) {
		if c.m.port.noQueue.now() {
			c.m.port.cfg.Log.Warn("there is no memory for a queue in a virtual machine", "nic", c.m.port.cfg.NIC, "machine", c.m.name, "bytes", size, "why", why)
		}
	}
	var arena *nic.Arena
	if err := pages.touch(func() { arena = nic.NewArenaIn(pages) }); err != nil {
		pages.Close()
		return nil, fmt.Errorf("memory for queues in a virtual machine: %w", err)
	}
	c.mu.Lock()
	c.pages = pages
	c.mu.Unlock()
	return arena, nil
}

// openBell returns the descriptor that wakes the loop: a duplicate of the bell port's socket, so that nothing is between QEMU and
// the loop, or an eventfd that is written for each Bell frame.
func (c *conversation) openBell(port bool) (*os.File, error) {
	if port {
		return c.m.port.bell()
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("the daemon cannot make a doorbell: %w", err)
	}
	f := os.NewFile(uintptr(fd), "doorbell")
	if err := c.ringAt(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ringAt makes frames ring at a doorbell.
func (c *conversation) ringAt(f *os.File) error {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bells = append(c.bells, os.NewFile(uintptr(fd), "doorbell"))
	return nil
}

// ring wakes the loop for a program that rings with frames.
func (c *conversation) ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.bells {
		unix.Write(int(f.Fd()), []byte{7: 0, 0: 1})
	}
}

// grow asks the agent for more pages for queues.
func (c *conversation) grow(size uint64) ([]vmproto.Run, error) {
	c.mu.Lock()
	select {
	case <-c.grown: // an answer for an earlier caller that gave up
	default:
	}
	c.wants = !c.ended
	c.mu.Unlock()
	c.m.link.sendLater(vmproto.Grow, c.id, vmproto.Number(size))
	select {
	case runs := <-c.grown:
		if len(runs) == 0 {
			return nil, syscall.ENOMEM
		}
		return runs, nil
	case <-c.leaving:
		return nil, syscall.EIO
	}
}

// OpenEvents implements server.ClientEnd.
func (c *conversation) OpenEvents() (nic.EventSink, uverbs.Handle, error) {
	s := c.open()
	return s, handle{s}, nil
}

// OpenSignal implements server.ClientEnd.
func (c *conversation) OpenSignal() (rdmacm.Signal, uverbs.Handle, error) {
	s := c.open()
	return s, handle{s}, nil
}

func (c *conversation) open() *sink {
	s := &sink{c: c, id: c.m.handles.Add(1)}
	c.mu.Lock()
	c.sinks[s] = true
	s.held = c.recalling
	c.mu.Unlock()
	return s
}

func (c *conversation) forget(s *sink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sinks, s)
}

// Vouched implements server.ClientEnd: QEMU was checked when it connected.
func (c *conversation) Vouched() bool { return true }

// Workload implements server.ClientEnd: a guest is one workload.
func (c *conversation) Workload(*credentials.Caller) (uint64, string) { return c.m.workload, "" }

// Identify implements server.ClientEnd.
func (c *conversation) Identify(*credentials.Caller) credentials.Identity {
	return credentials.Identity{Pidfd: -1, Why: errors.New("it is in a virtual machine, where stacks, files and shared memory cannot be reached")}
}
