package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/eventfile"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
)

// Frozen is a Server that stands still: no goroutine and no request is between a message and its answer. Messages that
// arrive stay in their sockets.
type Frozen struct {
	srv   *Server
	files []int      // descriptors for the next daemon
	owned []*os.File // those of files that Resume closes
}

// Freeze makes the server stand still, until Resume. The loop still runs, so that commands can end. It fails, and
// changes nothing, if a command does not end before ctx does.
func (s *Server) Freeze(ctx context.Context) (*Frozen, error) {
	f := &Frozen{srv: s}
	if err := s.loop.Do(f.pause); err != nil {
		return nil, err
	}
	if err := s.gate.Close(ctx, "a command of a program", f.interrupt, s.clients.settled); err != nil {
		f.unpause()
		return nil, err
	}
	return f, nil
}

// Resume makes the server continue.
func (f *Frozen) Resume() {
	for _, o := range f.owned {
		o.Close()
	}
	f.srv.gate.Open()
	f.unpause()
}

// pause keeps the loop from reading requests, after those that clients have left in mailboxes. It runs on the loop.
func (f *Frozen) pause() {
	f.srv.paused = true
	for _, r := range f.srv.clients.requests() {
		if m := &r.mail; m.page != nil && !r.busy.Load() {
			f.srv.loop.Leave(r.fd)
			m.open = false
			if asked := m.page.Shut(); asked || m.page.Left() {
				postbox{r}.serve()
			}
		}
	}
}

// unpause undoes pause and interrupt.
func (f *Frozen) unpause() {
	for _, l := range f.srv.sockets() {
		l.SetDeadline(time.Time{})
	}
	f.srv.loop.Do(func() { f.srv.paused = false }) // fails only after the loop has ended
}

// interrupt makes the goroutines that accept connections leave the gate.
func (f *Frozen) interrupt() {
	for _, l := range f.srv.sockets() {
		l.SetDeadline(time.Unix(1, 0))
	}
}

// A deadliner is a socket at which connections are accepted.
type deadliner interface{ SetDeadline(time.Time) error }

// sockets are all sockets at which connections are accepted.
func (s *Server) sockets() (out []deadliner) {
	for _, d := range s.listeners.all() {
		out = append(out, d.socket)
	}
	if s.control != nil {
		out = append(out, s.control.listener)
	}
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	if s.tenants.socket != nil {
		out = append(out, s.tenants.socket.listener)
	}
	return out
}

// Inherited are the sockets at which connections are accepted, by path, for the next daemon; and the paths of those that
// the service manager keeps.
func (s *Server) Inherited() (out map[string]int, kept []string) {
	out = make(map[string]int)
	add := func(path string, c syscall.Conn) {
		if fd, err := descriptorOf(c); err == nil {
			out[path] = fd
		}
	}
	for _, d := range s.listeners.all() {
		add(d.Socket, d.socket)
		if d.Inherited != nil {
			kept = append(kept, d.Socket)
		}
	}
	if s.control != nil {
		add(s.control.path, s.control.listener)
	}
	s.tenants.mu.Lock()
	defer s.tenants.mu.Unlock()
	if s.tenants.socket != nil {
		add(s.tenants.socket.path, s.tenants.socket.listener)
	}
	return out, kept
}

