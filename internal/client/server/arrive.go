package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/eventfile"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
)

// An Arrival is a NIC whose programs come back to a daemon: to that of another host, or to the same after a move was given up. Each
// program presents its token, and then its descriptors, one connection after the other. They are put into its state, which is
// restored as in a live upgrade (thaw.go).
//
//	Arrive ─▶ all programs have returned ─▶ restored, suspended ─▶ commit ─▶ answers ─▶ Continue
//	                                                └─ error: the programs let go again ◀─┘
type Arrival struct {
	srv    *Server
	nic    *registry.NIC
	at     *listener
	halter Halter
	state  *MovedNIC
	fresh  bool // the NIC comes from another host
	steps  ArrivalSteps
	done   func() // ends the use of the device tree; nil: there is none

	returnees map[protocol.Token]*returnee

	mu      sync.Mutex
	files   []*os.File    // guarded by mu; what FDs in the states name
	over    bool          // guarded by mu
	first   time.Time     // guarded by mu; when the first program came
	changed chan struct{} // guarded by mu; closed and replaced when a program is complete
}

// ArrivalSteps are how long the steps of an arrival took.
type ArrivalSteps struct {
	First    time.Duration // until the first program was here
	Programs time.Duration // until all programs were complete
	Restore  time.Duration // until their state was restored
	Commit   time.Duration // until the NIC was committed to this host
	Continue time.Duration // until it continued
}

// A returnee is a program that comes back to this daemon. Its fields are guarded by mu of the arrival.
type returnee struct {
	of       *Arrival
	st       *ProcessState
	here     bool // its PROCESS connection is open
	complete bool
	attempt  int                // counts the PROCESS connections
	taken    map[any]bool       // devices and channels that a connection serves, or that are back; by their states
	outcome  chan syscall.Errno // holds one
}

// Arrive expects the programs of a NIC with a state. The NIC has no programs here.
func (s *Server) Arrive(n *registry.NIC, st *MovedNIC, h Halter) (*Arrival, error) {
	at := s.listeners.of(n)
	if at == nil {
		return nil, fmt.Errorf("there is no listener for NIC %s", n.Name)
	}
	a := &Arrival{srv: s, nic: n, at: at, halter: h, state: st, fresh: true, changed: make(chan struct{})}
	m := &s.moves
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.departs[n] != nil || m.arrivals[n] != nil {
		return nil, fmt.Errorf("NIC %s is moving already", n.Name)
	}
	if len(s.clients.using(n)) > 0 {
		return nil, fmt.Errorf("NIC %s is in use by programs on this host: end them first", n.Name)
	}
	if at.Rests { // the device tree is there before the programs are
		if err := at.tree.Use(); err != nil {
			return nil, err
		}
		a.done = at.tree.Done
	}
	if err := a.invite(); err != nil {
		a.release()
		return nil, err
	}
	m.put(a)
	return a, nil
}

// release releases what Arrive has taken.
func (a *Arrival) release() {
	if a.done != nil {
		a.done()
	}
}

// invite creates the file that tells programs that they are expected here. They look for it without a connection.
func (a *Arrival) invite() error {
	path := a.at.Socket + protocol.Arriving
	if err := os.MkdirAll(filepath.Dir(path), a.at.DirMode); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o644)
}

// uninvite removes that file.
func (d *listener) uninvite() error {
	err := os.Remove(d.Socket + protocol.Arriving)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// arriving returns the program with a token that is expected at a NIC.
func (m *moves) arriving(n *registry.NIC, token protocol.Token) (*returnee, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a := m.arrivals[n]; a != nil && a.returnees[token] != nil {
		return a.returnees[token], nil
	}
	if m.departs[n] != nil {
		return nil, refusal(syscall.EAGAIN, "NIC %s is moving to another host", n.Name)
	}
	return nil, refusal(syscall.ESRCH, "NIC %s is not expected here yet", n.Name)
}

func (m *moves) drop(a *Arrival) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.arrivals, a.nic)
}

// add takes a descriptor. It stays open until the arrival is over.
func (a *Arrival) add(f *os.File) (FD, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		f.Close()
		return 0, refusal(syscall.ECANCELED, "the move of NIC %s was given up", a.nic.Name)
	}
	a.files = append(a.files, f)
	return FD(len(a.files)), nil
}

