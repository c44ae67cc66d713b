package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/eventfile"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/ucma"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
)

// A thawing is a Server that gets the state of another daemon's.
type thawing struct {
	srv   *Server
	files []*os.File // nil once used
	last  []func()   // runs on the loop after the other daemon has ended
	begin []func()   // starts the goroutine of a connection
	pages []*memory.Space
	made  []*process
}

// Thaw restores the state of another daemon's server. The listeners are open, and serve no connection yet. It runs on
// the loop, which does not serve the sessions before the caller lets it continue: until then nothing is changed that
// the other daemon and its clients see. When the other daemon has ended, the caller calls commit, still on the loop, and
// then serve beside it. After an error the caller ends the process. Thaw takes over the files.
func (s *Server) Thaw(st *State, files []*os.File) (commit, serve func(), err error) {
	t := &thawing{srv: s, files: files}
	for cookie, name := range st.Names {
		s.names.set(cookie, name)
	}
	nics := make(map[string]*registry.NIC)
	for _, d := range s.listeners.all() {
		if d.NIC != nil {
			nics[d.NIC.Name] = d.NIC
		}
	}
	for i := range st.NICs {
		if err := t.nic(nics[st.NICs[i].Name], &st.NICs[i]); err != nil {
			return nil, nil, err
		}
	}
	for i := range st.Listeners {
		if err := t.listener(&st.Listeners[i]); err != nil {
			return nil, nil, err
		}
	}
	for _, fd := range st.Tools {
		if err := t.fresh(fd, controlEndpoint{s}); err != nil {
			return nil, nil, err
		}
	}
	return t.commit, t.serve, nil
}

// commit changes what the clients see.
func (t *thawing) commit() {
	for _, f := range t.last {
		f()
	}
}

// serve starts to serve the connections. Sockets and device trees are this daemon's from now on.
func (t *thawing) serve() {
	s := t.srv
	s.inherits.Store(false)
	s.mu.Lock()
	for _, l := range s.unlink {
		l.SetUnlinkOnClose(true)
	}
	s.unlink = nil
	s.mu.Unlock()
	for _, d := range s.listeners.all() {
		if d.continueTree == nil {
			continue
		}
		if err := d.continueTree(); err != nil {
			s.log.Warn("the counters of the device tree are not current", "nic", d.NIC.Name, "error", err)
		}
	}
	for _, f := range t.begin {
		f()
	}
	for _, f := range t.files {
		if f != nil {
			f.Close()
		}
	}
	go func() { // faults are slower than this
		for _, space := range t.pages {
			space.Populate()
		}
	}()
}

// file takes a descriptor.
func (t *thawing) file(fd FD) (*os.File, error) {
	if fd == 0 || int(fd) > len(t.files) || t.files[fd-1] == nil {
		return nil, fmt.Errorf("descriptor %d is missing, or used twice", fd)
	}
	f := t.files[fd-1]
	t.files[fd-1] = nil
	return f, nil
}

// number takes a descriptor as a number.
func (t *thawing) number(fd FD) (int, error) {
	f, err := t.file(fd)
	if err != nil {
		return -1, err
	}
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
}

// socket makes a connection of a descriptor.
func (t *thawing) socket(fd FD) (*net.UnixConn, error) {
	f, err := t.file(fd)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("a connection: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("a connection is not a unix socket")
	}
	return u, nil
}

// conn makes a connection at d, whose caller is admitted already.
func (t *thawing) conn(st *ConnState, d *listener) (c *protocol.Conn, who credentials.Caller, err error) {
	u, err := t.socket(st.Socket)
	if err != nil {
		return nil, who, err
	}
	if who, err = t.srv.admission.enter(u, d); err != nil {
		return nil, who, err
	}
	who.Program, who.Label, who.NIC = st.Program, st.Label, d.NIC.Name
	return protocol.NewConn(u), who, nil
}

