package frontdoor

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma/internal/budget"
	"vrdma/internal/channel"
	"vrdma/internal/memory"
	"vrdma/internal/nic"
	"vrdma/internal/uverbs"
)

// A session is one open of the device. Its goroutine reads a command, runs it and
// answers; commands of one session never overlap.
type session struct {
	srv    *Server
	proc   *process
	conn   *channel.Conn
	id     uint64
	opened time.Time

	arena    *nic.Arena
	doorbell *os.File
	account  *budget.Account // the process's
	dev      *nic.Session    // touched on the loop only

	verbs    *uverbs.Context
	refused  string // why the last registration was refused, for the trace
	told     bool   // the log has it
	commands atomic.Uint64
}

// serveUverbs lives as long as the device is open.
func (s *Server) serveUverbs(c *channel.Conn, who peer, token channel.Token) error {
	p, err := s.process(token, who)
	if err != nil {
		return err
	}
	ses, err := s.openSession(c, p)
	if err != nil {
		return err
	}
	defer ses.end()

	w := welcome()
	w.ArenaSize, w.NumFDs = ses.arena.Size(), 2
	if err := c.WriteMessage(w.Append(nil), int(ses.arena.File().Fd()), int(ses.doorbell.Fd())); err != nil {
		return nil
	}
	s.log.Debug("device opened", "session", ses.id, "pid", p.pid, "program", p.program)
	ses.traceMark(channel.TraceOpen)
	ses.loop()
	ses.traceMark(channel.TraceClose)
	s.log.Debug("device closed", "session", ses.id, "pid", p.pid, "program", p.program, "commands", ses.commands.Load())
	return nil
}

// openSession makes what a session needs. Whatever it returns, nothing leaks.
func (s *Server) openSession(c *channel.Conn, p *process) (_ *session, err error) {
	ses := &session{srv: s, proc: p, conn: c, id: s.ids.Add(1), opened: time.Now()}
	ses.verbs = uverbs.NewContext(ses)
	if err := p.account.Charge(nic.SessionBill); err != nil {
		s.overdrawn(err)
		return nil, refusal(channel.Errno(err, syscall.ENOMEM), "%v", err)
	}
	ses.account = p.account.Hold() // the process may end before the session
	defer func() {
		if err != nil {
			ses.end()
			s.log.Error("cannot open the device for a program", "pid", p.pid, "program", p.program, "error", err)
		}
	}()
	if ses.arena, err = nic.NewArena(); err != nil {
		return nil, refusal(channel.Errno(err, syscall.ENOMEM), "the daemon cannot make memory for queues: %v", err)
	}
	ses.arena.SetAccount(p.account)
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, refusal(channel.Errno(err, syscall.EMFILE), "the daemon cannot make a doorbell: %v", err)
	}
	ses.doorbell = os.NewFile(uintptr(fd), "doorbell")
	err = syscall.EIO
	if perr := s.onLoop(func() {
		ses.dev, err = s.cfg.NIC.Open(nic.SessionOptions{Arena: ses.arena, Space: p.space, Pid: p.pid, User: p.share(), Program: p.program, Account: p.account})
		if err == nil {
			err = s.cfg.Engine.Attach(ses.dev, ses.doorbell)
		}
	}); perr != nil {
		err = perr
	}
	if err != nil {
		return nil, refusal(channel.Errno(err, syscall.EIO), "the daemon cannot open the device: %v", err)
	}
	if err = p.adopt(ses); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.sessions[ses] = struct{}{}
	s.mu.Unlock()
	return ses, nil
}

// closeAtOnce is how many objects of a session are destroyed before others have the loop.
const closeAtOnce = 32

// end frees everything. The arena goes only when the loop has been elsewhere since
// the session's objects went: until then it may hold their memory.
func (ses *session) end() {
	s := ses.srv
	if ses.dev != nil {
		err := s.onLoop(func() { s.cfg.Engine.Detach(ses.dev) })
		for more := true; more && err == nil; {
			err = s.onLoop(func() { more = ses.dev.CloseSome(closeAtOnce) })
		}
		if err != nil {
			s.log.Error("panic while freeing a session", "session", ses.id, "error", err)
		}
		s.onLoop(func() {})
	}
	if ses.doorbell != nil {
		ses.doorbell.Close()
	}
	if ses.arena != nil {
		ses.arena.Close()
	}
	ses.proc.drop(ses)
	s.mu.Lock()
	delete(s.sessions, ses)
	s.mu.Unlock()
	ses.account.Refund(nic.SessionBill)
	ses.account.Drop()
	s.tree.Poke()
}