// connection adds a duplicate of a connection's descriptor.
func (a *Arrival) connection(c *protocol.Conn) (FD, error) {
	fd, err := c.Descriptor()
	if err != nil {
		return 0, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	return a.add(os.NewFile(uintptr(own), "connection"))
}

// sink makes an event channel. The caller closes the client's end.
func (a *Arrival) sink() (st SinkState, end *os.File, err error) {
	s, end, err := eventfile.New()
	if err != nil {
		return st, nil, err
	}
	fds := s.Fds()
	if st.Own, err = a.add(os.NewFile(uintptr(fds[0]), "events")); err == nil {
		st.Peer, err = a.add(os.NewFile(uintptr(fds[1]), "events"))
	} else {
		unix.Close(fds[1])
	}
	if err != nil {
		end.Close()
		return st, nil, err
	}
	return st, end, nil
}

// serveReturn serves a connection of a program that comes back. It takes over the descriptors.
func (d *listener) serveReturn(c *protocol.Conn, who credentials.Caller, h protocol.Hello, fds []int, workload uint64) error {
	var files []*os.File
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), "returned"))
	}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	m, err := d.srv.moves.arriving(d.NIC, h.Token)
	if err != nil {
		return err
	}
	switch h.Kind {
	case protocol.KindProcess:
		return m.process(c, who, d, workload)
	case protocol.KindUverbs:
		if len(files) != 1 {
			return refusal(syscall.EBADF, "a device that comes back has one descriptor, its arena")
		}
		arena := files[0]
		files = nil
		return m.device(c, who, d, h.Name, arena)
	case protocol.KindRDMACM:
		return m.channel(c, who, h.Name)
	}
	return refusal(syscall.EOPNOTSUPP, "connections of kind %d do not come back", h.Kind)
}

// process serves the PROCESS connection of a program until all that the program has is back, and the outcome is known. Then it connects
// the NIC to the namespace of the program's workload.
func (m *returnee) process(c *protocol.Conn, who credentials.Caller, d *listener, workload uint64) error {
	a, s := m.of, m.of.srv
	if err := m.enter(); err != nil {
		return err
	}
	defer m.leave()
	id := credentials.Identify(c, &who)
	if id.Pidfd >= 0 {
		unix.Close(id.Pidfd)
	}
	if id.Mappings != nil {
		id.Mappings.Close() // shared memory is copied from now on
	}
	memfd, err := memory.NewMemfd()
	if err != nil {
		return refusal(syscall.ENOMEM, "%v", err)
	}
	st := m.st
	a.mu.Lock()
	st.Conn.Program, st.Conn.Label = who.Program, who.Label
	if st.Apart = ""; id.Why != nil {
		st.Apart = id.Why.Error()
	}
	if st.Manager != nil {
		st.Manager.Pid, st.Manager.UID, st.Manager.Program = who.Pid, who.UID, who.Program
	}
	a.mu.Unlock()
	d.mu.Lock()
	if g := d.users[c]; g != nil {
		st.Workload, st.Container = g.workload, g.Container
	}
	d.mu.Unlock()
	w := welcome()
	w.Token, w.NumFDs = st.Token, 1
	if id.Mappings != nil {
		w.ID = protocol.MapsShared
		if needsDescriptors() {
			w.ID |= protocol.MapsDescriptors
		}
	}
	err = c.WriteMessage(w.Append(nil), int(memfd.File().Fd()))
	first, err2 := a.add(memfd.File())
	st.Space.Memfd, st.Files = 1, []FD{first}
	if id.Memory != nil {
		second, err := a.add(id.Memory)
		if err2 == nil {
			err2 = err
		}
		st.Space.Foreign, st.Files = 2, append(st.Files, second)
	}
	if err != nil || err2 != nil {
		return err2
	}
	errno := m.awaitReturn(c)
	if errno == 0 {
		socket, err := a.connection(c)
		if err != nil {
			return err
		}
		m.finish(socket)
		s.gate.Outside(func() {
			select {
			case errno = <-m.outcome:
			case <-s.quit:
				errno = syscall.ECANCELED
			}
		})
	}
	var reply protocol.ReplyBuilder
	reply.Reset(nil)
	c.WriteMessage(finish(&reply, errno)) // a client that has ended gets no answer
	if errno == 0 {
		d.attach(c, &who, workload) // it has logged why not; the program goes on
	}
	return nil
}

