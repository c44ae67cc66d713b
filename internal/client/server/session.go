package server

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/uverbs"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A session is one open of the device. Its commands never overlap; requests.go says who runs
// them.
type session struct {
	srv    *Server
	nic    *registry.NIC
	proc   *process
	line   Line
	id     uint64
	opened time.Time

	arena    *nic.Arena
	doorbell Bell
	account  *budget.Account // the process's
	dev      *nic.Session    // touched on the loop only

	verbs    *uverbs.Context
	extents  []protocol.Extent // of the request under way
	refused  string            // why the last registration was refused, for the trace
	mapped   string            // how the memory of the last registration is reached, likewise
	told     bool              // the log has it
	traced   bool              // guarded by tracing.mu: queues are armed by command
	commands atomic.Uint64

	looped    bool // the request under way is being run on the loop
	unsettled bool // its answer has to wait for what still writes to the client's memory
	short     bool // it has to be run again, when something has been reclaimed
}

// serveUverbs lives as long as the device is open.
func (s *Server) serveUverbs(c *protocol.Conn, l Line, who credentials.Caller, d *listener, h protocol.Hello) error {
	p, err := s.clients.process(h.Token, who, d)
	if err != nil {
		return err
	}
	ses, err := s.openSession(l, p)
	if err != nil {
		return err
	}
	defer ses.end()

	w := welcome()
	w.ArenaSize, w.NumFDs = ses.arena.Size(), 2
	bell, _ := ses.doorbell.(*os.File)
	if err := l.Welcome(&w, ses.arena.File(), bell); err != nil {
		return nil
	}
	s.log.Debug("device opened", "nic", p.nic.Name, "session", ses.id, "pid", p.Pid, "program", p.Program)
	s.opened(d, p, true)
	defer s.opened(d, p, false)
	s.tracing.mark(p, ses.id, protocol.TraceOpen)
	s.serveRequests(c, l, ses, d, wantsMail(h, who.Account))
	s.tracing.mark(p, ses.id, protocol.TraceClose)
	s.log.Debug("device closed", "nic", p.nic.Name, "session", ses.id, "pid", p.Pid, "program", p.Program, "commands", ses.commands.Load())
	return nil
}

// opened records that a program has opened the device of a declared NIC, or closed it.
func (s *Server) opened(d *listener, p *process, open bool) {
	if d.NIC.Key() == (tenant.Key{}) {
		return
	}
	e := events.Event{Verb: events.Closed, Object: d.NIC.Key(), By: events.By(&p.Caller)}
	if open {
		e.Verb = events.Opened
	}
	s.cfg.Events.Record(e)
}

// refused records that a caller was not admitted to a NIC.
func (a *admission) refused(n *registry.NIC, who *credentials.Caller, why error) {
	a.events.Record(events.Event{Verb: events.Refused, Object: n.Key(), Reason: "open: " + why.Error(), By: events.By(who)})
}

// openSession makes what a session needs. Whatever it returns, nothing leaks.
func (s *Server) openSession(l Line, p *process) (_ *session, err error) {
	ses := &session{srv: s, nic: p.nic, proc: p, line: l, id: p.listener.ids.Add(1), opened: time.Now()}
	ses.verbs = uverbs.NewContext(ses)
	if err := p.Account.Charge(nic.SessionBill); err != nil {
		s.admission.overdrawn(err)
		return nil, refusal(protocol.Errno(err, syscall.ENOMEM), "%v", err)
	}
	ses.account = p.Account.Hold() // the process may end before the session
	defer func() {
		if err != nil {
			ses.end()
			if ses.arena == nil && l.Vouched() {
				return // a machine can lie of its memory again and again: the line has the log say so
			}
			s.log.Error("cannot open the device for a program", "pid", p.Pid, "program", p.Program, "error", err)
		}
	}()
	if ses.arena, ses.doorbell, err = l.OpenQueues(p.Account); err != nil {
		return nil, refusal(protocol.Errno(err, syscall.ENOMEM), "%v", err)
	}
	ses.arena.SetAccount(p.Account)
	err = syscall.EIO
	if perr := s.loop.Do(func() {
		ses.dev, err = ses.nic.Device.Open(nic.SessionOptions{Arena: ses.arena, Space: p.space, Pid: p.Pid, UID: p.UID, User: p.Share(), Program: p.Program, Account: p.Account})
		if err == nil {
			err = s.loop.Attach(ses.dev, ses.doorbell)
		}
	}); perr != nil {
		err = perr
	}
	if err != nil {
		return nil, refusal(protocol.Errno(err, syscall.EIO), "the daemon cannot open the device: %v", err)
	}
	if err = p.adopt(ses); err != nil {
		return nil, err
	}
	s.clients.addSession(ses)
	s.tracing.update(ses)
	return ses, nil
}