// Evict closes the connection of a session whose memory faulted; the engine has
// closed the session itself.
func (s *Server) Evict(dev *nic.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ses := range s.sessions {
		if ses.dev == dev {
			ses.conn.Close()
		}
	}
}

// onLoop runs f on the engine's loop. A panic in f must not end the loop, which
// serves everybody: it comes back as an error.
func (s *Server) onLoop(f func()) (err error) {
	s.cfg.Engine.Do(func() {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic on the loop: %v\n%s", p, debug.Stack())
			}
		}()
		f()
	})
	return err
}

// Do implements uverbs.Device: it runs f on the loop with the session's device. It
// panics where f panicked, and so ends the session.
func (ses *session) Do(f func(*nic.Session) error) error {
	err := error(syscall.EIO) // what a device that is gone answers
	if p := ses.srv.onLoop(func() {
		if ses.dev.Engine != nil { // else it faulted, and is closed
			err = f(ses.dev)
		}
	}); p != nil {
		panic(p)
	}
	ses.srv.overdrawn(err)
	return err
}

// loop serves commands until the connection ends.
func (ses *session) loop() {
	var req channel.Request
	var reply channel.ReplyBuilder
	out := make([]byte, 0, 1024)
	for {
		buf, n, err := receive(ses.conn)
		if err != nil {
			return
		}
		var msg []byte
		var fds []int
		if err := req.Parse((*buf)[:n]); err != nil {
			ses.srv.log.Warn("a client sent nonsense, its device is closed", "pid", ses.proc.pid, "program", ses.proc.program, "error", err)
			buffers.Put(buf)
			return
		}
		msg, fds = ses.handle(&req, &reply, out)
		ses.arena.Reclaim()
		err = ses.conn.WriteMessage(msg, fds...)
		channel.CloseFDs(fds)
		buffers.Put(buf)
		if cap(req.Extents) > 1024 {
			req.Extents = nil
		}
		if err != nil {
			return
		}
	}
}

// handle runs one request and returns the reply and the descriptors that go with
// it.
func (ses *session) handle(req *channel.Request, reply *channel.ReplyBuilder, out []byte) ([]byte, []int) {
	reply.Reset(out)
	switch req.Op {
	case channel.OpCommand:
		return ses.command(req, reply)
	case channel.OpSync:
		ses.srv.tree.Sync()
		return finish(reply, 0), nil
	}
	return finish(reply, syscall.EINVAL), nil
}

func (ses *session) command(req *channel.Request, reply *channel.ReplyBuilder) ([]byte, []int) {
	ses.commands.Add(1)
	ses.refused = ""
	traced := ses.srv.trace.wants(&ses.proc.peer)
	var start time.Time
	if traced {
		start = time.Now()
	}
	c := ses.verbs.Run(req.Command, req.Extents, traced)
	if c.Refused() {
		ses.srv.refused.count(c.Name())
	}
	if traced {
		ses.traceCall(c, start)
	}
	c.Answer(reply)
	return finish(reply, c.Errno), c.FDs()
}

// finish ends a reply. One that does not fit is a mistake of ours, not the
// client's: it panics, and the session ends.
func finish(r *channel.ReplyBuilder, errno syscall.Errno) []byte {
	msg, err := r.Finish(int32(errno))
	if err != nil {
		panic(err)
	}
	return msg
}

// NIC implements uverbs.Device.
func (ses *session) NIC() *nic.NIC { return ses.srv.cfg.NIC }

// Wake implements uverbs.Device.
func (ses *session) Wake(q *nic.QP) { ses.srv.cfg.Engine.Wake(q) }

// Settle implements uverbs.Device.
func (ses *session) Settle() {
	ses.proc.space.Quiesce(time.Duration(ses.srv.cfg.NIC.Patience()))
}

// Map implements uverbs.Device.
func (ses *session) Map(start, length uint64, extents []memory.Extent) (*memory.Region, error) {
	region, err := ses.proc.space.Map(start, length, extents)
	ses.srv.overdrawn(err)
	switch {
	case err == syscall.EPERM && ses.proc.apart != nil:
		ses.refused = ses.proc.apart.Error()
	case err == syscall.ETIMEDOUT:
		ses.refused = "it does not come; the program, or a file system, has to provide it"
	default:
		return region, err
	}
	if !ses.told {
		ses.told = true
		ses.srv.log.Warn("a program cannot register memory that the daemon cannot reach: a stack, a file, shared memory",
			"pid", ses.proc.pid, "program", ses.proc.program, "why", ses.refused)
	}
	return region, err
}