// awaitReturn waits for the program's last message, and returns why the program is not complete.
func (m *returnee) awaitReturn(c *protocol.Conn) syscall.Errno {
	var req protocol.Request
	buf, n, err := m.of.srv.receive(c)
	if err != nil {
		return syscall.EIO
	}
	defer buffers.Put(buf)
	if req.Parse((*buf)[:n]) != nil || req.Op != protocol.OpReturn {
		return syscall.EINVAL
	}
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	for i := range m.st.Sessions {
		if m.st.Sessions[i].Conn.Socket == 0 {
			return syscall.EBADF
		}
	}
	for i := range m.st.Channels {
		if m.st.Channels[i].Conn.Socket == 0 {
			return syscall.EBADF
		}
	}
	return 0
}

// enter begins the return of a program.
func (m *returnee) enter() error {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	if m.here || m.of.over {
		return refusal(syscall.EAGAIN, "another connection has the program's token")
	}
	m.here = true
	m.attempt++
	if m.of.first.IsZero() {
		m.of.first = time.Now()
	}
	return nil
}

// leave ends a return that is not complete: it may begin again.
func (m *returnee) leave() {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	if m.complete {
		return
	}
	m.here, m.taken = false, nil
	for i := range m.st.Sessions {
		m.st.Sessions[i].Conn.Socket = 0
	}
	for i := range m.st.Channels {
		m.st.Channels[i].Conn.Socket = 0
	}
}

// finish notes that the program is complete.
func (m *returnee) finish(socket FD) {
	a := m.of
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		m.outcome <- syscall.ECANCELED
		return
	}
	m.complete, m.st.Conn.Socket = true, socket
	close(a.changed)
	a.changed = make(chan struct{})
}

// take gives a device or channel to the connection that serves its return, if the PROCESS connection is open and no other one has it. A
// connection that fails keeps it: the program begins anew.
func (m *returnee) take(st any) (attempt int, ok bool) {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	if !m.here || m.complete || m.of.over || m.taken[st] {
		return 0, false
	}
	if m.taken == nil {
		m.taken = make(map[any]bool)
	}
	m.taken[st] = true
	return m.attempt, true
}

// accept notes what is back by calling f, unless the program has begun anew since.
func (m *returnee) accept(attempt int, f func()) bool {
	m.of.mu.Lock()
	defer m.of.mu.Unlock()
	ok := m.here && m.attempt == attempt && !m.complete && !m.of.over
	if ok {
		f()
	}
	return ok
}

// device serves the connection of a device until all that belongs to it is back.
func (m *returnee) device(c *protocol.Conn, who credentials.Caller, d *listener, name uint32, arena *os.File) error {
	a := m.of
	var st *SessionState
	for i := range m.st.Sessions {
		if s := &m.st.Sessions[i]; uint32(s.ID) == name {
			st = s
		}
	}
	var fs unix.Statfs_t
	err := unix.Fstatfs(int(arena.Fd()), &fs)
	if err == nil && fs.Type != unix.TMPFS_MAGIC {
		err = errors.New("the arena is not a memfd")
	}
	if err == nil {
		err = nic.CheckArena(arena)
	}
	if err != nil {
		arena.Close()
		return refusal(syscall.EINVAL, "%v", err)
	}
	attempt, ok := 0, st != nil
	if ok {
		attempt, ok = m.take(st)
	}
	if !ok {
		arena.Close()
		return refusal(syscall.ENODEV, "there is no device %d to come back", name)
	}
	now := &SessionState{Device: st.Device, Sinks: make(map[uint32]SinkState)}
	if now.Arena, err = a.add(arena); err != nil {
		return err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return refusal(protocol.Errno(err, syscall.EMFILE), "the daemon cannot make a doorbell: %v", err)
	}
	bell := os.NewFile(uintptr(fd), "doorbell")
	if now.Doorbell, err = a.add(bell); err != nil {
		return err
	}
	w := welcome()
	w.NumFDs, w.ID = 1, name
	if err := c.WriteMessage(w.Append(nil), fd); err != nil {
		return nil
	}
	for {
		r, ok := m.request(c)
		if !ok {
			return nil
		}
		if r.Kind == 0 {
			break
		}
		if err := m.eventFile(c, now, r); err != nil {
			return nil
		}
	}
	if err := m.unread(now); err != nil {
		return nil
	}
	socket, err := a.connection(c)
	if err != nil {
		return err
	}
	var reply protocol.ReplyBuilder
	reply.Reset(nil)
	errno := syscall.Errno(0)
	if !m.accept(attempt, func() {
		st.Arena, st.Doorbell, st.Async, st.Sinks = now.Arena, now.Doorbell, now.Async, now.Sinks
		st.Conn.Program, st.Conn.Label, st.Conn.Socket = who.Program, who.Label, socket
	}) {
		errno = syscall.ECANCELED
	}
	c.WriteMessage(finish(&reply, errno))
	return nil
}