// sink makes an event channel of descriptors.
func (t *thawing) sink(st SinkState) (*eventfile.Socket, error) {
	own, err := t.number(st.Own)
	if err != nil {
		return nil, err
	}
	peer, err := t.number(st.Peer)
	if err != nil {
		return nil, err
	}
	return eventfile.Of([2]int{own, peer})
}

// mail makes the mailbox of a session, which is shut.
func (t *thawing) mail(st *MailState, account *budget.Account) (m mailbox, err error) {
	m = mailbox{wanted: st.Wanted, ahead: st.Ahead, served: st.Served, account: account}
	if st.File == 0 {
		return m, nil
	}
	if err := account.Charge(m.bill()); err != nil {
		return m, err
	}
	if m.file, err = t.file(st.File); err != nil {
		return m, err
	}
	m.page, err = protocol.OpenMail(m.file)
	return m, err
}

// fresh serves a connection that has not said hello.
func (t *thawing) fresh(fd FD, at endpoint) error {
	u, err := t.socket(fd)
	if err != nil {
		return err
	}
	t.begin = append(t.begin, func() { t.srv.serve(u, at) })
	return nil
}

// nic restores a NIC.
func (t *thawing) nic(n *registry.NIC, st *NICState) error {
	if n == nil {
		return fmt.Errorf("NIC %s is not here: the next daemon must be started with the same settings and store", st.Name)
	}
	if err := n.Device.Thaw(&st.Device); err != nil {
		return fmt.Errorf("NIC %s: %w", n.Name, err)
	}
	if len(st.Before) > 0 {
		n.Before = new(nic.Counters)
		if err := json.Unmarshal(st.Before, n.Before); err != nil {
			return fmt.Errorf("the counters of NIC %s: %w", n.Name, err)
		}
	}
	if st.Manager == nil {
		return nil
	}
	if n.Manager == nil {
		return fmt.Errorf("NIC %s has no connection manager", n.Name)
	}
	if err := n.Manager.Thaw(st.Manager); err != nil {
		return fmt.Errorf("the connections of NIC %s: %w", n.Name, err)
	}
	return nil
}

// listener restores the connections of a listener.
func (t *thawing) listener(st *ListenerState) error {
	d := t.srv.listeners.at(st.Socket)
	if d == nil {
		if len(st.Processes) == 0 {
			return nil
		}
		return fmt.Errorf("%s is not served: the next daemon must be started with the same settings and store", st.Socket)
	}
	d.ids.Store(st.LastID)
	d.mu.Lock()
	d.ended = st.Ended
	d.mu.Unlock()
	for i := range st.Processes {
		p := &st.Processes[i]
		if err := t.process(d, p); err != nil {
			return fmt.Errorf("%s: %w", p.Conn.Program, err)
		}
	}
	for i := range st.Netlink {
		cs := &st.Netlink[i]
		c, who, err := t.conn(cs, d)
		if err != nil {
			return err
		}
		t.user(d, c, &who, cs, &User{who: &who, netlink: true})
		t.start(d, c, who, func() { d.answerNetlink(c, who) })
	}
	for _, fd := range st.New {
		if err := t.fresh(fd, d); err != nil {
			return err
		}
	}
	return nil
}

// user enters a user of a listener.
func (t *thawing) user(d *listener, c *protocol.Conn, who *credentials.Caller, st *ConnState, g *User) {
	g.Program, g.Pid, g.UID, g.Since = who.Program, who.Pid, who.UID, time.Unix(0, st.Since)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users[c] = g
	if g.process {
		if d.Programs != nil {
			d.Programs.Add(1)
		}
		d.attached = g.workload
	}
}

// start makes the goroutine of a connection, which runs converse inside of the gate.
func (t *thawing) start(d *listener, c *protocol.Conn, who credentials.Caller, converse func()) {
	s := t.srv
	t.begin = append(t.begin, func() {
		s.start(c, nil, &who, func() {
			s.guarded(c, who, func(*protocol.Conn, credentials.Caller) error {
				s.gate.enter()
				defer s.gate.leave()
				defer d.leave(c)
				if d.Rests {
					if err := d.tree.Use(); err != nil {
						s.log.Warn("a NIC has no device tree", "nic", d.NIC.Name, "error", err)
					} else {
						defer d.tree.Done()
					}
				}
				converse()
				return nil
			})
		}, func() {})
	})
}

