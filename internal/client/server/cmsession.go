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
	srv    *Server
	nic    *registry.NIC
	proc   *process
	client ClientEnd
	id     uint64
	ch     *rdmacm.Channel // touched on the loop only
	// For a client that gets answers ahead of its questions, also on the loop only. page is nil for
	// others, and as long as the client has no mailbox.
	page  *protocol.Mail
	seer  ucma.Seer
	shelf protocol.ReplyBuilder // for an event on the shelf
	out   []byte                // its storage

	requests *requests // set before the loop serves the channel, with proc.mu held

	call     ucma.Call   // the request under way, or the last one
	loopChan loopChannel // for commands on the loop; here so that running one does not allocate
}

// A command of a channel runs on the loop or beside it, in the session's goroutine, like the commands
// of a session (loopDevice, besideDevice). The ucma.Channel that it is given makes the difference.

// A loopChannel is the channel of a command that runs on the loop.
type loopChannel struct {
	*cmSession
	aside func(ucma.Channel) error // the part that the session's goroutine has to run; nil: none
}

// A besideChannel is the channel of a command that runs in the session's goroutine.
type besideChannel struct{ *cmSession }

var (
	_ ucma.Channel = (*loopChannel)(nil)
	_ ucma.Channel = besideChannel{}
)

// maxChannels is how many channels a process may have: a program with synchronous identifiers
// (rsockets) has one for each connection.
const maxChannels = 16384

// serveRDMACM serves an event channel until the client closes it.
func (s *Server) serveRDMACM(c *protocol.Conn, client ClientEnd, who credentials.Caller, d *listener, h protocol.Hello) error {
	if d.NIC.Manager == nil {
		return refusal(syscall.EOPNOTSUPP, "this daemon has no connection manager")
	}
	p, err := s.clients.process(h.Token, who, d)
	if err != nil {
		return err
	}
	ses := &cmSession{srv: s, nic: p.nic, proc: p, client: client, id: p.listener.ids.Add(1)}
	ses.loopChan.cmSession = ses
	var end uverbs.Handle
	open := func() (signal rdmacm.Signal, err error) {
		signal, end, err = ses.client.OpenSignal()
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
	err = ses.client.Send(w.Append(nil), []uverbs.Handle{end})
	end.Close()
	if err != nil {
		return nil
	}
	ses.srv.tracing.mark(ses.proc, ses.id, "rdma_cm "+protocol.TraceOpen)
	if r := s.newRequests(c, client, ses, d, wantsMail(h, who.Account)); r != nil {
		p.mu.Lock()
		ses.requests = r
		p.mu.Unlock()
		ses.converse()
	}
	return nil
}

// converse serves the channel's requests until it ends.
func (ses *cmSession) converse() {
	ses.requests.serve()
	ses.srv.tracing.mark(ses.proc, ses.id, "rdma_cm "+protocol.TraceClose)
}

func (ses *cmSession) end() {
	if ses.proc.away.Load() {
		return // see forsake
	}
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
	ses.loopChan.aside = nil
	c := &ses.call
	c.Run(&ses.loopChan, req.Command, false)
	if ses.page != nil && c.Told != nil {
		ses.seer.Foresee(c.Told, reply)
	}
	if aside := ses.loopChan.aside; aside != nil {
		return nil, func() ([]byte, []uverbs.Handle) {
			c.End(aside(besideChannel{ses}))
			return ses.answer(c, reply), nil
		}
	}
	return ses.answer(c, reply), nil
}

// early implements handler: rdma_cm has no sure commands.
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

// handOut returns the reply that hands out an event on the shelf.
func (ses *cmSession) handOut(e *abi.CMEventResp) []byte {
	ses.shelf.Reset(ses.out)
	ses.seer.HandOut(e, &ses.shelf)
	ses.out = finish(&ses.shelf, 0)
	return ses.out
}

// revoke takes back the answers ahead, so that the client asks for every event from now on: a trace
// shows commands. It runs on the loop.
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

// lasts implements handler: nearly all rdma_cm commands are brief.
func (ses *cmSession) lasts(*protocol.Request) bool { return false }

// answer returns the reply to a command.
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

// command runs one command beside the loop.
func (ses *cmSession) command(b []byte, reply *protocol.ReplyBuilder) syscall.Errno {
	start := time.Now()
	traced := ses.srv.desk.Trace.Wants(&ses.proc.Caller)
	c := &ses.call
	c.Run(besideChannel{ses}, b, traced)
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

// Do implements ucma.Channel: it calls f.
func (l *loopChannel) Do(f func(*rdmacm.Channel) error) error {
	l.srv.loop.Bill(l.nic.Device)
	err := f(l.ch)
	if err != nil {
		exceeded(l.nic, err)
		l.srv.admission.overdrawnBeside(err)
	}
	return err
}

// Do implements ucma.Channel: it runs f on the loop and waits for it. A panic of f panics here, and so
// ends the session.
func (b besideChannel) Do(f func(*rdmacm.Channel) error) error {
	ses := b.cmSession
	err := error(syscall.EIO) // the answer of a device that is gone
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

// Aside implements ucma.Channel: it keeps f for the session's goroutine.
func (l *loopChannel) Aside(f func(ucma.Channel) error) error {
	l.aside = f
	return nil
}

// Aside implements ucma.Channel: it calls f.
func (b besideChannel) Aside(f func(ucma.Channel) error) error { return f(b) }

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