// request receives a RETURN request of a device.
func (m *returnee) request(c *protocol.Conn) (r protocol.Return, ok bool) {
	buf, n, err := m.of.srv.receive(c)
	if err != nil {
		return r, false
	}
	defer buffers.Put(buf)
	var req protocol.Request
	if req.Parse((*buf)[:n]) != nil || req.Op != protocol.OpReturn {
		return r, false
	}
	r, err = protocol.ParseReturn(req.Command)
	return r, err == nil
}

// wants reports whether the state has such an event file.
func (st *SessionState) wants(r protocol.Return) bool {
	switch r.Kind {
	case protocol.FDAsync:
		return st.Device.Async != nil && st.Async == SinkState{}
	case protocol.FDComp:
		_, there := st.Sinks[r.ID]
		for i := range st.Device.Channels {
			if st.Device.Channels[i].Handle == r.ID {
				return !there
			}
		}
	}
	return false
}

// eventFile sends a new event file in the place of an old one.
func (m *returnee) eventFile(c *protocol.Conn, st *SessionState, r protocol.Return) error {
	var reply protocol.ReplyBuilder
	reply.Reset(nil)
	if !st.wants(r) { // the program has closed it, or destroyed the channel
		return c.WriteMessage(finish(&reply, syscall.EBADF))
	}
	sink, end, err := m.of.sink()
	if err != nil {
		return err
	}
	defer end.Close()
	if r.Kind == protocol.FDAsync {
		st.Async = sink
	} else {
		st.Sinks[r.ID] = sink
	}
	reply.FD(protocol.FD{Kind: r.Kind, ID: r.ID})
	return c.WriteMessage(finish(&reply, 0), int(end.Fd()))
}

// unread creates the event files of the state that the program has closed.
func (m *returnee) unread(st *SessionState) error {
	for i := range st.Device.Channels {
		if h := st.Device.Channels[i].Handle; st.wants(protocol.Return{Kind: protocol.FDComp, ID: h}) {
			sink, end, err := m.of.sink()
			if err != nil {
				return err
			}
			end.Close()
			st.Sinks[h] = sink
		}
	}
	if st.wants(protocol.Return{Kind: protocol.FDAsync}) {
		sink, end, err := m.of.sink()
		if err != nil {
			return err
		}
		end.Close()
		st.Async = sink
	}
	return nil
}

// channel serves the connection of an event channel that comes back.
func (m *returnee) channel(c *protocol.Conn, who credentials.Caller, name uint32) error {
	a := m.of
	var st *ChannelState
	for i := range m.st.Channels {
		if s := &m.st.Channels[i]; s.Name == name {
			st = s
		}
	}
	attempt, ok := 0, st != nil
	if ok {
		attempt, ok = m.take(st)
	}
	if !ok {
		return refusal(syscall.ENODEV, "there is no event channel %d to come back", name)
	}
	sink, end, err := a.sink()
	if err != nil {
		return refusal(syscall.EMFILE, "%v", err)
	}
	defer end.Close()
	socket, err := a.connection(c)
	if err != nil {
		return err
	}
	if !m.accept(attempt, func() {
		st.Signal, st.Conn.Program, st.Conn.Label, st.Conn.Socket = sink, who.Program, who.Label, socket
	}) {
		return refusal(syscall.ECANCELED, "the program comes back anew")
	}
	w := welcome()
	w.NumFDs, w.ID = 1, name
	c.WriteMessage(w.Append(nil), int(end.Fd()))
	return nil
}

// awaitAll waits until all programs are complete.
func (a *Arrival) awaitAll(ctx context.Context) error {
	for {
		missing := ""
		a.mu.Lock()
		changed := a.changed
		for _, m := range a.returnees {
			if !m.complete {
				missing = m.st.Conn.Program
			}
		}
		a.mu.Unlock()
		if missing == "" {
			return nil
		}
		select {
		case <-changed:
		case <-a.at.gone:
			return fmt.Errorf("NIC %s is being removed", a.nic.Name)
		case <-ctx.Done():
			return fmt.Errorf("%s does not come back: %w", missing, ctx.Err())
		}
	}
}