// Snapshot returns the state of the server and of all NICs, and the descriptors that belong to it. They stay open until
// Resume. It runs on the loop, while nothing else moves.
func (f *Frozen) Snapshot() (*State, []int, error) {
	s := f.srv
	st := &State{}
	s.names.mu.Lock()
	st.Names = maps.Clone(s.names.of)
	s.names.mu.Unlock()
	of := make(map[*listener][]*process)
	processes, _ := s.clients.all()
	slices.SortFunc(processes, func(a, b *process) int { return cmp.Compare(a.Pid, b.Pid) })
	for _, p := range processes {
		of[p.listener] = append(of[p.listener], p)
	}
	seen := make(map[*registry.NIC]bool)
	for _, d := range s.listeners.all() {
		if n := d.NIC; n != nil && !seen[n] {
			seen[n] = true
			ns := NICState{Name: n.Name, Device: *n.Device.Freeze()}
			if n.Manager != nil {
				ns.Manager = n.Manager.Freeze()
			}
			if n.Before != nil {
				var err error
				if ns.Before, err = json.Marshal(n.Before); err != nil {
					return nil, nil, err
				}
			}
			st.NICs = append(st.NICs, ns)
		}
		ls, err := f.listener(d, of[d])
		if err != nil {
			return nil, nil, err
		}
		st.Listeners = append(st.Listeners, ls)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, at := range s.conns {
		if _, ok := at.(controlEndpoint); ok {
			fd, err := f.socket(c)
			if err != nil {
				return nil, nil, err
			}
			st.Tools = append(st.Tools, fd)
		}
	}
	return st, f.files, nil
}

// add adds a descriptor that stays open.
func (f *Frozen) add(fd int) FD {
	f.files = append(f.files, fd)
	return FD(len(f.files))
}

// socket adds the descriptor of a connection.
func (f *Frozen) socket(c *protocol.Conn) (FD, error) {
	fd, err := c.Descriptor()
	if err != nil {
		return 0, fmt.Errorf("the descriptor of a connection: %w", err)
	}
	return f.add(fd), nil
}

// conn is the state of a client's connection.
func (f *Frozen) conn(c *protocol.Conn, client ClientEnd, who *credentials.Caller, since time.Time) (ConnState, error) {
	st := ConnState{Program: who.Program, Label: who.Label, Since: since.UnixNano(), Client: client.Number()}
	if st.Client != 0 {
		return st, nil
	}
	var err error
	st.Socket, err = f.socket(c)
	return st, err
}

// sink adds the descriptors of an event channel.
func (f *Frozen) sink(of any) (SinkState, error) {
	switch s := of.(type) {
	case *eventfile.Socket:
		fds := s.Fds()
		return SinkState{Own: f.add(fds[0]), Peer: f.add(fds[1])}, nil
	case Sink:
		return SinkState{Number: s.Number()}, nil
	}
	return SinkState{}, fmt.Errorf("events of type %T cannot be handed over", of)
}

// mail is the state of a mailbox.
func (f *Frozen) mail(m *mailbox) MailState {
	st := MailState{Wanted: m.wanted, Ahead: m.ahead, Served: m.served}
	if m.page != nil {
		st.File = f.add(int(m.file.Fd()))
	}
	return st
}

// listener is the state of a listener with these processes.
func (f *Frozen) listener(d *listener, processes []*process) (st ListenerState, err error) {
	st = ListenerState{Socket: d.Socket, LastID: d.ids.Load()}
	d.mu.Lock()
	st.Ended = maps.Clone(d.ended)
	users := maps.Clone(d.users)
	d.mu.Unlock()
	for _, p := range processes {
		ps, err := f.process(p, users[p.conn])
		if err != nil {
			return st, fmt.Errorf("the state of %s (pid %d): %w", p.Program, p.Pid, err)
		}
		st.Processes = append(st.Processes, ps)
	}
	for c, g := range users {
		if g.netlink != nil {
			cs, err := f.conn(c, g.client, g.netlink, g.Since)
			if err != nil {
				return st, err
			}
			st.Netlink = append(st.Netlink, cs)
		}
	}
	s := f.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, at := range s.conns {
		if m, ok := at.(clientEndpoint); ok && m.listener == d {
			st.Clients = append(st.Clients, m.client.Number())
		}
		if at == endpoint(d) {
			fd, err := f.socket(c)
			if err != nil {
				return st, err
			}
			st.New = append(st.New, fd)
		}
	}
	return st, nil
}

// process is the state of a process, which is a user of its listener.
func (f *Frozen) process(p *process, g *User) (st ProcessState, err error) {
	if g == nil {
		return st, errors.New("its connection is ending")
	}
	if p.away.Load() {
		return st, errors.New("its NIC moves to another host: wait until that has ended")
	}
	if st.Conn, err = f.conn(p.conn, p.client, &p.Caller, g.Since); err != nil {
		return st, err
	}
	st.Token, st.Workload, st.Container, st.Faults, st.Moves = p.token, g.workload, g.Container, p.rules, p.moves
	if p.apart != nil {
		st.Apart = p.apart.Error()
	}
	space, files, err := p.space.Freeze()
	if err != nil {
		return st, err
	}
	f.owned = append(f.owned, files...)
	st.Space = space
	for _, file := range files {
		st.Files = append(st.Files, f.add(int(file.Fd())))
	}
	if p.cm != nil {
		st.Manager = p.cm.Freeze()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for ses := range p.sessions {
		ss, err := f.session(ses)
		if err != nil {
			return st, err
		}
		st.Sessions = append(st.Sessions, ss)
	}
	for ses := range p.channels {
		cs, err := f.channel(ses)
		if err != nil {
			return st, err
		}
		st.Channels = append(st.Channels, cs)
	}
	return st, nil
}

// session is the state of an open device.
func (f *Frozen) session(ses *session) (st SessionState, err error) {
	if ses.requests == nil || !ses.dev.Served() {
		return st, errors.New("one of its devices is ending")
	}
	if st.Conn, err = f.conn(ses.requests.conn, ses.client, &ses.proc.Caller, ses.opened); err != nil {
		return st, err
	}
	st.ID, st.Since, st.Commands, st.Told, st.Opened = ses.id, ses.opened.UnixNano(), ses.commands.Load(), ses.told, ses.verbs.Opened()
	if file := ses.arena.File(); file != nil { // else it is pages of a virtual machine
		st.Arena = f.add(int(file.Fd()))
	}
	st.Doorbell = f.add(int(ses.doorbell.Fd()))
	async, sinks := ses.dev.Sinks()
	if async != nil {
		if st.Async, err = f.sink(async); err != nil {
			return st, err
		}
	}
	st.Sinks = make(map[uint32]SinkState, len(sinks))
	for h, of := range sinks {
		if st.Sinks[h], err = f.sink(of); err != nil {
			return st, err
		}
	}
	st.Mail = f.mail(&ses.requests.mail)
	st.Device, err = ses.dev.Freeze()
	return st, err
}

// channel is the state of an event channel.
func (f *Frozen) channel(ses *cmSession) (st ChannelState, err error) {
	if ses.requests == nil {
		return st, errors.New("one of its event channels is ending")
	}
	if st.Conn, err = f.conn(ses.requests.conn, ses.client, &ses.proc.Caller, time.Now()); err != nil {
		return st, err
	}
	st.ID, st.Name, st.Ahead = ses.id, ses.ch.Name, ses.page != nil
	if st.Signal, err = f.sink(ses.ch.Signal()); err != nil {
		return st, err
	}
	st.Mail = f.mail(&ses.requests.mail)
	return st, nil
}

// descriptorOf is the descriptor of a socket, which stays its own.
func descriptorOf(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(of uintptr) { fd = int(of) })
	return fd, err
}
