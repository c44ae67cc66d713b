package vm

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// Thawed are Sockets with the state of another daemon's. It implements server.Machines.
type Thawed struct {
	files []*os.File // of the state; nil once used
	of    map[string]*Sockets
	begin []func()
	last  map[*Sockets]*thawedGuest
}

// A thawedGuest is the guest of Sockets that do not serve it yet.
type thawedGuest struct {
	m       *guest
	claimed map[*conversation]bool // a session serves it
}

// Thaw restores Sockets that are not open. It sets the files that it takes to nil. Nothing is changed that the other daemon and the guests
// see, until Continue. After an error the caller ends the process.
func Thaw(list []*Sockets, states []State, files []*os.File) (*Thawed, error) {
	t := &Thawed{files: files, of: make(map[string]*Sockets), last: make(map[*Sockets]*thawedGuest)}
	for _, p := range list {
		t.of[p.cfg.NIC] = p
	}
	for i := range states {
		st := &states[i]
		p := t.of[st.NIC]
		switch {
		case p == nil && (st.Line != nil || st.Net != 0 || st.Guest != nil):
			return nil, fmt.Errorf("the virtual machine of NIC %s would not be served: the next daemon must be started with the same --guest", st.NIC)
		case p == nil:
			continue
		case p.listeners != nil:
			return nil, fmt.Errorf("NIC %s is named twice", st.NIC)
		}
		if err := t.sockets(p, st); err != nil {
			return nil, fmt.Errorf("the virtual machine of NIC %s: %w", st.NIC, err)
		}
	}
	return t, nil
}

// Continue starts to serve the guests, when the other daemon has ended. Sockets without a state are opened; opened is called for each error of that.
func (t *Thawed) Continue(failed func(nic string, err error)) {
	for _, f := range t.begin {
		f()
	}
	for name, p := range t.of {
		if p.listeners == nil {
			if err := p.Open(); err != nil {
				failed(name, err)
			}
			continue
		}
		for _, l := range p.listeners {
			l.SetUnlinkOnClose(true)
		}
		p.start()
	}
}

// Client implements server.Machines.
func (t *Thawed) Client(nic string, number uint64) (server.Continued, error) {
	if p := t.of[nic]; p != nil && t.last[p] != nil {
		g := t.last[p]
		if c := g.m.conns[uint32(number)]; c != nil && number == c.Number() && !g.claimed[c] {
			g.claimed[c] = true
			return c, nil
		}
	}
	return nil, fmt.Errorf("program %d of the virtual machine of NIC %s is missing, or there twice", number, nic)
}

// file takes a descriptor.
func (t *Thawed) file(fd server.FD) (*os.File, error) {
	if fd == 0 || int(fd) > len(t.files) || t.files[fd-1] == nil {
		return nil, fmt.Errorf("descriptor %d is missing, or used twice", fd)
	}
	f := t.files[fd-1]
	t.files[fd-1] = nil
	return f, nil
}

// number takes a descriptor as a number.
func (t *Thawed) number(fd uint32) (int, error) {
	f, err := t.file(server.FD(fd))
	if err != nil {
		return -1, err
	}
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// socket takes the descriptor of a connection.
func (t *Thawed) socket(fd server.FD) (*net.UnixConn, error) {
	f, err := t.file(fd)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("a connection is no unix socket")
	}
	return u, nil
}

func (t *Thawed) sockets(p *Sockets, st *State) error {
	if len(st.Listeners) != len(roles) {
		return fmt.Errorf("it has %d sockets", len(st.Listeners))
	}
	for _, fd := range st.Listeners {
		l, err := t.listener(fd)
		if err != nil {
			return err
		}
		p.listeners = append(p.listeners, l)
	}
	var err error
	if st.Line != nil {
		if err = t.line(p, st.Line); err != nil {
			return fmt.Errorf("its line: %w", err)
		}
	}
	if st.Bell != 0 {
		if p.bells, err = t.socket(st.Bell); err != nil {
			return err
		}
		p.before.bells = p.bells
	}
	var device *vhostuser.Device
	if p.line != nil {
		device = p.device(p.line.who)
	}
	if st.Net != 0 {
		if device, err = t.card(p, st); err != nil {
			return fmt.Errorf("its network card: %w", err)
		}
	}
	if st.Guest != nil {
		return t.guest(p, st.Guest, device)
	}
	return nil
}

