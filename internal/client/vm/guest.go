package vm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/gate"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A guest is the state of one agent's connection. It ends with the connection, or when a new agent greets.
type guest struct {
	port     *Sockets
	gate     *gate.Gate // of port
	link     *link
	name     string
	who      credentials.Caller // the process of QEMU
	workload uint64
	ram      *ram
	handles  atomic.Uint32
	runs     atomic.Int64 // mappings for queues
	pending  atomic.Int64 // runs of pins that no session has taken yet
	waiting  atomic.Int64 // bytes of other data that no session has taken yet: messages, runs for queues, events
	tree     tree
	told     bool // its start was logged, so its end is logged, too

	mu     sync.Mutex
	conns  map[uint32]*conversation
	ending bool
	empty  chan struct{} // closed when it is ending and has no conversations
}

// mostConversations is the maximum number of conversations of a guest. A program with rdma_cm has one for each event channel.
const mostConversations = 65536

// workloads numbers guests. The numbers differ from the kernel's network namespace cookies, which count from 1.
var workloads atomic.Uint64

func newGuest(p *Sockets, l *link, name string, who credentials.Caller, r *ram) *guest {
	return &guest{
		port: p, gate: &p.gate, link: l, name: name, who: who, workload: 1<<63 | workloads.Add(1), ram: r,
		conns: make(map[uint32]*conversation), empty: make(chan struct{}), tree: tree{dir: p.cfg.Tree},
	}
}

// A line is the connection of the port for commands and events: what has been read, and what waits to be sent.
type line struct {
	conn *net.UnixConn
	link *link
	r    *vmproto.Reader
	who  credentials.Caller
	next *vmproto.Greeting // the next agent's, which is answered when the state of the one before is gone; nil: there is none
}

func newLine(u *net.UnixConn, who credentials.Caller) *line {
	return &line{conn: u, link: newLink(u), r: vmproto.NewReader(u), who: who}
}

