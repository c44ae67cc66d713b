package server

import (
	"errors"
	"fmt"
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

// A session is one open of the device. Its commands never overlap; see requests.go for the goroutine
// that runs them.
type session struct {
	srv    *Server
	nic    *registry.NIC
	proc   *process
	client ClientEnd
	id     uint64
	opened time.Time

	arena    *nic.Arena
	doorbell Bell
	account  *budget.Account // the process's
	dev      *nic.Session    // touched on the loop only

	verbs    uverbs.Context
	loopDev  loopDevice        // for commands on the loop; here so that running one does not allocate
	extents  []protocol.Extent // of the request under way
	refused  string            // why the last registration was refused, for the trace
	mapped   string            // how the memory of the last registration is reached, for the trace
	told     bool              // the log has reported memory that the daemon cannot reach
	traced   bool              // guarded by tracing.mu: queues are armed by command
	commands atomic.Uint64

	requests *requests // set before the loop serves the session, with proc.mu held
}

// A command of a session runs on the loop or beside it, in the session's goroutine. The uverbs.Device
// that it is given makes the difference:
//
//	loopDevice     on the loop: Do calls, nothing waits. What cannot be done there it records
//	besideDevice   in the session's goroutine: Do goes to the loop, Settle and Map may wait

// A loopDevice is the device of a command that runs on the loop.
type loopDevice struct {
	*session
	unsettled bool // the answer has to wait: a thread still writes to the client's memory
	short     bool // the arena is full until pages are reclaimed: the command has to run again
}

// A besideDevice is the device of a command that runs in the session's goroutine.
type besideDevice struct{ *session }

var (
	_ uverbs.Device = (*loopDevice)(nil)
	_ uverbs.Device = besideDevice{}
)

// serveUverbs serves a device until the client closes it.
func (s *Server) serveUverbs(c *protocol.Conn, client ClientEnd, who credentials.Caller, d *listener, h protocol.Hello) error {
	p, err := s.clients.process(h.Token, who, d)
	if err != nil {
		return err
	}
	ses, err := s.openSession(client, p)
	if err != nil {
		return err
	}
	defer ses.end()

	w := welcome()
	w.ArenaSize, w.NumFDs, w.ID = ses.arena.Size(), 2, uint32(ses.id)
	bell, _ := ses.doorbell.(*os.File)
	if err := client.Welcome(&w, ses.arena.File(), bell); err != nil {
		return nil
	}
	s.log.Debug("device opened", "nic", p.nic.Name, "session", ses.id, "pid", p.Pid, "program", p.Program)
	s.opened(d, p, true)
	s.tracing.mark(p, ses.id, protocol.TraceOpen)
	r := s.newRequests(c, client, ses, d, wantsMail(h, who.Account))
	if r == nil {
		s.opened(d, p, false)
		return nil
	}
	p.mu.Lock()
	ses.requests = r
	p.mu.Unlock()
	ses.converse(d)
	return nil
}

// converse serves the session's requests until it ends.
func (ses *session) converse(d *listener) {
	s, p := ses.srv, ses.proc
	defer s.opened(d, p, false)
	ses.requests.serve()
	s.tracing.mark(p, ses.id, protocol.TraceClose)
	s.log.Debug("device closed", "nic", p.nic.Name, "session", ses.id, "pid", p.Pid, "program", p.Program, "commands", ses.commands.Load())
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

// openSession makes a session with its arena, doorbell and NIC objects. After an error it leaves
// nothing behind.
func (s *Server) openSession(client ClientEnd, p *process) (_ *session, err error) {
	ses := &session{srv: s, nic: p.nic, proc: p, client: client, id: p.listener.ids.Add(1), opened: time.Now()}
	ses.loopDev.session = ses
	if err := p.Account.Charge(nic.SessionBill); err != nil {
		s.admission.overdrawnBy(err, "opening the device", p.nic, &p.Caller)
		return nil, refusal(protocol.Errno(err, syscall.ENOMEM), "%v", err)
	}
	ses.account = p.Account.Hold() // the process may end before the session
	defer func() {
		if err != nil {
			ses.end()
			if ses.arena == nil && client.Vouched() {
				return // a virtual machine can cause this error again and again: package vm logs it
			}
			s.log.Error("cannot open the device for a program", "pid", p.Pid, "program", p.Program, "error", err)
		}
	}()
	if ses.arena, ses.doorbell, err = client.OpenQueues(p.Account); err != nil {
		return nil, refusal(protocol.Errno(err, syscall.ENOMEM), "%v", err)
	}
	ses.arena.SetAccount(p.Account)
	err = syscall.EIO
	if perr := s.loop.Do(func() {
		ses.dev, err = ses.nic.Device.Open(nic.SessionOptions{Arena: ses.arena, Space: p.space, Pid: p.Pid, UID: p.UID, User: p.Share(), Program: p.Program, Account: p.Account})
		if err == nil {
			err = s.loop.Attach(ses.dev, ses.doorbell)
		}
		if err == nil && p.faults != nil {
			s.loop.JoinFaults(ses.dev, p.faults)
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

// closeAtOnce is how many objects of a session the loop destroys before it serves others.
const closeAtOnce = 32

// end frees everything. The last Do before the arena is closed makes sure that the loop has finished
// the pass in which it may still use the memory of destroyed objects.
func (ses *session) end() {
	s := ses.srv
	if ses.proc.away.Load() {
		return // see forsake
	}
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

// mostRings is the largest number of rings that a command makes.
const mostRings = 2

// Do implements uverbs.Device: it calls f.
func (d *loopDevice) Do(f func(*nic.Session) error) error {
	ses := d.session
	err := error(syscall.EIO) // the answer of a device that is gone
	if ses.dev.Served() {
		ses.srv.loop.Bill(ses.nic.Device)
		err = f(ses.dev)
	}
	if d.short = err != nil && ses.arena.Short(); err != nil && !d.short {
		exceeded(ses.nic, err)
		ses.srv.admission.overdrawnBeside(err)
	}
	return err
}

// Do implements uverbs.Device: it runs f on the loop and waits for it. A panic of f panics here, and
// so ends the session.
func (d besideDevice) Do(f func(*nic.Session) error) error {
	ses := d.session
	err := error(syscall.EIO) // the answer of a device that is gone
	run := func() {
		if ses.dev.Served() { // else it faulted, and is closed
			ses.srv.loop.Bill(ses.nic.Device)
			err = f(ses.dev)
		}
	}
	p := ses.srv.loop.Do(run)
	// Each time there may be space for one more ring, and a queue pair has two.
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
	ses.srv.admission.overdrawnBy(err, "", ses.nic, &ses.proc.Caller)
	return err
}

// exceeded counts a request that a tenant's quota refused. It runs on the loop.
func exceeded(n *registry.NIC, err error) {
	var e *budget.Error
	if errors.As(err, &e) && e.Tenant != "" {
		n.Device.Exceeded()
	}
}

// exceededBeside calls exceeded from the session's goroutine.
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
	d := ses.freshLoopDevice()
	answer, _ := ses.command(d, req, reply)
	if d.short {
		return nil, func() ([]byte, []uverbs.Handle) {
			reply.Reset(answer[:0])
			return ses.beside(req, reply)
		}
	}
	unsettled := d.unsettled
	if !unsettled && !ses.arena.Due() {
		return answer, nil
	}
	return nil, func() ([]byte, []uverbs.Handle) {
		if unsettled {
			besideDevice{ses}.Settle()
		}
		ses.reclaim()
		return answer, nil
	}
}

// freshLoopDevice returns the device for a command on the loop, without results of an earlier one.
func (ses *session) freshLoopDevice() *loopDevice {
	ses.loopDev.unsettled, ses.loopDev.short = false, false
	return &ses.loopDev
}

// early implements handler: it runs the sure commands in b, and ignores all others.
func (ses *session) early(b []byte) (n int) {
	d := ses.freshLoopDevice()
	for command, rest, ok := uverbs.MaybeSure(b); ok; command, rest, ok = uverbs.MaybeSure(rest) {
		ses.commands.Add(1)
		n++
		if nic.Sure(command) {
			ses.verbs.Run(d, command, false)
		}
	}
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

// reclaim returns the pages of destroyed rings to the system.
func (ses *session) reclaim() {
	if ses.arena.Due() {
		ses.arena.Reclaim()
	}
}

// nonsense implements handler.
func (ses *session) nonsense(err error) {
	ses.srv.log.Warn("a client sent nonsense, its device is closed", "pid", ses.proc.Pid, "program", ses.proc.Program, "error", err)
}

// handle runs one request beside the loop and returns the reply and the handles that go with it.
func (ses *session) handle(req *protocol.Request, reply *protocol.ReplyBuilder) ([]byte, []uverbs.Handle) {
	switch req.Op {
	case protocol.OpCommand:
		return ses.command(besideDevice{ses}, req, reply)
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

// command runs a command with d: on the loop or beside it.
func (ses *session) command(d uverbs.Device, req *protocol.Request, reply *protocol.ReplyBuilder) ([]byte, []uverbs.Handle) {
	ses.commands.Add(1)
	ses.refused, ses.mapped = "", ""
	traced := ses.srv.desk.Trace.Wants(&ses.proc.Caller)
	var start time.Time
	if traced {
		start = time.Now()
	}
	ses.extents = req.Extents
	c := ses.verbs.Run(d, req.Command, traced)
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

// finish ends a reply. It panics if the reply does not fit, which is a bug of the daemon and ends the
// session.
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
func (ses *session) OpenEvents() (nic.EventSink, uverbs.Handle, error) {
	return ses.client.OpenEvents()
}

// Settle implements uverbs.Device: the answer waits instead.
func (d *loopDevice) Settle() { d.unsettled = d.proc.space.Writing() }

// Settle implements uverbs.Device.
func (d besideDevice) Settle() { d.proc.space.Quiesce(time.Duration(d.nic.Device.Patience())) }

// room returns an error if the process may not register length bytes more. Only REG_MR counts
// refusals: the client sends it in any case.
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
	extents, number, done, err := ses.client.Extents(ses.extents)
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
		region.OnRelease(number, done)
	default:
		done()
	}
	ses.exceededBeside(err)
	ses.srv.admission.overdrawnBy(err, fmt.Sprintf("registration of %d bytes", length), ses.nic, &ses.proc.Caller)
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
