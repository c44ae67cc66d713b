package engine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// A handlerSet holds the client connections that the loop reads itself. The loop reads, runs
// and answers a request without another goroutine, so a request costs at most the wake-up of the
// loop. Slow work does not belong on the loop: the connection is paused, and another goroutine finishes
// the request.
//
//	          readable           Serve
//	watched ────────────▶ ready ───────▶ watched, or, if Serve paused it,
//	   ▲                                 paused
//	   └───────────── Resume ──────────────┘
//
// Connections have an epoll descriptor of their own, which the loop's poller watches. The loop asks it
// which of them are ready before it looks for doorbells (wakeRung). Work that a program posted
// before a request is therefore done before it. The kernel's list of ready connections is a round
// robin: after one request a connection is at the end of that list.
//
// A connection may have a mailbox besides, see mailboxes.go.
//
// Requests are charged to their NIC like turns. While others want turns, requests of a tenant
// wait that has used more than its share: commands give it no more of the loop than messages.
type handlerSet struct {
	epfd   int
	of     map[int32]watched
	events [commandsPerPass]unix.EpollEvent
	ready  [2 * commandsPerPass]readyHandler
	at, n  int     // ready[at:n] are still to be served
	told   bool    // the poller reported epfd as readable
	looked ib.Time // when epfd was asked last
	last   ib.Time // when a request was served last

	boxes mailboxes

	serving Handler
	serve   func() // calls Serve of serving
}

// watched is the handler of a connection, and the NIC that its requests are for.
type watched struct {
	Handler
	nic *nic.NIC
}

// A readyHandler is the handler of a connection with a request: on it, or in its mailbox.
type readyHandler struct {
	fd      int32 // -1: the connection is gone
	handler Handler
	boxed   bool // the request is in the mailbox
	shut    bool // the mailbox is shut: the next look does not find the request again
}

// A Handler serves the requests of a client's connection. The loop calls its methods.
type Handler = interface {
	// Serve reads a request, if there is one, runs it and answers it. It must not wait.
	Serve()
	// Fail reports that Serve has panicked; see panics.go.
	Fail(err error)
}

const (
	// requestsHot is how long after a request the loop looks for the next one in every pass: a
	// program that makes one command usually makes another.
	requestsHot = ib.Time(100_000)
	// requestsEvery is the shortest time between two such looks.
	requestsEvery = ib.Time(1_000)
)

func (h *handlerSet) open(p *poller) (err error) {
	h.of = make(map[int32]watched)
	h.serve = func() { h.serving.Serve() }
	if h.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("engine: epoll: %w", err)
	}
	if err = p.watchSocket(h.epfd); err != nil {
		unix.Close(h.epfd)
		return fmt.Errorf("engine: epoll: %w", err)
	}
	return nil
}

func (h *handlerSet) close() { unix.Close(h.epfd) }

// Watch makes the loop serve the connection fd of a client of NIC n. It runs on the loop.
func (e *Engine) Watch(fd int, n *nic.NIC, h Handler) error {
	e.first.handlers.forget(fd)
	if err := e.Resume(fd); err != nil {
		return err
	}
	e.first.handlers.of[int32(fd)] = watched{h, n}
	e.first.handlers.last = e.first.clock.now
	return nil
}

// Unwatch undoes Watch, also for a paused connection. It runs on the loop, before the descriptor is
// closed.
func (e *Engine) Unwatch(fd int) {
	e.Pause(fd)
	e.Leave(fd)
	e.first.handlers.forget(fd)
	delete(e.first.handlers.of, int32(fd))
}

// forget drops a ready connection: another connection may get the same descriptor number.
func (h *handlerSet) forget(fd int) {
	for i := h.at; i < h.n; i++ {
		if h.ready[i].fd == int32(fd) {
			h.ready[i].fd = -1
		}
	}
}

// Pause stops the loop from reading a connection until Resume. Any goroutine may call either.
func (e *Engine) Pause(fd int) { unix.EpollCtl(e.first.handlers.epfd, unix.EPOLL_CTL_DEL, fd, nil) }

// Resume undoes Pause.
func (e *Engine) Resume(fd int) error {
	err := unix.EpollCtl(e.first.handlers.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	if err != nil {
		return fmt.Errorf("engine: epoll: %w", err)
	}
	return nil
}

// poll reports whether there are requests.
func (h *handlerSet) poll(now ib.Time) bool {
	if h.at < h.n {
		return true
	}
	h.at, h.n = 0, 0
	if len(h.boxes.open) > 0 {
		h.pollMailboxes(now)
	}
	if !h.told && (now-h.last > requestsHot || now-h.looked < requestsEvery) {
		return h.n > 0
	}
	h.told, h.looked = false, now
	n, err := epollNap(h.epfd, h.events[:], 0)
	if err != nil {
		n = 0
	}
	for _, ev := range h.events[:n] {
		if w := h.of[ev.Fd]; w.Handler != nil {
			h.ready[h.n] = readyHandler{fd: ev.Fd, handler: w.Handler}
			h.n++
		}
	}
	return h.n > 0
}

// serveHandlers serves one request of each ready connection, for at most commandTime. The next pass begins
// with the rest.
func (e *loop) serveHandlers() {
	h := &e.handlers
	for begin := e.clock.now; h.at < h.n; {
		r := h.ready[h.at]
		h.ready[h.at] = readyHandler{}
		if h.at++; r.fd < 0 {
			continue
		}
		if !r.shut && e.sched.alone == nil && e.sched.mustWait(e.adapters.of[h.of[r.fd].nic]) {
			continue // the next look finds the request again
		}
		h.serving = r.handler
		if err := e.command(h.serve); err != nil {
			h.serving.Fail(err)
		}
		h.serving = nil
		if e.clock.read(); !r.boxed {
			h.last = e.clock.now
		}
		if e.clock.now-begin >= commandTime {
			return
		}
	}
}