// closeAtOnce is how many objects of a session are destroyed before others have the loop.
const closeAtOnce = 32

// end frees everything. The arena goes only when the loop has been elsewhere since
// the session's objects went: until then it may hold their memory.
func (ses *session) end() {
	s := ses.srv
	if ses.dev != nil {
		err := s.loop.Do(func() { s.loop.Detach(ses.dev) })
		for more := true; more && err == nil; {
			err = s.loop.Do(func() { more = ses.dev.CloseSome(closeAtOnce) })
		}
		if err != nil {
			s.log.Error("cannot free a session", "nic", ses.nic.Name, "session", ses.id, "error", err)
		}
		s.loop.Do(func() {})
	}
	if ses.doorbell != nil {
		ses.doorbell.Close()
	}
	if ses.arena != nil {
		ses.arena.Close()
	}
	ses.proc.drop(ses)
	s.clients.removeSession(ses)
	ses.account.Refund(nic.SessionBill)
	ses.account.Drop()
	ses.proc.listener.tree.Poke()
}

// mostRings is how many rings a command makes at most.
const mostRings = 2

// Do implements uverbs.Device: it runs f on the loop with the session's device. It
// panics where f panicked, and so ends the session.
func (ses *session) Do(f func(*nic.Session) error) error {
	err := error(syscall.EIO) // what a device that is gone answers
	if ses.looped {
		if ses.dev.Served() {
			ses.srv.loop.Bill(ses.nic.Device)
			err = f(ses.dev)
		}
		if ses.short = err != nil && ses.arena.Short(); err != nil && !ses.short {
			exceeded(ses.nic, err)
			ses.srv.admission.overdrawnBeside(err)
		}
		return err
	}
	run := func() {
		if ses.dev.Served() { // else it faulted, and is closed
			ses.srv.loop.Bill(ses.nic.Device)
			err = f(ses.dev)
		}
	}
	p := ses.srv.loop.Do(run)
	// Each time there may be room for one ring more, and a queue pair has two.
	for range mostRings {
		if p != nil || err == nil || !ses.arena.Short() {
			break
		}
		ses.arena.Reclaim()
		p = ses.srv.loop.Do(run)
	}
	if p != nil && !errors.Is(p, os.ErrClosed) {
		panic(p)
	}
	ses.exceededBeside(err)
	ses.srv.admission.overdrawn(err)
	return err
}

// exceeded counts, on the loop, that a tenant's quota refused something.
func exceeded(n *registry.NIC, err error) {
	var e *budget.Error
	if errors.As(err, &e) && e.Tenant != "" {
		n.Device.Exceeded()
	}
}

// exceededBeside is exceeded for the session's goroutine.
func (ses *session) exceededBeside(err error) {
	var e *budget.Error
	if errors.As(err, &e) {
		ses.srv.loop.Do(func() { exceeded(ses.nic, err) })
	}
}

// onLoop implements handler.
func (ses *session) onLoop(req *protocol.Request, reply *protocol.ReplyBuilder) ([]byte, rest) {
	if req.Op != protocol.OpCommand || !uverbs.Brief(req.Command) || ses.srv.desk.Trace.Wants(&ses.proc.Caller) {
		return nil, func() ([]byte, []uverbs.Handle) { return ses.beside(req, reply) }
	}
	ses.looped, ses.unsettled, ses.short = true, false, false
	answer, _ := ses.command(req, reply)
	ses.looped = false
	if ses.short {
		return nil, func() ([]byte, []uverbs.Handle) {
			reply.Reset(answer[:0])
			return ses.beside(req, reply)
		}
	}
	if !ses.unsettled && !ses.arena.Due() {
		return answer, nil
	}
	return nil, func() ([]byte, []uverbs.Handle) {
		if ses.unsettled {
			ses.Settle()
		}
		ses.reclaim()
		return answer, nil
	}
}

// early implements handler: it runs the sure commands in b, and nothing else that a client leaves there.
func (ses *session) early(b []byte) (n int) {
	ses.looped, ses.unsettled, ses.short = true, false, false
	for command, rest, ok := uverbs.MaybeSure(b); ok; command, rest, ok = uverbs.MaybeSure(rest) {
		ses.commands.Add(1)
		n++
		if nic.Sure(command) {
			ses.verbs.Run(command, false)
		}
	}
	ses.looped = false
	return n
}

// beside implements handler.
func (ses *session) beside(req *protocol.Request, reply *protocol.ReplyBuilder) ([]byte, []uverbs.Handle) {
	answer, handles := ses.handle(req, reply)
	ses.reclaim()
	return answer, handles
}