// process restores a process with its sessions.
func (t *thawing) process(d *listener, st *ProcessState) error {
	s := t.srv
	c, who, err := t.conn(&st.Conn, d)
	if err != nil {
		return err
	}
	if err := who.Account.Charge(processBill); err != nil {
		return err
	}
	who.Locate(c)
	var files []*os.File
	for _, fd := range st.Files {
		f, err := t.file(fd)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	space, err := memory.Thaw(&st.Space, files, memory.ThawOptions{Account: who.Account})
	if err != nil {
		return err
	}
	t.pages = append(t.pages, space)
	p := s.newProcess(c, who, d, space, st.Token)
	if st.Apart != "" {
		p.apart = errors.New(st.Apart)
	}
	p.rules, p.moves = st.Faults, st.Moves
	t.made = append(t.made, p)
	rules, err := faultsOf(&protocol.Hello{Faults: st.Faults})
	if err != nil {
		return err
	}
	if len(rules) > 0 {
		p.setFaults(s.loop.AddFaults(d.NIC.Device, rules))
	}
	s.clients.add(p)
	user := who
	t.user(d, c, &user, &st.Conn, &User{who: &user, process: true, workload: st.Workload, Container: st.Container})
	t.start(d, c, who, func() {
		defer who.Account.Refund(processBill)
		if p.faults != nil {
			defer s.loop.Do(func() { s.loop.RemoveFaults(p.faults) })
		}
		defer p.watch(credentials.Pidfd(c, &who))()
		p.converse()
	})
	for i := range st.Sessions {
		if err := t.session(p, &st.Sessions[i]); err != nil {
			return err
		}
	}
	return t.manager(p, st)
}

// sources has what the state of a session refers to. It implements nic.Restorer.
type sources struct {
	t     *thawing
	space *memory.Space
	st    *SessionState
}

func (r sources) Region(id uint64) (*memory.Region, error) {
	if g := r.space.Region(id); g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("there is no registered memory with number %d", id)
}

func (r sources) Sink(channel uint32) (nic.EventSink, error) {
	st, ok := r.st.Sinks[channel]
	if !ok {
		return nil, fmt.Errorf("completion channel %d has no descriptor", channel)
	}
	return r.t.sink(st)
}

func (r sources) AsyncSink() (nic.EventSink, error) { return r.t.sink(r.st.Async) }

// session restores an open device.
func (t *thawing) session(p *process, st *SessionState) error {
	s, d := t.srv, p.listener
	c, who, err := t.conn(&st.Conn, d)
	if err != nil {
		return err
	}
	ses := &session{srv: s, nic: p.nic, proc: p, client: socketEnd{c}, id: st.ID, opened: time.Unix(0, st.Since), told: st.Told}
	ses.loopDev.session = ses
	ses.commands.Store(st.Commands)
	if st.Opened {
		ses.verbs.Reopen()
	}
	if err := p.Account.Charge(nic.SessionBill); err != nil {
		return err
	}
	ses.account = p.Account.Hold()
	arena, err := t.file(st.Arena)
	if err != nil {
		return err
	}
	if ses.arena, err = nic.NewArenaOf(arena); err != nil {
		return err
	}
	ses.arena.SetAccount(p.Account)
	bell, err := t.file(st.Doorbell)
	if err != nil {
		return err
	}
	ses.doorbell = bell
	if st.Device == nil {
		return errors.New("a session without a state")
	}
	options := nic.SessionOptions{Arena: ses.arena, Space: p.space, Pid: p.Pid, UID: p.UID, User: p.Share(), Program: p.Program, Account: p.Account}
	if ses.dev, err = p.nic.Device.ThawSession(options, st.Device, sources{t, p.space, st}, s.loop.Now()); err != nil {
		return err
	}
	if err := s.loop.Attach(ses.dev, ses.doorbell); err != nil {
		return err
	}
	if p.faults != nil {
		s.loop.JoinFaults(ses.dev, p.faults)
	}
	if err := p.adopt(ses); err != nil {
		return err
	}
	s.clients.addSession(ses)
	mail, err := t.mail(&st.Mail, who.Account)
	if err != nil {
		return err
	}
	user := who
	t.user(d, c, &user, &st.Conn, &User{device: true})
	if ses.requests = s.newRequests(c, ses.client, ses, d, mail); ses.requests == nil {
		return errors.New("the connection of a session cannot be used")
	}
	t.start(d, c, who, func() {
		defer ses.end()
		s.tracing.update(ses)
		ses.converse(d)
	})
	return nil
}

// signals has the descriptors of a process's event channels. It implements rdmacm.Restorer.
type signals struct {
	t       *thawing
	st      *ProcessState
	account *budget.Account
}

func (r signals) Signal(channel uint32) (rdmacm.Signal, error) {
	for i := range r.st.Channels {
		if c := &r.st.Channels[i]; c.Name == channel {
			return r.t.sink(c.Signal)
		}
	}
	return nil, fmt.Errorf("event channel %d has no descriptor", channel)
}

func (r signals) Account() *budget.Account { return r.account }

// manager restores the rdma_cm identifiers and event channels of a process.
func (t *thawing) manager(p *process, st *ProcessState) (err error) {
	if st.Manager == nil {
		return nil
	}
	if p.nic.Manager == nil {
		return errors.New("the NIC has no connection manager")
	}
	if p.cm, err = p.nic.Manager.ThawClient(st.Manager, signals{t, st, p.Account}); err != nil {
		return err
	}
	p.cm.SetPace(p.listener.Requests)
	p.cm.Faults = p.faults
	of := make(map[*rdmacm.Channel]*cmSession)
	for i := range st.Channels {
		ses, err := t.channel(p, &st.Channels[i])
		if err != nil {
			return err
		}
		of[ses.ch] = ses
	}
	for _, r := range p.cm.Resolving() {
		if ses := of[r.Channel]; ses != nil {
			t.begin = append(t.begin, func() { go ucma.Resume(besideChannel{ses}, r) })
		}
	}
	return nil
}

// channel restores an event channel.
func (t *thawing) channel(p *process, st *ChannelState) (*cmSession, error) {
	s, d := t.srv, p.listener
	ch := p.cm.Channel(st.Name)
	if ch == nil {
		return nil, fmt.Errorf("there is no event channel %d", st.Name)
	}
	c, who, err := t.conn(&st.Conn, d)
	if err != nil {
		return nil, err
	}
	mail, err := t.mail(&st.Mail, who.Account)
	if err != nil {
		return nil, err
	}
	ses := &cmSession{srv: s, nic: p.nic, proc: p, client: socketEnd{c}, id: st.ID, ch: ch}
	ses.loopChan.cmSession = ses
	if err := p.adoptChannel(ses); err != nil {
		return nil, err
	}
	user := who
	t.user(d, c, &user, &st.Conn, &User{device: true})
	if ses.requests = s.newRequests(c, ses.client, ses, d, mail); ses.requests == nil {
		return nil, errors.New("the connection of an event channel cannot be used")
	}
	if st.Ahead && mail.page != nil {
		t.last = append(t.last, func() { ses.foresee(mail.page) })
	}
	t.start(d, c, who, func() {
		defer ses.end()
		ses.converse()
	})
	return ses, nil
}

// at returns the listener with a path; nil: there is none.
func (t *listenerSet) at(socket string) *listener {
	for _, d := range t.all() {
		if d.Socket == socket {
			return d
		}
	}
	return nil
}
