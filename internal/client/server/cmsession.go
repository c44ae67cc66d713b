package server

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/ucma"
	"vrdma.dev/vrdma/internal/client/uverbs"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/registry"
)

// A cmSession is one open of the rdma_cm device: an event channel. Like a session, it ends
// with its connection.
type cmSession struct {
	srv  *Server
	nic  *registry.NIC
	proc *process
	line Line
	id   uint64
	ch   *rdmacm.Channel // touched on the loop only
	// For a client that is told ahead what it will ask, likewise; page is nil for others, and
	// as long as it has no mailbox.
	page  *protocol.Mail
	seer  ucma.Seer
	shelf protocol.ReplyBuilder // for an event on the shelf
	out   []byte                // its storage

	call   ucma.Call    // the request under way, or the last one
	looped bool         // it is being run on the loop
	aside  func() error // what the session's goroutine has to do of it; nil: nothing
}

// maxChannels is how many channels a process may have: a program with synchronous
// identifiers (rsockets) has one a connection.
const maxChannels = 16384

// serveRDMACM lives as long as the channel.
func (s *Server) serveRDMACM(c *protocol.Conn, l Line, who credentials.Caller, d *listener, h protocol.Hello) error {
	if d.NIC.Manager == nil {
		return refusal(syscall.EOPNOTSUPP, "this daemon has no connection manager")
	}
	p, err := s.clients.process(h.Token, who, d)
	if err != nil {
		return err
	}
	ses := &cmSession{srv: s, nic: p.nic, proc: p, line: l, id: p.listener.ids.Add(1)}
	var end uverbs.Handle
	open := func() (signal rdmacm.Signal, err error) {
		signal, end, err = ses.line.OpenSignal()
		return signal, err
	}
	err = syscall.EIO
	if perr := s.loop.Do(func() { ses.ch, err = p.cm.NewChannel(open) }); perr != nil {
		err = perr
	}
	if err != nil {
		return refusal(protocol.Errno(err, syscall.EMFILE), "the daemon cannot open an event channel: %v", err)
	}
	defer ses.end()
	if err := p.adoptChannel(ses); err != nil {
		end.Close()
		return err
	}
	w := welcome()
	w.NumFDs, w.ID = 1, ses.ch.Name
	w.RdevMajor, w.RdevMinor = abi.CMMajor, abi.CMMinor
	err = ses.line.Send(w.Append(nil), []uverbs.Handle{end})
	end.Close()
	if err != nil {
		return nil
	}
	ses.srv.tracing.mark(ses.proc, ses.id, "rdma_cm "+protocol.TraceOpen)
	s.serveRequests(c, l, ses, d, wantsMail(h, who.Account))
	ses.srv.tracing.mark(ses.proc, ses.id, "rdma_cm "+protocol.TraceClose)
	return nil
}

func (ses *cmSession) end() {
	ses.proc.dropChannel(ses)
	if err := ses.srv.loop.Do(ses.ch.Close); err != nil {
		ses.srv.log.Error("panic while closing an event channel", "nic", ses.nic.Name, "session", ses.id, "error", err)
	}
}

// onLoop implements handler.
func (ses *cmSession) onLoop(req *protocol.Request, reply *protocol.ReplyBuilder) ([]byte, rest) {
	if req.Op != protocol.OpCommand {
		return finish(reply, syscall.EINVAL), nil
	}
	if ses.srv.desk.Trace.Wants(&ses.proc.Caller) {
		return nil, func() ([]byte, []uverbs.Handle) { return ses.beside(req, reply) }
	}
	ses.looped, ses.aside = true, nil
	c := &ses.call
	c.Run(ses, req.Command, false)
	if ses.page != nil && c.Told != nil {
		ses.seer.Foresee(c.Told, reply)
	}
	ses.looped = false
	if ses.aside != nil {
		return nil, func() ([]byte, []uverbs.Handle) {
			c.End(ses.aside())
			return ses.answer(c, reply), nil
		}
	}
	return ses.answer(c, reply), nil
}

// early implements handler: there are no sure commands here.
func (ses *cmSession) early([]byte) int { return 0 }

// foresee implements farseer.
func (ses *cmSession) foresee(page *protocol.Mail) {
	if page == ses.page {
		return
	}
	if ses.page = page; page == nil {
		ses.ch.Stock(nil, 0, nil)
		ses.ch.Foresee(nil)
		return
	}
	ses.seer = ucma.Seer{Channel: ses.ch, NodeGUID: ses.NodeGUID(), Revision: page.Revision}
	ses.ch.Foresee(page)
	if !ses.srv.desk.Trace.Wants(&ses.proc.Caller) {
		ses.ch.Stock(page, protocol.ShelfSlots, ses.handOut)
	}
}

