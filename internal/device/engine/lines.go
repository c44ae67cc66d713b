package engine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// A lineSet holds the lines: connections of clients that the loop reads itself. A request is
// read, run and answered without a goroutine between, so it costs no wake-up but the loop's
// own, and none while the loop is awake. What takes long is not for the loop: the line is
// paused then, and another goroutine goes on with the request.
//
//	          readable           Serve
//	watched ────────────▶ ready ───────▶ watched, or, if Serve paused it,
//	   ▲                                 paused
//	   └───────────── Resume ──────────────┘
//
// They have an epoll of their own, which the loop's poller watches. It is asked first which
// lines are ready, and only then who has rung (wakeRung), so what a program posted before its
// request happens before it. The kernel's list of ready lines goes round, and a line has one
// request served before it is at the end of that list again.
//
// A line may have a box besides: shared memory in which a client that is awake leaves its
// requests, and needs no system call for that (boxes.go).
//
// Requests are charged to their NIC as turns are. While others want turns, the requests of a tenant
// that has had more than its share wait: it cannot have with commands what it would not have with
// messages.
type lineSet struct {
	epfd   int
	of     map[int32]line
	events [commandsPerPass]unix.EpollEvent
	ready  [2 * commandsPerPass]readyLine
	at, n  int     // ready[at:n] are not served yet
	told   bool    // the poller says that some are
	looked ib.Time // when the kernel was asked last
	last   ib.Time // when one was served last

	boxes boxes

	serving Line
	serve   func() // calls Serve of serving
}

// A line is a connection and the NIC that its requests are for.
type line struct {
	Line
	nic *nic.NIC
}

// A readyLine is one that has a request: in its box, or on its connection.
type readyLine struct {
	fd    int32 // -1: it is gone
	line  Line
	boxed bool
	shut  bool // its box is: it is not found again
}

// A Line is a client's connection. Its methods are called on the loop.
type Line = interface {
	// Serve reads a request, runs it and answers it. There may be none. It must not wait.
	Serve()
	// Fail says that Serve has panicked; see panics.go.
	Fail(err error)
}

const (
	// linesHot is how long the loop asks in every pass for the next command after one: a
	// program that makes one usually makes another.
	linesHot = ib.Time(100_000)
	// linesEvery is how often at most.
	linesEvery = ib.Time(1_000)
)

func (l *lineSet) open(p *poller) (err error) {
	l.of = make(map[int32]line)
	l.serve = func() { l.serving.Serve() }
	if l.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("engine: epoll: %w", err)
	}
	if err = p.watchSocket(l.epfd); err != nil {
		unix.Close(l.epfd)
		return fmt.Errorf("engine: epoll: %w", err)
	}
	return nil
}

func (l *lineSet) close() { unix.Close(l.epfd) }

// Watch has the loop serve the connection fd, of a client of NIC n. It runs on the loop.
func (e *Engine) Watch(fd int, n *nic.NIC, l Line) error {
	e.lines.forget(fd)
	if err := e.Resume(fd); err != nil {
		return err
	}
	e.lines.of[int32(fd)] = line{l, n}
	e.lines.last = e.now
	return nil
}

// Unwatch undoes Watch, also of a line that is paused. It runs on the loop, before the
// descriptor is closed.
func (e *Engine) Unwatch(fd int) {
	e.Pause(fd)
	e.Leave(fd)
	e.lines.forget(fd)
	delete(e.lines.of, int32(fd))
}

// forget takes fd out of those that wait to be served: under this number, another may come.
func (l *lineSet) forget(fd int) {
	for i := l.at; i < l.n; i++ {
		if l.ready[i].fd == int32(fd) {
			l.ready[i].fd = -1
		}
	}
}

// Pause has the loop leave a line alone until Resume. Any goroutine may call them.
func (e *Engine) Pause(fd int) { unix.EpollCtl(e.lines.epfd, unix.EPOLL_CTL_DEL, fd, nil) }

// Resume undoes Pause.
func (e *Engine) Resume(fd int) error {
	err := unix.EpollCtl(e.lines.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	if err != nil {
		return fmt.Errorf("engine: epoll: %w", err)
	}
	return nil
}

// linesReady reports whether there are requests.
func (e *Engine) linesReady() bool {
	l := &e.lines
	if l.at < l.n {
		return true
	}
	l.at, l.n = 0, 0
	if len(l.boxes.open) > 0 {
		e.lookIntoBoxes()
	}
	if !l.told && (e.now-l.last > linesHot || e.now-l.looked < linesEvery) {
		return l.n > 0
	}
	l.told, l.looked = false, e.now
	n, err := epollNap(l.epfd, l.events[:], 0)
	if err != nil {
		n = 0
	}
	for _, ev := range l.events[:n] {
		if line := l.of[ev.Fd]; line.Line != nil {
			l.ready[l.n] = readyLine{fd: ev.Fd, line: line.Line}
			l.n++
		}
	}
	return l.n > 0
}

// owes reports whether requests for n have to wait.
func (e *Engine) owes(n *nic.NIC) bool {
	if e.sched.alone != nil {
		return false
	}
	c := e.cards.of[n]
	return c != nil && e.sched.nics.OverShare(&c.band.nic)
}

// serveLines serves the lines that are ready, a request each, until commandTime is over.
// The rest come first in the next pass.
func (e *Engine) serveLines() {
	l := &e.lines
	for begin := e.now; l.at < l.n; {
		r := l.ready[l.at]
		l.ready[l.at] = readyLine{}
		if l.at++; r.fd < 0 {
			continue
		}
		if !r.shut && e.owes(l.of[r.fd].nic) {
			continue // who has to wait is ready in the next look, too
		}
		l.serving = r.line
		if err := e.command(l.serve); err != nil {
			l.serving.Fail(err)
		}
		l.serving = nil
		if e.clock(); !r.boxed {
			l.last = e.now
		}
		if e.now-begin >= commandTime {
			return
		}
	}
}