// lasts implements handler.
func (ses *session) lasts(req *protocol.Request) bool {
	return req.Op == protocol.OpCommand && !uverbs.Brief(req.Command)
}

// reclaim gives the pages of rings that are gone back to the system.
func (ses *session) reclaim() {
	if ses.arena.Due() {
		ses.arena.Reclaim()
	}
}

// nonsense implements handler.
func (ses *session) nonsense(err error) {
	ses.srv.log.Warn("a client sent nonsense, its device is closed", "pid", ses.proc.Pid, "program", ses.proc.Program, "error", err)
}

// handle runs one request and returns the reply and the handles that go with it.
func (ses *session) handle(req *protocol.Request, reply *protocol.ReplyBuilder) ([]byte, []uverbs.Handle) {
	switch req.Op {
	case protocol.OpCommand:
		return ses.command(req, reply)
	case protocol.OpSync:
		ses.proc.listener.tree.Sync()
		return finish(reply, 0), nil
	case protocol.OpRoom:
		if len(req.Extents) == 1 {
			return finish(reply, protocol.Errno(ses.room(req.Extents[0].Length), syscall.ENOMEM)), nil
		}
	}
	return finish(reply, syscall.EINVAL), nil
}

func (ses *session) command(req *protocol.Request, reply *protocol.ReplyBuilder) ([]byte, []uverbs.Handle) {
	ses.commands.Add(1)
	ses.refused, ses.mapped = "", ""
	traced := ses.srv.desk.Trace.Wants(&ses.proc.Caller)
	var start time.Time
	if traced {
		start = time.Now()
	}
	ses.extents = req.Extents
	c := ses.verbs.Run(req.Command, traced)
	ses.extents = nil
	if c.Refused() {
		ses.srv.desk.Refused.Count(c.Name())
	}
	if traced {
		ses.traceCall(c, start)
	}
	c.Answer(reply)
	return finish(reply, c.Errno), c.Handles()
}

// finish ends a reply. One that does not fit is a mistake of ours, not the
// client's: it panics, and the session ends.
func finish(r *protocol.ReplyBuilder, errno syscall.Errno) []byte {
	msg, err := r.Finish(int32(errno))
	if err != nil {
		panic(err)
	}
	return msg
}

// NIC implements uverbs.Device.
func (ses *session) NIC() *nic.NIC { return ses.nic.Device }

// Wake implements uverbs.Device.
func (ses *session) Wake(q *nic.QP) { ses.srv.loop.Wake(q) }

// OpenEvents implements uverbs.Device.
func (ses *session) OpenEvents() (nic.EventSink, uverbs.Handle, error) { return ses.line.OpenEvents() }

// Settle implements uverbs.Device.
func (ses *session) Settle() {
	if ses.looped {
		ses.unsettled = ses.proc.space.Writing()
		return
	}
	ses.proc.space.Quiesce(time.Duration(ses.nic.Device.Patience()))
}

// room says whether the process may register so much more. Only REG_MR counts refusals: the
// client sends it all the same.
func (ses *session) room(length uint64) error {
	err := ses.proc.space.Room(length)
	var over *budget.Error
	if errors.As(err, &over) {
		ses.srv.clients.recount()
		err = ses.proc.space.Room(length)
	}
	return err
}

// Map implements uverbs.Device.
func (ses *session) Map(start, length uint64) (*memory.Region, error) {
	extents, done, err := ses.line.Extents(ses.extents)
	if err != nil {
		return nil, err
	}
	region, err := ses.proc.space.Map(start, length, extents)
	var over *budget.Error
	if errors.As(err, &over) && over.Kind == budget.Memory {
		ses.srv.clients.recount()
		region, err = ses.proc.space.Map(start, length, extents)
	}
	switch {
	case done == nil:
	case err == nil:
		region.OnRelease(done)
	default:
		done()
	}
	ses.exceededBeside(err)
	ses.srv.admission.overdrawn(err)
	switch {
	case err == syscall.EPERM && ses.proc.apart != nil:
		ses.refused = ses.proc.apart.Error()
	case err == syscall.ETIMEDOUT:
		ses.refused = "it does not come; the program, or a file system, has to provide it"
	default:
		if err == nil && ses.srv.desk.Trace.Wants(&ses.proc.Caller) {
			u := region.Usage()
			ses.mapped = protocol.UsageOf(u.Own, u.Shared, u.Foreign, u.Why).String()
		}
		return region, err
	}
	if !ses.told {
		ses.told = true
		ses.srv.log.Warn("a program cannot register memory that the daemon cannot reach: a stack, a file, shared memory",
			"pid", ses.proc.Pid, "program", ses.proc.Program, "why", ses.refused)
	}
	return region, err
}
