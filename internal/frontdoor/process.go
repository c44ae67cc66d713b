package frontdoor

import (
	"sync"
	"syscall"
	"time"

	"vrdma/internal/channel"
	"vrdma/internal/memory"
	"vrdma/internal/rdmacm"
)

// A process is a client program: what its PROCESS connection stands for. It owns
// the memfd of its registered memory and every device it opened.
type process struct {
	peer
	token channel.Token
	space *memory.Space
	apart error // why foreign memory cannot be reached; nil: it can

	mu       sync.Mutex
	ended    bool
	sessions map[*session]struct{}
	channels map[*cmSession]struct{}

	cm *rdmacm.Client // what it has of the connection manager; touched on the loop only
}

// maxOpens is how often a process may open the device: RXE_MAX_UCONTEXT.
const maxOpens = 512

// serveProcess lives as long as the process.
func (s *Server) serveProcess(c *channel.Conn, who peer) error {
	if err := who.account.Charge(processBill); err != nil {
		s.overdrawn(err)
		return refusal(channel.Errno(err, syscall.EMFILE), "%v", err)
	}
	defer who.account.Refund(processBill)
	space, err := memory.NewSpace(who.pid, s.cfg.NIC.Limits.Memory)
	if err != nil {
		s.log.Error("cannot serve a new process", "pid", who.pid, "program", who.program, "error", err)
		return refusal(channel.Errno(err, syscall.ENOMEM), "the daemon cannot make memory for registration: %v", err)
	}
	space.SetAccount(who.account)
	defer space.Close()
	id := identify(c, &who)
	if id.memory != nil {
		space.SetForeign(id.memory)
	} else {
		s.log.Debug("a process's stacks, files and shared memory cannot be registered", "pid", who.pid, "program", who.program, "why", id.why)
	}
	space.Aside = func(f func() error) error {
		return s.cfg.NIC.Aside().Do(who.share(), time.Duration(s.cfg.NIC.Patience()), f)
	}
	p := &process{peer: who, token: newToken(), space: space, apart: id.why, sessions: make(map[*session]struct{}), channels: make(map[*cmSession]struct{})}
	if s.cfg.CMA != nil {
		s.onLoop(func() {
			p.cm = s.cfg.CMA.NewClient(who.pid, who.program)
			p.cm.SetAccount(who.account)
		})
	}
	s.mu.Lock()
	s.processes[p.token] = p
	s.mu.Unlock()
	defer s.endProcess(p)

	// The connection ends with the process even where a forked child still holds
	// a copy of its socket.
	stop := s.watch(id.pidfd, func() { c.Close() })
	defer stop()

	w := welcome()
	w.Token, w.NumFDs = p.token, 1
	if err := c.WriteMessage(w.Append(nil), int(space.File().Fd())); err != nil {
		return nil
	}
	s.log.Debug("process", "pid", who.pid, "uid", who.uid, "program", who.program)
	var req channel.Request
	var reply channel.ReplyBuilder
	for {
		buf, n, err := receive(c)
		if err != nil {
			return nil
		}
		err = req.Parse((*buf)[:n])
		errno := syscall.EINVAL
		if err == nil && req.Op == channel.OpSync {
			s.tree.Sync()
			errno = 0
		}
		reply.Reset((*buf)[:0])
		msg, _ := reply.Finish(int32(errno))
		err = c.WriteMessage(msg)
		buffers.Put(buf)
		if err != nil {
			return nil
		}
	}
}

// endProcess ends the sessions of a process that is gone and waits for none of
// them: each cleans up in its own goroutine.
func (s *Server) endProcess(p *process) {
	s.mu.Lock()
	delete(s.processes, p.token)
	s.mu.Unlock()
	p.mu.Lock()
	p.ended = true
	for ses := range p.sessions {
		ses.conn.Close()
	}
	for ses := range p.channels {
		ses.conn.Close()
	}
	p.mu.Unlock()
	if p.cm != nil {
		s.onLoop(p.cm.Close)
		s.remember(p)
	}
	s.log.Debug("process ended", "pid", p.pid, "program", p.program)
}

// adopt makes ses end with p. It fails if p has ended already.
func (p *process) adopt(ses *session) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return refusal(syscall.ESRCH, "process %d has ended", p.pid)
	}
	if len(p.sessions) >= maxOpens {
		return refusal(syscall.ENOMEM, "process %d has the device open %d times, which is the limit", p.pid, maxOpens)
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
		return refusal(syscall.ESRCH, "process %d has ended", p.pid)
	}
	if len(p.channels) >= maxChannels {
		return refusal(syscall.EMFILE, "process %d has %d event channels, which is the limit", p.pid, maxChannels)
	}
	p.channels[ses] = struct{}{}
	return nil
}

func (p *process) dropChannel(ses *cmSession) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.channels, ses)
}

// process finds the process that was given a token. The token is the proof: user
// and group of a program may have changed since it introduced itself.
func (s *Server) process(token channel.Token, who peer) (*process, error) {
	s.mu.Lock()
	p := s.processes[token]
	s.mu.Unlock()
	if p == nil {
		return nil, refusal(syscall.EPERM, "process %d has not introduced itself to this daemon", who.pid)
	}
	return p, nil
}
