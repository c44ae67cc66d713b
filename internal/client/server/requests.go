package server

import (
	"errors"
	"io"
	"sync/atomic"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/uverbs"
	"vrdma.dev/vrdma/internal/device/nic"
)

// requests serves the connection of a session. The loop reads requests, runs most of them and
// answers (engine/handlers.go). Slow parts run in the session's goroutine, which sleeps otherwise. The
// loop does not read the connection meanwhile, so the commands of one session never overlap.
//
//	loop:       read ─▶ run ─▶ answer ─▶ read …
//	                └─ takes long, or the client does not read answers ─▶ hand over
//	goroutine:                           rest of it ─▶ answer ─▶ requests that follow soon ─▶ give back
//
// A client that supports it gets a mailbox after some commands (mailbox.go). Requests there run in
// the same way.
type requests struct {
	srv    *Server
	conn   *protocol.Conn
	client ClientEnd
	fd     int
	of     executor
	nic    *nic.NIC

	commands *budget.Pace  // limits requests per second; nil: no limit
	gone     chan struct{} // closed when the NIC is removed

	mail mailbox

	handed chan errand // holds at most one
	// What follows belongs to the goroutine while busy is set, else to the loop.
	busy  atomic.Bool
	ended atomic.Bool // serve has returned, perhaps with busy set
	req   protocol.Request
	reply protocol.ReplyBuilder
	out   []byte
}

// An executor runs the requests of a session.
type executor interface {
	// onLoop runs a request on the loop. If a part of it must not run there it returns that
	// part as rest, for the session's goroutine.
	onLoop(req *protocol.Request, reply *protocol.ReplyBuilder) (answer []byte, rest rest)
	// beside runs a request in the session's goroutine.
	beside(req *protocol.Request, reply *protocol.ReplyBuilder) (answer []byte, handles []uverbs.Handle)
	// early runs commands on the loop that the client does not wait for, before the next request.
	// It returns their number.
	early(commands []byte) int
	// lasts reports whether requests of this kind take long.
	lasts(req *protocol.Request) bool
	// nonsense reports that a client sent a malformed request.
	nonsense(err error)
}

// A rest is the part of a request that runs beside the loop; it returns the answer.
type rest func() (answer []byte, handles []uverbs.Handle)

// An errand is work that the loop hands over to a session's goroutine.
type errand struct {
	rest rest
	buf  *[]byte // the request
	err  error   // why the connection ends; nil: it does not
}

// newRequests makes the requests of a session or channel on c; nil: c has ended.
func (s *Server) newRequests(c *protocol.Conn, client ClientEnd, x executor, d *listener, m mailbox) *requests {
	fd, err := c.Detach()
	if err != nil {
		return nil
	}
	return &requests{
		srv: s, conn: c, client: client, fd: fd, of: x, nic: d.NIC.Device, commands: d.Commands, gone: d.gone, mail: m,
		handed: make(chan errand, 1), out: make([]byte, 0, 1024),
	}
}

// serve serves the connection until it ends. A panic of a command panics here. It does not close the
// connection: a client that waits for the end expects that the daemon has freed everything by then,
// so Server.serve closes it after the session.
func (r *requests) serve() {
	defer r.ended.Store(true)
	s, fd := r.srv, r.fd
	var err error
	if perr := s.loop.Do(func() { err = s.loop.Watch(fd, r.nic, r) }); perr != nil || err != nil {
		return
	}
	defer r.closeMail()
	defer s.loop.Do(func() {
		s.loop.Unwatch(fd)
		r.lend(nil)
	})
	for {
		var e errand
		s.gate.Outside(func() { e = <-r.handed })
		if e.err == io.EOF {
			return
		}
		if e.err != nil {
			panic(e.err)
		}
		lasts := r.of.lasts(&r.req)
		if !r.answer(e.buf, e.rest) || lasts && !r.keep() {
			return
		}
		r.busy.Store(false)
		if s.loop.Resume(fd) != nil {
			return
		}
	}
}

// answer sends what run returns for the request in buf. It reports whether the connection is still
// usable.
func (r *requests) answer(buf *[]byte, run rest) bool {
	answer, handles := run()
	err := r.client.Send(answer, handles)
	for _, h := range handles {
		h.Close()
	}
	buffers.Put(buf)
	r.trim()
	return err == nil
}

// due is how long a request has to wait because of the rate limit.
func (r *requests) due() time.Duration {
	if r.commands == nil {
		return 0
	}
	return r.commands.Wait(time.Now())
}

