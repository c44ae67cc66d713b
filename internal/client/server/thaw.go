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
	guest Machines   // nil: there are none
	files []*os.File // nil once used
	last  []func()   // runs on the loop after the other daemon has ended
	begin []func()   // starts the goroutine of a connection
	pages []*memory.Space
	made  []*process
}

// Thaw restores the state of another daemon's server. The listeners are open, and serve no connection yet. It runs on
// the loop, which does not serve the sessions before the caller lets it continue: until then nothing is changed that
// the other daemon and its clients see. When the other daemon has ended, the caller calls commit, still on the loop, and
// then serve beside it. After an error the caller ends the process. Thaw takes over the files. machines have the programs of virtual machines.
func (s *Server) Thaw(st *State, files []*os.File, machines Machines) (commit, serve func(), err error) {
	t := &thawing{srv: s, files: files, guest: machines}
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

// A joint is a client's connection that goes on.
type joint struct {
	*protocol.Conn
	client ClientEnd
	guest  Continued // nil: the client is a process
	who    credentials.Caller
}

// conn makes a connection at d, whose caller is admitted already.
func (t *thawing) conn(st *ConnState, d *listener) (j joint, err error) {
	if st.Client != 0 {
		if j, err = t.machine(st.Client, d); err != nil {
			return j, err
		}
	} else {
		u, err := t.socket(st.Socket)
		if err != nil {
			return j, err
		}
		if j.who, err = t.srv.admission.enter(u, d); err != nil {
			return j, err
		}
		j.Conn = protocol.NewConn(u)
		j.client = socketEnd{j.Conn}
	}
	j.who.Program, j.who.Label, j.who.NIC = st.Program, st.Label, d.NIC.Name
	return j, nil
}

// machine finds the connection of a program in a virtual machine.
func (t *thawing) machine(number uint64, d *listener) (j joint, err error) {
	if t.guest == nil || d.NIC == nil {
		return j, errors.New("a program in a virtual machine would not be served: the next daemon must be started with the same --guest")
	}
	if j.guest, err = t.guest.Client(d.NIC.Name, number); err != nil {
		return j, err
	}
	j.Conn, j.client, j.who = j.guest.End(), j.guest, j.guest.Caller()
	return j, t.srv.enterClient(d, &j.who)
}

// A channel brings events to a client, or signals them.
type channel interface {
	nic.EventSink
	rdmacm.Signal
}

// sink makes an event channel of a client. guest is nil for a process.
func (t *thawing) sink(st SinkState, guest Continued) (channel, error) {
	if st.Number != 0 {
		if guest == nil {
			return nil, errors.New("the event channel of a process is a virtual machine's")
		}
		return guest.Sink(st.Number)
	}
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
		j, err := t.conn(cs, d)
		if err != nil {
			return err
		}
		who := j.who
		g := &User{device: j.guest != nil, netlink: &who}
		if j.guest == nil {
			g.who = &who
		}
		t.user(d, &j, &who, cs, g)
		t.start(d, &j, func() { d.answerNetlink(j.Conn, j.who) })
	}
	for _, number := range st.Clients {
		j, err := t.machine(number, d)
		if err != nil {
			return err
		}
		t.begin = append(t.begin, func() { t.srv.startClient(d, j.Conn, j.client, j.who) })
	}
	for _, fd := range st.New {
		if err := t.fresh(fd, d); err != nil {
			return err
		}
	}
	return nil
}

// user enters a user of a listener.
func (t *thawing) user(d *listener, j *joint, who *credentials.Caller, st *ConnState, g *User) {
	g.client = j.client
	g.Program, g.Pid, g.UID, g.Since = who.Program, who.Pid, who.UID, time.Unix(0, st.Since)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users[j.Conn] = g
	if g.process {
		if d.Programs != nil {
			d.Programs.Add(1)
		}
		d.attached = g.workload
	}
}