// handOut is the reply that hands out an event which lies on the shelf.
func (ses *cmSession) handOut(e *abi.CMEventResp) []byte {
	ses.shelf.Reset(ses.out)
	ses.seer.HandOut(e, &ses.shelf)
	ses.out = finish(&ses.shelf, 0)
	return ses.out
}

// revoke takes back what the client was told ahead, and has it ask for every event from now on:
// somebody wants to see that. It runs on the loop.
func (ses *cmSession) revoke() {
	if ses.page != nil {
		ses.page.RevokeAll()
		ses.ch.Stock(nil, 0, nil)
	}
}

// beside implements handler.
func (ses *cmSession) beside(req *protocol.Request, reply *protocol.ReplyBuilder) ([]byte, []uverbs.Handle) {
	if req.Op != protocol.OpCommand {
		return finish(reply, syscall.EINVAL), nil
	}
	return finish(reply, ses.command(req.Command, reply)), nil
}

// lasts implements handler: its commands are brief, and what is not is rare.
func (ses *cmSession) lasts(*protocol.Request) bool { return false }

// answer is the reply to a command.
func (ses *cmSession) answer(c *ucma.Call, reply *protocol.ReplyBuilder) []byte {
	c.Answer(reply)
	if c.Refused() {
		ses.srv.desk.Refused.Count(c.Name())
	}
	return finish(reply, c.Errno)
}

// nonsense implements handler.
func (ses *cmSession) nonsense(err error) {
	ses.srv.log.Warn("a client sent nonsense, its event channel is closed", "pid", ses.proc.Pid, "program", ses.proc.Program, "error", err)
}

// command runs one command.
func (ses *cmSession) command(b []byte, reply *protocol.ReplyBuilder) syscall.Errno {
	start := time.Now()
	traced := ses.srv.desk.Trace.Wants(&ses.proc.Caller)
	c := &ses.call
	c.Run(ses, b, traced)
	c.Answer(reply)
	if c.Refused() {
		ses.srv.desk.Refused.Count(c.Name())
	}
	if traced && c.Errno != syscall.EAGAIN {
		r := record(ses.proc, ses.id, c.Name(), start)
		diag.Outcome(&r, c.Errno, c.Refused(), c.Args, c.Result)
		ses.srv.desk.Trace.Publish(&ses.proc.Caller, r)
	}
	return c.Errno
}

// Do implements ucma.Channel: it runs f on the loop. It panics where f panicked, and so ends the session.
func (ses *cmSession) Do(f func(*rdmacm.Channel) error) error {
	if ses.looped {
		ses.srv.loop.Bill(ses.nic.Device)
		err := f(ses.ch)
		if err != nil {
			exceeded(ses.nic, err)
			ses.srv.admission.overdrawnBeside(err)
		}
		return err
	}
	err := error(syscall.EIO) // what a device that is gone answers
	run := func() {
		ses.srv.loop.Bill(ses.nic.Device)
		err = f(ses.ch)
		exceeded(ses.nic, err)
	}
	if p := ses.srv.loop.Do(run); p != nil && !errors.Is(p, os.ErrClosed) {
		panic(p)
	}
	ses.srv.admission.overdrawn(err)
	return err
}

// Aside implements ucma.Channel.
func (ses *cmSession) Aside(f func() error) error {
	if !ses.looped {
		return f()
	}
	ses.aside = f
	return nil
}

// OnLoop implements ucma.Channel.
func (ses *cmSession) OnLoop(f func()) { ses.srv.loop.Do(f) }

// CMA implements ucma.Channel.
func (ses *cmSession) CMA() *rdmacm.CMA { return ses.nic.Manager }

// NodeGUID implements ucma.Channel.
func (ses *cmSession) NodeGUID() uint64 { return ses.nic.Device.NodeGUID }

// Route implements ucma.Channel.
func (ses *cmSession) Route(from, to netip.Addr) (netip.Addr, error) {
	return ses.nic.Routes.From(from, to)
}

// Reach implements ucma.Channel.
func (ses *cmSession) Reach(from, to netip.Addr, timeout time.Duration) error {
	return ses.nic.Routes.Reach(from, to, timeout)
}