func (t *Thawed) listener(fd server.FD) (*net.UnixListener, error) {
	f, err := t.file(fd)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, errors.New("it is no unix socket")
	}
	u.SetUnlinkOnClose(false)
	return u, nil
}

// line restores the line.
func (t *Thawed) line(p *Sockets, st *LineState) error {
	l := &line{}
	if st.Socket == 0 { // it is closed, and its guest is ending
		l.conn, l.link = new(net.UnixConn), &link{closed: true}
		l.r = vmproto.NewReader(l.conn)
		p.line, p.before.line = l, l
		return nil
	}
	u, err := t.socket(st.Socket)
	if err != nil {
		return err
	}
	l.who = t.vouch(p, u)
	l.conn, l.link, l.r = u, newLink(u), vmproto.NewReaderOf(u, st.Unread)
	l.link.held, l.link.queue = true, st.Unsent
	if g := st.Next; g != nil {
		l.next = &vmproto.Greeting{Version: g.Version, Name: g.Name}
		copy(l.next.Nonce[:], g.Nonce)
	}
	p.line, p.before.line = l, l
	t.begin = append(t.begin, l.link.resume)
	return nil
}

// abandon releases what the session of the daemon before had taken. No session has it here.
func (c *conversation) abandon() {
	for s := range c.sinks {
		s.Close()
	}
	for number := range c.taken {
		c.m.link.send(vmproto.Unpin, number)
	}
	clear(c.taken)
}

// vouch identifies the process at a connection. One that may not use the NIC any more is disconnected.
func (t *Thawed) vouch(p *Sockets, u *net.UnixConn) credentials.Caller {
	who, err := p.cfg.Host.Vouch(u)
	if err != nil {
		t.begin = append(t.begin, func() {
			p.cfg.Log.Warn("a virtual machine may not have a NIC any more", "nic", p.cfg.NIC, "pid", who.Pid, "uid", who.UID, "why", err)
			u.Close()
		})
	}
	return who
}

// card restores the network card.
func (t *Thawed) card(p *Sockets, st *State) (*vhostuser.Device, error) {
	u, err := t.socket(st.Net)
	if err != nil {
		return nil, err
	}
	if st.Card == nil {
		return nil, errors.New("it has no state")
	}
	d := p.device(t.vouch(p, u))
	c, serve, err := p.cfg.Host.ThawCard(u, d, st.Card, t.number)
	if err != nil {
		return nil, err
	}
	p.net, p.before.net, p.before.serveNet = u, u, serve
	p.card.set(c)
	return d, nil
}

// guest restores a guest, whose card has the device d.
func (t *Thawed) guest(p *Sockets, st *GuestState, d *vhostuser.Device) error {
	if p.line == nil {
		return errors.New("it has no line")
	}
	ram, err := t.memory(p, st, d)
	if err != nil {
		return fmt.Errorf("its memory: %w", err)
	}
	m := newGuest(p, p.line.link, st.Name, p.line.who, ram)
	m.workload, m.told, m.tree.sent = st.Workload, st.Told, st.Tree
	m.handles.Store(st.Handles)
	for last := workloads.Load(); st.Workload&^(1<<63) > last && !workloads.CompareAndSwap(last, st.Workload&^(1<<63)); last = workloads.Load() {
	}
	g := &thawedGuest{m, make(map[*conversation]bool)}
	t.last[p] = g
	for i := range st.Conversations {
		if err := t.conversation(m, &st.Conversations[i]); err != nil {
			return fmt.Errorf("a program: %w", err)
		}
	}
	p.machine, p.before.machine = m, m
	t.begin = append(t.begin, func() { g.begin(st.Ending) })
	return nil
}

// begin starts the goroutines of the conversations.
func (g *thawedGuest) begin(ending bool) {
	g.m.mu.Lock()
	all := slices.Collect(maps.Values(g.m.conns))
	g.m.mu.Unlock()
	for _, c := range all {
		c.thawed = nil
		if !g.claimed[c] { // it is a tool's, or its session was ending
			c.abandon()
			hangUp(c.Conn)
			c.Over()
		}
		go c.feed()
		go c.relay()
		c.look()
	}
	if ending {
		g.m.finish()
	}
}