// Finish waits until all programs are back, restores them, calls commit, and lets them continue. If one is missing when ctx ends, that
// is an error: at a NIC from another host all programs wait for a daemon again, and nothing of them is left here. At a NIC that was
// here, the others continue.
func (a *Arrival) Finish(ctx context.Context, commit func() error) error {
	s := a.srv
	defer a.release()
	defer func() {
		s.moves.drop(a)
		if err := a.at.uninvite(); err != nil {
			s.log.Warn("programs of a NIC that leaves would look for it here", "nic", a.nic.Name, "error", err)
		}
	}()
	step := stopwatch()
	missing := a.awaitAll(ctx)
	a.mu.Lock()
	if a.steps.Programs = step(); !a.first.IsZero() {
		all := a.steps.Programs
		a.steps.Programs = min(all, time.Since(a.first))
		a.steps.First = all - a.steps.Programs
	}
	a.mu.Unlock()
	if missing != nil && a.fresh {
		a.end(syscall.ECANCELED)
		return missing
	}
	a.forget()
	a.mu.Lock()
	t := &thawing{srv: s, files: a.files}
	a.mu.Unlock()
	err := errors.New("the daemon is ending")
	if perr := s.loop.Do(func() { err = a.restore(t) }); perr != nil {
		err = perr
	}
	a.steps.Restore = step()
	if err == nil {
		err = commit()
	}
	a.steps.Commit = step()
	if err != nil {
		a.undo(t)
		return err
	}
	s.loop.Do(t.commit)
	for _, f := range t.begin {
		f()
	}
	a.end(0)
	s.loop.Do(func() { a.halter.Continue(a.nic.Device) })
	a.steps.Continue = step()
	go func() { // the loop would otherwise take page faults one by one
		for _, space := range t.pages {
			space.Populate()
		}
	}()
	return missing
}

// Steps are how long the arrival took. Finish has returned.
func (a *Arrival) Steps() ArrivalSteps { return a.steps }

// forget forgets the programs that are not complete: they are lost. Nothing more is accepted of any.
func (a *Arrival) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	complete := make([]ProcessState, 0, len(a.state.Processes))
	for i := range a.state.Processes {
		if st := &a.state.Processes[i]; a.returnees[st.Token].complete {
			complete = append(complete, *st)
		}
	}
	a.state = &MovedNIC{NIC: a.state.NIC, Processes: complete}
}

// restore restores the programs. It runs on the loop.
func (a *Arrival) restore(t *thawing) error {
	if a.fresh {
		a.nic.Device.Continue(&a.state.NIC.Device)
		if a.state.NIC.Manager != nil {
			if err := a.nic.Manager.Thaw(a.state.NIC.Manager); err != nil {
				return err
			}
		}
		if err := a.halter.Suspend(a.nic.Device); err != nil {
			return err
		}
	}
	for i := range a.state.Processes {
		st := &a.state.Processes[i]
		for j := range st.Sessions {
			a.at.ids.Store(max(a.at.ids.Load(), st.Sessions[j].ID)) // later ones get other names
		}
		if err := t.process(a.at, st); err != nil {
			return fmt.Errorf("%s: %w", st.Conn.Program, err)
		}
		t.raise(st)
	}
	return nil
}

// raise raises the signals of event channels that have events.
func (t *thawing) raise(st *ProcessState) {
	p := t.made[len(t.made)-1]
	if st.Manager == nil || p.cm == nil {
		return
	}
	for i := range st.Manager.Channels {
		if c := &st.Manager.Channels[i]; c.Raised {
			p.cm.Channel(c.Name).Signal().Raise()
		}
	}
}

// undo removes what was restored, after an error.
func (a *Arrival) undo(t *thawing) {
	a.end(syscall.ECANCELED)
	s := a.srv
	s.forsake(t.made, func() {
		if a.fresh && a.nic.Manager != nil {
			a.nic.Manager.Forsake()
		}
		a.halter.Continue(a.nic.Device)
	})
	for _, p := range t.made {
		p.conn.Close()
	}
	for _, f := range t.begin { // their connections have ended; what they hold is released
		f()
	}
}

// end tells all programs the outcome. Nothing more of them is accepted.
func (a *Arrival) end(e syscall.Errno) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = true
	for _, m := range a.returnees {
		if m.complete {
			m.outcome <- e
		}
	}
	for _, f := range a.files {
		if f != nil {
			f.Close()
		}
	}
	a.files = nil
}
