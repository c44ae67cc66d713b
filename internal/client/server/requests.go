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
)

// Requests are what comes on the connection of a session. The loop reads them, runs most of
// them and answers (engine/lines.go). What could hold the loop up is left to the session's
// goroutine, which sleeps otherwise; the loop leaves the connection alone meanwhile, so the
// commands of one session never overlap.
//
//	loop:       read ─▶ run ─▶ answer ─▶ read …
//	                └─ takes long, or the client does not read answers ─▶ hand over
//	goroutine:                                 rest of it ─▶ answer ─▶ what comes soon ─▶ give back
//
// A client that can use one, and has made some commands, is given a mailbox (mailbox.go). What
// comes there is run in the same way.
type requests struct {
	srv  *Server
	conn *protocol.Conn
	line Line
	fd   int
	of   handler

	commands *budget.Pace  // how many there may be a second; nil: no limit
	gone     chan struct{} // closed when the NIC goes

	mail mailbox

	handed chan errand // holds one at most
	// What follows belongs to whoever has the connection: the goroutine while busy is set.
	busy  atomic.Bool
	req   protocol.Request
	reply protocol.ReplyBuilder
	out   []byte
}

// A handler runs the requests of a session.
type handler interface {
	// onLoop runs a request on the loop. Where something of it must not be done there,
	// rest does that: it is called in the session's goroutine.
	onLoop(req *protocol.Request, reply *protocol.ReplyBuilder) (answer []byte, rest rest)
	// beside runs a request in the session's goroutine.
	beside(req *protocol.Request, reply *protocol.ReplyBuilder) (answer []byte, handles []uverbs.Handle)
	// early runs commands that the client does not wait for, on the loop, before what follows, and
	// returns how many there were.
	early(commands []byte) int
	// lasts reports whether a request is of a kind that takes long.
	lasts(req *protocol.Request) bool
	// nonsense says that a client sent something that is no request.
	nonsense(err error)
}

// A rest is what is left to do of a request; it returns the answer.
type rest func() (answer []byte, handles []uverbs.Handle)

// An errand is what the loop hands over to a session's goroutine.
type errand struct {
	rest rest
	buf  *[]byte // that the request lies in
	err  error   // there is nothing more to do: why
}

// serveRequests serves what comes on c until it ends. It panics where a command panicked. The
// client does not see the end yet: who waits for it wants to know that the daemon has let go
// of everything, so it comes after the session's (Server.serve).
func (s *Server) serveRequests(c *protocol.Conn, l Line, h handler, d *listener, m mailbox) {
	fd, err := c.Detach()
	if err != nil {
		return
	}
	r := &requests{
		srv: s, conn: c, line: l, fd: fd, of: h, commands: d.Commands, gone: d.gone, mail: m,
		handed: make(chan errand, 1), out: make([]byte, 0, 1024),
	}
	if perr := s.loop.Do(func() { err = s.loop.Watch(fd, d.NIC.Device, r) }); perr != nil || err != nil {
		return
	}
	defer r.closeMail()
	defer s.loop.Do(func() {
		s.loop.Unwatch(fd)
		r.lend(nil)
	})
	for e := range r.handed {
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

// answer answers the request in buf with what run returns. It reports whether the connection
// still stands.
func (r *requests) answer(buf *[]byte, run rest) bool {
	answer, handles := run()
	err := r.line.Send(answer, handles)
	for _, h := range handles {
		h.Close()
	}
	buffers.Put(buf)
	r.trim()
	return err == nil
}

// due is how long a request has to wait for its turn.
func (r *requests) due() time.Duration {
	if r.commands == nil {
		return 0
	}
	return r.commands.Wait(time.Now())
}

// pause holds a request up that came too soon after others of its tenant's.
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
	// keepFor is how long a goroutine keeps the connection after a request that took long.
	// Such requests come in rows, when a program registers its buffers, and each hand-over
	// is a wake-up.
	keepFor = 2 * time.Millisecond
	// mostKeep is how many may wait at a time: each has a thread of its own meanwhile.
	mostKeep = 4
)

// keep serves what comes soon after a request that took long. It reports whether the
// connection still stands.
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
	return r.srv.keeping.Add(1) <= mostKeep && r.conn.Await(time.Until(until))
}

// Serve implements engine.Line.
func (r *requests) Serve() {
	if r.busy.Load() {
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

// refuse ends the connection, on which nothing more comes, or what is no request.
func (r *requests) refuse(err error) {
	r.hand(errand{err: io.EOF})
	if errors.Is(err, protocol.ErrMalformed) {
		go r.of.nonsense(err) // it writes to the log, which may take its time
	}
}

// trim lets go of what a large request took.
func (r *requests) trim() {
	if cap(r.req.Extents) > 1024 {
		r.req.Extents = nil
	}
}

// Fail implements engine.Line.
func (r *requests) Fail(err error) {
	r.srv.spare = nil // somebody may hold on to it
	r.hand(errand{err: err})
}

// hand hands over to the goroutine.
func (r *requests) hand(e errand) {
	r.busy.Store(true)
	r.shutMail()
	r.srv.loop.Pause(r.fd)
	select {
	case r.handed <- e:
	default: // it panicked after it had handed over: the goroutine has the connection
	}
}

// scratch is the buffer that the loop reads requests into.
func (s *Server) scratch() *[]byte {
	if s.spare == nil {
		s.spare = buffers.Get().(*[]byte)
	}
	return s.spare
}