// start makes the goroutine of a connection, which runs converse inside of the gate.
func (t *thawing) start(d *listener, j *joint, converse func()) {
	s, c, who, client := t.srv, j.Conn, j.who, j.client
	t.begin = append(t.begin, func() {
		s.start(c, nil, &who, func() {
			s.guarded(c, who, func(*protocol.Conn, credentials.Caller) error {
				s.gate.Enter()
				defer s.gate.Leave()
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
		}, func() { endClient(client, &who) })
	})
}

// process restores a process with its sessions.
func (t *thawing) process(d *listener, st *ProcessState) error {
	s := t.srv
	j, err := t.conn(&st.Conn, d)
	if err != nil {
		return err
	}
	if err := j.who.Account.Charge(processBill); err != nil {
		return err
	}
	j.who.Locate(j.Conn)
	who, pidfd := j.who, -1
	var files []*os.File
	for _, fd := range st.Files {
		f, err := t.file(fd)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	o := memory.ThawOptions{Account: who.Account}
	if j.guest != nil {
		o.Backing, o.Released = j.guest.Backing(), j.guest.Released
	}
	space, err := memory.Thaw(&st.Space, files, o)
	if err != nil {
		return err
	}
	t.pages = append(t.pages, space)
	p := s.newProcess(j.Conn, j.client, who, d, space, st.Token)
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
	t.user(d, &j, &user, &st.Conn, &User{who: &user, process: true, workload: st.Workload, Container: st.Container})
	t.start(d, &j, func() {
		defer who.Account.Refund(processBill)
		if p.faults != nil {
			defer s.loop.Do(func() { s.loop.RemoveFaults(p.faults) })
		}
		if j.guest == nil {
			pidfd = credentials.Pidfd(j.Conn, &who)
		}
		defer p.watch(pidfd)()
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
	guest Continued // nil: the client is a process
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
	return r.t.sink(st, r.guest)
}

func (r sources) AsyncSink() (nic.EventSink, error) { return r.t.sink(r.st.Async, r.guest) }

// session restores an open device.
func (t *thawing) session(p *process, st *SessionState) error {
	s, d := t.srv, p.listener
	j, err := t.conn(&st.Conn, d)
	if err != nil {
		return err
	}
	ses := &session{srv: s, nic: p.nic, proc: p, client: j.client, id: st.ID, opened: time.Unix(0, st.Since), told: st.Told}
	ses.loopDev.session = ses
	ses.commands.Store(st.Commands)
	if st.Opened {
		ses.verbs.Reopen()
	}
	if err := p.Account.Charge(nic.SessionBill); err != nil {
		return err
	}
	ses.account = p.Account.Hold()
	bell, err := t.file(st.Doorbell)
	if err != nil {
		return err
	}
	ses.doorbell = bell
	if j.guest != nil {
		ses.arena, err = j.guest.Queues(p.Account, bell)
	} else {
		ses.arena, err = t.arena(st.Arena)
	}
	if err != nil {
		return err
	}
	ses.arena.SetAccount(p.Account)
	if st.Device == nil {
		return errors.New("a session without a state")
	}
	options := nic.SessionOptions{Arena: ses.arena, Space: p.space, Pid: p.Pid, UID: p.UID, User: p.Share(), Program: p.Program, Account: p.Account}
	if ses.dev, err = p.nic.Device.ThawSession(options, st.Device, sources{t, p.space, st, j.guest}, s.loop.Now()); err != nil {
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
	mail, err := t.mail(&st.Mail, j.who.Account)
	if err != nil {
		return err
	}
	user := j.who
	t.user(d, &j, &user, &st.Conn, &User{device: true})
	if ses.requests = s.newRequests(j.Conn, ses.client, ses, d, mail); ses.requests == nil {
		return errors.New("the connection of a session cannot be used")
	}
	t.start(d, &j, func() {
		defer ses.end()
		s.tracing.update(ses)
		ses.converse(d)
	})
	return nil
}

// arena makes the arena of a process.
func (t *thawing) arena(fd FD) (*nic.Arena, error) {
	f, err := t.file(fd)
	if err != nil {
		return nil, err
	}
	return nic.NewArenaOf(f)
}

// signals has the descriptors of a process's event channels. It implements rdmacm.Restorer.
type signals struct {
	t       *thawing
	st      *ProcessState
	account *budget.Account
	joints  map[uint32]joint // by channel
}

func (r signals) Signal(channel uint32) (rdmacm.Signal, error) {
	for i := range r.st.Channels {
		if c := &r.st.Channels[i]; c.Name == channel {
			return r.t.sink(c.Signal, r.joints[channel].guest)
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
	joints := make(map[uint32]joint)
	for i := range st.Channels {
		if joints[st.Channels[i].Name], err = t.conn(&st.Channels[i].Conn, p.listener); err != nil {
			return err
		}
	}
	if p.cm, err = p.nic.Manager.ThawClient(st.Manager, signals{t, st, p.Account, joints}); err != nil {
		return err
	}
	p.cm.SetPace(p.listener.Requests)
	p.cm.Faults = p.faults
	of := make(map[*rdmacm.Channel]*cmSession)
	for i := range st.Channels {
		ses, err := t.channel(p, &st.Channels[i], joints[st.Channels[i].Name])
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
func (t *thawing) channel(p *process, st *ChannelState, j joint) (*cmSession, error) {
	s, d := t.srv, p.listener
	ch := p.cm.Channel(st.Name)
	if ch == nil {
		return nil, fmt.Errorf("there is no event channel %d", st.Name)
	}
	mail, err := t.mail(&st.Mail, j.who.Account)
	if err != nil {
		return nil, err
	}
	ses := &cmSession{srv: s, nic: p.nic, proc: p, client: j.client, id: st.ID, ch: ch}
	ses.loopChan.cmSession = ses
	if err := p.adoptChannel(ses); err != nil {
		return nil, err
	}
	user := j.who
	t.user(d, &j, &user, &st.Conn, &User{device: true})
	if ses.requests = s.newRequests(j.Conn, ses.client, ses, d, mail); ses.requests == nil {
		return nil, errors.New("the connection of an event channel cannot be used")
	}
	if st.Ahead && mail.page != nil {
		t.last = append(t.last, func() { ses.foresee(mail.page) })
	}
	t.start(d, &j, func() {
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
