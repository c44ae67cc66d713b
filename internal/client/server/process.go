package server

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/registry"
)

// A process is a client program, represented by its PROCESS connection. It owns the memfd of its registered memory and
// every device that it opened.
type process struct {
	srv *Server
	credentials.Caller
	nic      *registry.NIC // of its listener
	listener *listener
	conn     *protocol.Conn // its PROCESS connection
	client   ClientEnd
	token    protocol.Token
	space    *memory.Space
	apart    error // why foreign memory cannot be reached; nil: it can

	mu       sync.Mutex
	ended    bool
	sessions map[*session]struct{}
	channels map[*cmSession]struct{}

	faults *fault.Plan // what fails of it on purpose; nil: nothing
	rules  string      // of faults, as they were in the hello

	cm *rdmacm.Client // its identifiers and channels; touched on the loop only

	moves bool // its library can let go of the daemon
	// away: it has let go of the daemon, or is about to. Its state stays when its connections end, until forsake.
	away atomic.Bool
	gone chan struct{} // closed when its connection has ended
}

// maxOpens is how often a process may open the device: RXE_MAX_UCONTEXT.
const maxOpens = 512

// serveProcess serves a process until it ends.
func (s *Server) serveProcess(c *protocol.Conn, client ClientEnd, who credentials.Caller, d *listener, h protocol.Hello) error {
	rules, err := faultsOf(&h)
	if err != nil {
		return err
	}
	if err := who.Account.Charge(processBill); err != nil {
		s.admission.overdrawn(err)
		return refusal(protocol.Errno(err, syscall.EMFILE), "%v", err)
	}
	defer who.Account.Refund(processBill)
	var most uint64
	s.loop.Do(func() { most = d.NIC.Limits().Memory })
	space, err := client.NewSpace(most)
	if err != nil {
		s.log.Error("cannot serve a new process", "pid", who.Pid, "program", who.Program, "error", err)
		return refusal(protocol.Errno(err, syscall.ENOMEM), "the daemon cannot make memory for registration: %v", err)
	}
	space.SetAccount(who.Account)
	id := client.Identify(&who)
	if id.Memory != nil {
		space.SetForeign(id.Memory)
		if id.Mappings != nil {
			space.SetMappings(id.Mappings)
		}
	} else {
		s.log.Debug("a process's stacks, files and shared memory cannot be registered", "pid", who.Pid, "program", who.Program, "why", id.Why)
	}
	p := s.newProcess(c, client, who, d, space, newToken())
	p.apart, p.rules, p.moves = id.Why, h.Faults, h.Flags&protocol.HelloMoves != 0
	if d.NIC.Manager != nil {
		s.loop.Do(func() { p.manage(d.NIC.Manager.NewClient(who.Pid, who.Program)) })
	}
	if len(rules) > 0 {
		s.loop.Do(func() { p.setFaults(s.loop.AddFaults(d.NIC.Device, rules)) })
		defer s.loop.Do(func() { s.loop.RemoveFaults(p.faults) })
	}
	s.clients.add(p)
	defer p.watch(id.Pidfd)()

	w := welcome()
	w.Token, w.NumFDs = p.token, 1
	if id.Mappings != nil {
		w.ID = protocol.MapsShared
		if needsDescriptors() {
			w.ID |= protocol.MapsDescriptors
		}
	}
	if err := client.Welcome(&w, space.File()); err != nil {
		return nil
	}
	s.log.Debug("process", "pid", who.Pid, "uid", who.UID, "program", who.Program)
	p.converse()
	return nil
}

// newProcess makes a process.
func (s *Server) newProcess(c *protocol.Conn, client ClientEnd, who credentials.Caller, d *listener, space *memory.Space, token protocol.Token) *process {
	space.Aside = func(f func() error) error {
		return s.loop.Aside().Do(who.Share(), time.Duration(d.NIC.Device.Patience()), f)
	}
	return &process{
		srv: s, Caller: who, nic: d.NIC, listener: d, conn: c, client: client, token: token, space: space,
		sessions: make(map[*session]struct{}), channels: make(map[*cmSession]struct{}), gone: make(chan struct{}),
	}
}

// manage sets the process's client of the connection manager. It runs on the loop.
func (p *process) manage(c *rdmacm.Client) {
	p.cm = c
	c.UID = p.UID
	c.SetAccount(p.Account)
	c.SetPace(p.listener.Requests)
}

// watch makes the connection end with the process, even if a forked child still holds a copy of its socket. end is
// called when the connection has ended: it frees what the process has. The pidfd is -1 if there is none.
func (p *process) watch(pidfd int) (end func()) {
	gone := make(chan struct{})
	stop := credentials.Watch(pidfd, func() { close(gone); p.conn.Close() })
	return func() {
		if p.away.Load() { // its state belongs to the departure
			stop()
			close(p.gone)
			return
		}
		p.end()
		p.listener.leave(p.conn) // the NIC is not used any more
		p.srv.gate.Outside(func() {
			if pidfd < 0 {
				gone = nil
			}
			p.awaitRelease(p.conn, gone)
		})
		stop()
		p.space.Close()
	}
}