// memory restores the tables of the guest's memory.
func (t *Thawed) memory(p *Sockets, st *GuestState, d *vhostuser.Device) (*ram, error) {
	var card []*vhostuser.Region
	var now *vhostuser.Memory
	if c := p.card.get(); c != nil {
		if now = c.Memory(); now != nil {
			defer now.Release()
			card = now.Regions()
		}
	}
	var older []*vhostuser.Region
	defer func() {
		for _, g := range older {
			g.Release()
		}
	}()
	for i := range st.Regions {
		g, err := d.ThawRegion(&st.Regions[i], t.number)
		if err != nil {
			return nil, err
		}
		older = append(older, g)
	}
	if len(st.Tables) == 0 || len(st.Tables) > mostTables {
		return nil, fmt.Errorf("%d tables", len(st.Tables))
	}
	r := &ram{}
	r.holds.Store(1)
	var list []Memory
	for i := range st.Tables {
		m, err := tableOf(&st.Tables[i], card, older)
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	r.list.Store(&list)
	return r, nil
}

// tableOf makes a table of regions of the card and of older ones.
func tableOf(st *TableState, card, older []*vhostuser.Region) (*vhostuser.Memory, error) {
	var regions []*vhostuser.Region
	for _, part := range []struct {
		indices []uint32
		of      []*vhostuser.Region
	}{{st.Card, card}, {st.Older, older}} {
		for _, i := range part.indices {
			if int64(i) >= int64(len(part.of)) {
				return nil, fmt.Errorf("region %d of %d", i, len(part.of))
			}
			regions = append(regions, part.of[i])
		}
	}
	for _, g := range regions {
		g.Hold()
	}
	m, err := vhostuser.NewMemory(regions)
	if err != nil {
		for _, g := range regions {
			g.Release()
		}
	}
	return m, err
}

// closed returns an end of a conversation that is closed.
func closed() (*protocol.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	unix.Close(fds[1])
	c, err := conn(fds[0])
	if err == nil {
		c.Close()
	}
	return c, err
}

// end restores an end of a conversation.
func (t *Thawed) end(fd server.FD) (*protocol.Conn, error) {
	if fd == 0 {
		return closed()
	}
	u, err := t.socket(fd)
	if err != nil {
		return nil, err
	}
	return protocol.NewConn(u), nil
}

func (t *Thawed) conversation(m *guest, st *ConversationState) error {
	if m.conns[st.ID] != nil || len(m.conns) >= mostConversations {
		return fmt.Errorf("conversation %d is there twice, or there are too many", st.ID)
	}
	near, err := t.end(st.Near)
	if err != nil {
		return err
	}
	far, err := t.end(st.Far)
	if err != nil {
		return err
	}
	c := conversationOf(m, st.ID, near, far)
	c.pid, c.greeted, c.process, c.bellPort = st.Pid, st.Greeted, st.Process, st.BellPort
	c.recalling, c.recalled, c.asked = st.Recalling, st.Recalled, st.Asked
	for _, number := range st.Taken {
		c.taken[number] = true
	}
	if st.Far == 0 {
		c.leave()
	}
	waits := 0
	for i := range st.Queue {
		r := &st.Queue[i]
		pin, err := m.pinOf(r.Pin)
		if err != nil {
			return err
		}
		c.queue = append(c.queue, request{r.Message, pin})
		waits += len(r.Message)
	}
	if c.pin, err = m.pinOf(st.Pin); err != nil {
		return err
	}
	if c.coming, err = m.pinOf(st.Coming); err != nil {
		return err
	}
	if c.arena, err = runsOf(st.Arena); err != nil {
		return err
	}
	for i := range st.Returning {
		e, err := st.Returning[i].event()
		if err != nil {
			return err
		}
		c.returning = append(c.returning, vmproto.Returning{Handle: st.Returning[i].Handle, Event: e.b, N: e.n})
	}
	if len(c.queue) > mostRequests || len(c.arena) > mostRuns || len(c.returning) > mostReturned {
		return fmt.Errorf("conversation %d has %d requests, %d runs and %d events", st.ID, len(c.queue), len(c.arena), len(c.returning))
	}
	if !c.keep(waits + runBytes*len(c.arena) + returnBytes*len(c.returning)) {
		return fmt.Errorf("more than %d bytes wait", mostWaiting)
	}
	for i := range st.Sinks {
		if err := c.thawSink(&st.Sinks[i]); err != nil {
			return err
		}
	}
	c.thawed = st
	m.conns[st.ID] = c
	return nil
}

// thawSink restores a sink, which a session claims.
func (c *conversation) thawSink(st *SinkState) error {
	s := &sink{c: c, id: st.ID, sent: st.Sent, held: st.Held, given: max(st.Given, 0)}
	for i := range st.Back {
		e, err := st.Back[i].event()
		if err != nil {
			return err
		}
		s.back = append(s.back, e)
	}
	if len(s.back) > mostHeld+mostReturned {
		return fmt.Errorf("%d events are held", len(s.back))
	}
	c.sinks[s] = false
	return nil
}

// event checks an event.
func (st *EventState) event() (e event, err error) {
	if e.n = copy(e.b[:], st.Event); e.n == 0 || e.n != len(st.Event) {
		return e, fmt.Errorf("an event of %d bytes", len(st.Event))
	}
	return e, nil
}

// pinOf restores a pin; nil: there is none.
func (m *guest) pinOf(st *PinState) (*pin, error) {
	if st == nil {
		return nil, nil
	}
	runs, err := runsOf(st.Runs)
	if err != nil {
		return nil, err
	}
	if n := m.pending.Add(int64(len(runs))); n > mostPending {
		return nil, fmt.Errorf("registrations in %d pieces", n)
	}
	return &pin{st.ID, runs}, nil
}

// runsOf checks runs.
func runsOf(list []RunState) (runs []vmproto.Run, err error) {
	for _, r := range list {
		if r.Size == 0 || r.Addr+r.Size < r.Addr {
			return nil, fmt.Errorf("a run of %#x bytes at %#x", r.Size, r.Addr)
		}
		runs = append(runs, vmproto.Run(r))
	}
	return runs, nil
}

// Number implements server.ClientEnd. The agent may have chosen 0 as the ID.
func (c *conversation) Number() uint64 { return 1<<32 | uint64(c.id) }

// End implements server.Continued.
func (c *conversation) End() *protocol.Conn { return c.Conn }

// Backing implements server.Continued.
func (c *conversation) Backing() memory.Backing { return backing{c.m.ram.hold()} }

// Queues implements server.Continued.
func (c *conversation) Queues(account *budget.Account, bell *os.File) (*nic.Arena, error) {
	runs, err := runsOf(c.thawed.Pages)
	if err != nil {
		return nil, err
	}
	arena, err := c.arenaOf(runs, true, account)
	if err != nil {
		return nil, err
	}
	c.pages.mu.Lock()
	c.pages.full, c.pages.told = c.thawed.Full, c.thawed.Refused
	c.pages.mu.Unlock()
	if c.bellPort {
		return arena, nil
	}
	return arena, c.ringAt(bell)
}

// Sink implements server.Continued.
func (c *conversation) Sink(number uint32) (server.Sink, error) {
	for s, claimed := range c.sinks {
		if s.id == number && !claimed {
			c.sinks[s] = true
			return s, nil
		}
	}
	return nil, fmt.Errorf("event channel %d is missing, or there twice", number)
}

// before is what Sockets have of the daemon before this one.
type before struct {
	line       *line
	machine    *guest
	bells, net *net.UnixConn
	serveNet   func() error
}

// goOnLine serves the line of the daemon before this one.
func (p *Sockets) goOnLine() {
	if l := p.before.line; l != nil {
		p.serveLineOf(l, p.before.machine)
		l.conn.Close()
	}
}

// goOnBell serves the doorbell port of the daemon before this one.
func (p *Sockets) goOnBell() {
	if u := p.before.bells; u != nil {
		p.serveBellOf(u)
		u.Close()
	}
}

// goOnCard serves the card of the daemon before this one.
func (p *Sockets) goOnCard() {
	m := p.before.machine
	if u := p.before.net; u != nil {
		p.serveCardBy(p.before.serveNet)
		u.Close()
	} else if m != nil { // QEMU has disconnected the card
		p.before.line.conn.Close() // fails if it is closed
		p.gate.Outside(m.end)
	}
}