// pause delays a request that exceeds the rate limit of its tenant.
func (r *requests) pause(wait time.Duration) {
	if wait <= 0 {
		return
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.gone:
	case <-r.srv.quit:
	}
}

const (
	// keepFor is how long a goroutine keeps the connection after a slow request. Such requests
	// come in rows, when a program registers its buffers, and each hand-over costs a wake-up.
	keepFor = 2 * time.Millisecond
	// mostKeep is how many goroutines may wait at a time: each blocks a thread.
	mostKeep = 4
)

// keep serves requests that follow soon after a slow one. It reports whether the connection is still
// usable.
func (r *requests) keep() bool {
	for until := time.Now().Add(keepFor); r.await(until); {
		buf := buffers.Get().(*[]byte)
		n, err := r.conn.TryRead(*buf)
		if err == nil {
			if err = r.req.Parse((*buf)[:n]); err != nil {
				r.of.nonsense(err)
			}
		}
		if err != nil {
			buffers.Put(buf)
			if err == syscall.EAGAIN {
				continue
			}
			return false
		}
		r.pause(r.due())
		if r.of.lasts(&r.req) {
			until = time.Now().Add(keepFor)
		}
		r.reply.Reset(r.out)
		if !r.answer(buf, func() ([]byte, []uverbs.Handle) { return r.of.beside(&r.req, &r.reply) }) {
			return false
		}
	}
	return true
}

// await waits for the next request, and reports whether there is one.
func (r *requests) await(until time.Time) bool {
	defer r.srv.keeping.Add(-1)
	return r.srv.keeping.Add(1) <= mostKeep && !r.srv.gate.Closing() && r.conn.Await(time.Until(until))
}

// Serve implements engine.Handler.
func (r *requests) Serve() {
	if r.busy.Load() || r.srv.paused {
		return
	}
	buf := r.srv.scratch()
	n, err := r.conn.TryRead(*buf)
	switch err {
	case nil:
		r.run(buf, n)
	case syscall.EAGAIN:
	default:
		r.refuse(err)
	}
}

// run runs the request in the first n bytes of buf, and answers it.
func (r *requests) run(buf *[]byte, n int) {
	r.early()
	if err := r.req.Parse((*buf)[:n]); err != nil {
		r.refuse(err)
		return
	}
	r.reply.Reset(r.out)
	if wait := r.due(); wait > 0 {
		r.srv.spare = nil
		r.hand(errand{buf: buf, rest: func() ([]byte, []uverbs.Handle) {
			r.pause(wait)
			return r.of.beside(&r.req, &r.reply)
		}})
		return
	}
	answer, rest := r.of.onLoop(&r.req, &r.reply)
	if rest == nil {
		rest = r.offer(answer)
	}
	if rest == nil {
		if r.drop(answer) {
			r.attend()
			r.trim()
			return
		}
		switch r.conn.TryWrite(answer) {
		case nil:
			r.attend()
			r.trim()
			return
		case syscall.EAGAIN:
			rest = func() ([]byte, []uverbs.Handle) { return answer, nil }
		default:
			r.hand(errand{err: io.EOF})
			return
		}
	}
	r.srv.spare = nil
	r.hand(errand{rest: rest, buf: buf})
}

// refuse ends the connection after its end or a malformed request.
func (r *requests) refuse(err error) {
	r.hand(errand{err: io.EOF})
	if errors.Is(err, protocol.ErrMalformed) {
		go r.of.nonsense(err) // it writes to the log, which may block
	}
}

// trim frees the storage of a large request.
func (r *requests) trim() {
	if cap(r.req.Extents) > 1024 {
		r.req.Extents = nil
	}
}

// Fail implements engine.Handler.
func (r *requests) Fail(err error) {
	r.srv.spare = nil // the panicked request may still refer to it
	r.hand(errand{err: err})
}

// hand gives the connection and an errand to the goroutine.
func (r *requests) hand(e errand) {
	r.busy.Store(true)
	r.shutMail()
	r.srv.loop.Pause(r.fd)
	select {
	case r.handed <- e:
	default: // a request panicked after the hand-over: the goroutine has the connection
	}
}

// scratch returns the buffer into which the loop reads requests.
func (s *Server) scratch() *[]byte {
	if s.spare == nil {
		s.spare = buffers.Get().(*[]byte)
	}
	return s.spare
}