// converse answers the requests on the PROCESS connection until it ends.
func (p *process) converse() {
	var req protocol.Request
	var reply protocol.ReplyBuilder
	for {
		buf, n, err := p.srv.receive(p.conn)
		if err != nil {
			return
		}
		err = req.Parse((*buf)[:n])
		errno := syscall.EINVAL
		switch {
		case err != nil:
		case req.Op == protocol.OpSync:
			p.listener.tree.Sync()
			errno = 0
		case req.Op == protocol.OpLeave:
			errno = p.asksToLeave()
		case req.Op == protocol.OpStay:
			errno = p.stays()
		}
		reply.Reset((*buf)[:0])
		msg, _ := reply.Finish(int32(errno))
		err = p.conn.WriteMessage(msg)
		buffers.Put(buf)
		if err != nil {
			return
		}
	}
}

// end ends the sessions of a process. It does not wait for them: each cleans up in its own goroutine.
func (p *process) end() {
	p.srv.clients.remove(p)
	p.mu.Lock()
	p.ended = true
	for ses := range p.sessions {
		ses.client.Close()
	}
	for ses := range p.channels {
		ses.client.Close()
	}
	p.mu.Unlock()
	if p.cm != nil {
		p.srv.loop.Do(p.cm.Close)
		p.srv.desk.Remember(p.Label, p.cm.Established) // nothing touches it any more
	}
	p.srv.log.Debug("process ended", "pid", p.Pid, "program", p.Program)
}

// awaitRelease returns when the memfd of p, whose connection has ended, is empty and may be closed. While the process
// lives on the pages are its heap, and stay charged until it takes them out of the memfd or ends. After its end
// awaitRelease takes them out, because other processes may hold the memfd. gone is closed when the process has ended;
// nil: that is not known.
func (p *process) awaitRelease(c *protocol.Conn, gone <-chan struct{}) {
	c.Close()
	if gone == nil && !p.space.Reachable() {
		return // the end of the process cannot be noticed
	}
	ended := false
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		if p.idle() {
			if p.space.Empty() {
				return
			}
			if p.dead(ended) {
				p.clear()
				return
			}
		}
		select {
		case <-p.srv.quit:
			return
		case <-gone:
			gone, ended, wait = nil, true, time.Millisecond
		case <-time.After(wait):
		}
	}
}

// dead reports whether the address space of p is gone, or where that is not visible, whether the process has ended.
// Close does not wait for it.
func (p *process) dead(ended bool) bool {
	if !p.space.Reachable() {
		return ended
	}
	answer := make(chan bool, 1)
	go func() { answer <- p.space.Dead() }()
	select {
	case <-p.srv.quit:
		return false
	case yes := <-answer:
		return yes
	}
}

// clear takes the pages of a dead process out of its memfd.
func (p *process) clear() {
	if err := p.space.Clear(); err != nil {
		p.srv.log.Warn("memory of a process that has ended stays in use while others hold it", "pid", p.Pid, "program", p.Program, "error", err)
	}
}

// idle reports whether nothing is left that could use the memory of p.
func (p *process) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sessions) == 0 && p.space.Mapped() == 0
}

// adopt adds a session, which ends with p. It fails if p has ended already.
func (p *process) adopt(ses *session) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return refusal(syscall.ESRCH, "process %d has ended", p.Pid)
	}
	if len(p.sessions) >= maxOpens {
		return refusal(syscall.ENOMEM, "process %d has the device open %d times, which is the limit", p.Pid, maxOpens)
	}
	p.sessions[ses] = struct{}{}
	return nil
}

func (p *process) drop(ses *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, ses)
}

// adoptChannel is adopt for an event channel.
func (p *process) adoptChannel(ses *cmSession) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return refusal(syscall.ESRCH, "process %d has ended", p.Pid)
	}
	if len(p.channels) >= maxChannels {
		return refusal(syscall.EMFILE, "process %d has %d event channels, which is the limit", p.Pid, maxChannels)
	}
	p.channels[ses] = struct{}{}
	return nil
}

func (p *process) dropChannel(ses *cmSession) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.channels, ses)
}

// process returns the process with a token, at the same listener. The token is the proof of identity: user and group of
// a program may have changed since its hello.
func (t *clients) process(token protocol.Token, who credentials.Caller, d *listener) (*process, error) {
	t.mu.Lock()
	p := t.processes[token]
	t.mu.Unlock()
	if p == nil || p.nic != d.NIC {
		return nil, refusal(syscall.EPERM, "process %d has not introduced itself to this daemon", who.Pid)
	}
	if p.away.Load() {
		return nil, refusal(syscall.EBUSY, "process %d has let go of this daemon", who.Pid)
	}
	return p, nil
}

// needsDescriptors reports whether programs must offer descriptors of their shared memory, because the daemon may not
// open the files behind their mappings.
var needsDescriptors = sync.OnceValue(memory.NeedsDescriptors)