// serveLink serves agents on a connection, one after the other, until it ends. It is called inside of the gate. m is an agent that has
// been greeted; nil: none.
func (p *Sockets) serveLink(l *line, m *guest) (err error) {
	defer l.link.close()
	if m != nil {
		err = p.serveMachine(l, m)
	}
	for err == nil {
		if l.next == nil {
			err = p.findHello(l)
		} else {
			err = p.serveAgent(l)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// findHello reads up to the next greeting.
func (p *Sockets) findHello(l *line) error {
	g, err := persist(p, l.conn.SetReadDeadline, l.r.FindHello)
	if err == nil {
		l.next = &g
	}
	return err
}

// serveAgent serves the agent that has greeted.
func (p *Sockets) serveAgent(l *line) error {
	g := *l.next
	a := vmproto.Answer{Nonce: g.Nonce, Version: vmproto.Version}
	var mem Memory
	err := error(nil)
	if g.Version != vmproto.Version {
		err = fmt.Errorf("the daemon speaks version %d with agents, this one %d: install the daemon's vrdma in the machine", vmproto.Version, g.Version)
	} else if mem, err = p.memory(); err != nil {
		err = fmt.Errorf("the guest's memory cannot be reached: %w", err)
	}
	if err != nil {
		a.Text = err.Error()
		if p.noAgent.now() {
			p.cfg.Log.Warn("an agent in a virtual machine was refused", "nic", p.cfg.NIC, "machine", printable(g.Name), "why", err)
		}
		l.link.sendWelcome(a)
		l.next = nil
		return nil
	}
	m := newGuest(p, l.link, printable(g.Name), l.who, newRAM(mem))
	l.next = nil
	if m.told = p.agents.now(); m.told {
		p.cfg.Log.Info("an agent in a virtual machine serves programs", "nic", p.cfg.NIC, "machine", m.name)
	}
	if !p.set(m) {
		m.ram.drop()
		return net.ErrClosed
	}
	l.link.sendWelcome(a)
	m.sendTree()
	return p.serveMachine(l, m)
}

// serveMachine serves an agent that has been answered, until the next one greets, which is not an error. Then all that the agent has is gone.
func (p *Sockets) serveMachine(l *line, m *guest) (err error) {
	if !m.ends() {
		err = p.takeFrames(l, m)
	} else if l.next == nil { // its connection has ended, before a live upgrade
		err = io.EOF
	}
	m.finish() // a live upgrade finds that the guest is ending
	p.gate.Outside(m.end)
	p.set(nil)
	m.ram.drop()
	return err
}

// takeFrames takes the frames of an agent, until the next one greets, which is not an error.
func (p *Sockets) takeFrames(l *line, m *guest) error {
	for {
		f, err := persist(p, l.conn.SetReadDeadline, l.r.Next)
		if err != nil {
			return err
		}
		if f.Kind == vmproto.Hello {
			g, err := vmproto.ParseHello(f.Body)
			if err == nil {
				l.next = &g
			}
			return err
		}
		if err := m.take(f); err != nil {
			return err
		}
	}
}

// sendWelcome answers a greeting.
func (l *link) sendWelcome(a vmproto.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.putRaw(vmproto.AppendWelcome(nil, a))
}

// take handles a frame. An error ends the guest.
func (m *guest) take(f vmproto.Frame) error {
	if f.Kind == vmproto.Open {
		return m.open(f)
	}
	m.mu.Lock()
	c := m.conns[f.ID]
	m.mu.Unlock()
	if c == nil {
		return m.late(f)
	}
	switch f.Kind {
	case vmproto.Message:
		c.take(append([]byte(nil), f.Body...))
	case vmproto.Bell:
		c.ring()
	case vmproto.Close:
		c.leave()
	case vmproto.Arena, vmproto.Pin, vmproto.Grown:
		number, runs, err := vmproto.ParseRuns(f.Body)
		if err != nil {
			return err
		}
		return c.takePages(f.Kind, number, runs)
	case vmproto.Returned:
		list, err := vmproto.ParseReturned(f.Body)
		if err != nil {
			return err
		}
		c.takeReturned(list)
	default:
		return fmt.Errorf("%w: kind %d from an agent", vmproto.ErrMalformed, f.Kind)
	}
	return nil
}

// late handles a frame of a conversation that has just ended here.
func (m *guest) late(f vmproto.Frame) error {
	if f.Kind == vmproto.Pin {
		number, _, err := vmproto.ParseRuns(f.Body)
		if err != nil {
			return err
		}
		m.link.send(vmproto.Unpin, number)
	}
	return nil
}

// mostPending limits the runs that no session has taken yet, of all programs together: 8 GiB in single pages. Runs that a session
// has taken are charged to its user.
const mostPending = 1 << 21

// mostWaiting limits the bytes that wait for sessions, of all programs together. An agent usually sends a message of a program
// only after the previous one was answered.
const mostWaiting = 16 << 20

// keep counts waiting bytes; it returns false and ends the conversation if there are too many.
func (c *conversation) keep(bytes int) bool {
	if c.m.waiting.Add(int64(bytes)) <= mostWaiting {
		return true
	}
	c.unkeep(bytes)
	c.leave()
	return false
}

// unkeep reverts keep.
func (c *conversation) unkeep(bytes int) { c.m.waiting.Add(-int64(bytes)) }

// Sizes of waiting data.
const (
	runBytes    = 16
	returnBytes = 32
)

// unpin releases a pin that no session has taken; p may be nil.
func (m *guest) unpin(p *pin) {
	if p != nil {
		m.pending.Add(-int64(len(p.runs)))
		m.link.send(vmproto.Unpin, p.id)
	}
}

// takePages handles the agent's frames about pages.
func (c *conversation) takePages(k vmproto.Kind, number uint32, runs []vmproto.Run) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch k {
	case vmproto.Arena:
		if c.ended || !c.keep(runBytes*len(runs)) {
			return nil
		}
		c.arena = append(c.arena, runs...)
		c.bellPort = number != vmproto.BellFrames
		if len(c.arena) > mostRuns {
			return fmt.Errorf("memory for queues in %d pieces", len(c.arena))
		}
	case vmproto.Grown:
		switch {
		case !c.wants:
		case len(runs) > 0:
			// One more than the limit: they are refused, and the other programs continue.
			runs = runs[:min(len(runs), mostRuns+1-len(c.growing))]
			if c.keep(runBytes * len(runs)) {
				c.growing = append(c.growing, runs...)
			}
		default:
			c.wants = false
			c.unkeep(runBytes * len(c.growing))
			c.grown <- c.growing // never blocks: the channel is empty
			c.growing = nil
		}
	case vmproto.Pin:
		if c.ended {
			c.m.link.send(vmproto.Unpin, number)
			return nil
		}
		if c.coming != nil && c.coming.id != number {
			c.m.unpin(c.coming)
			c.coming = nil
		}
		if c.coming == nil {
			c.coming = &pin{id: number}
		}
		c.coming.runs = append(c.coming.runs, runs...)
		if n := c.m.pending.Add(int64(len(runs))); n > mostPending {
			return fmt.Errorf("registrations in %d pieces at a time", n)
		}
	}
	return nil
}

// open starts a conversation.
func (m *guest) open(f vmproto.Frame) error {
	who, err := vmproto.ParseOpen(f.Body)
	if err != nil {
		return err
	}
	c, err := newConversation(m, f.ID)
	if err != nil {
		m.link.send(vmproto.Close, f.ID)
		return nil
	}
	m.mu.Lock()
	full := m.ending || len(m.conns) >= mostConversations || m.conns[f.ID] != nil
	if !full {
		m.conns[f.ID] = c
	}
	m.mu.Unlock()
	if full {
		c.Conn.Close()
		c.far.Close()
		return fmt.Errorf("conversation %d cannot be opened: there are too many, or it is open", f.ID)
	}
	c.pid = int(who.Pid)
	go c.feed()
	go c.relay()
	if err := m.port.cfg.Host.Receive(c.Conn, c, c.Caller()); err != nil {
		if m.port.noProgram.now() {
			m.port.cfg.Log.Warn("a program in a virtual machine was refused", "nic", m.port.cfg.NIC, "machine", m.name, "error", err)
		}
		c.Over()
	}
	return nil
}

// Caller implements server.Continued.
func (c *conversation) Caller() credentials.Caller {
	who := c.m.who
	who.Pid, who.Machine, who.Owner, who.HomeErr = c.pid, c.m.name, false, errInMachine
	return who
}

// errInMachine is why the Home of such a program is unknown.
var errInMachine = errors.New("it is in a virtual machine")

// close removes a conversation that has ended completely.
func (m *guest) close(c *conversation) {
	c.mu.Lock()
	for _, b := range c.bells {
		b.Close()
	}
	c.bells = nil
	c.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.conns, c.id)
	if len(m.conns) == 0 {
		m.ram.settle()
	}
	m.link.send(vmproto.Close, c.id)
	if m.ending && len(m.conns) == 0 {
		close(m.empty)
	}
}

// remember adds the guest's new memory. Without programs, the old memory is released.
func (m *guest) remember(now Memory) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ram.add(now) {
		return false
	}
	if len(m.conns) == 0 {
		m.ram.settle()
	}
	return true
}

// finish ends all conversations. It does not wait for them.
func (m *guest) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ending {
		return
	}
	m.ending = true
	if len(m.conns) == 0 {
		close(m.empty)
	}
	for _, c := range m.conns {
		c.leave()
	}
}

// ends reports whether finish was called.
func (m *guest) ends() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ending
}

// end ends all conversations, and waits until they are gone. It is not called inside of the gate.
func (m *guest) end() {
	m.finish()
	<-m.empty
	if m.told {
		m.port.cfg.Log.Info("the agent in a virtual machine is gone", "nic", m.port.cfg.NIC, "machine", m.name)
	}
}

// printable replaces control characters in a guest's text.
func printable(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c <= ' ' || c >= 0x7f {
			b[i] = '?'
		}
	}
	if len(b) == 0 {
		return "guest"
	}
	return string(b)
}
