package engine

import (
	"fmt"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// A lineSet holds the lines: client connections that the loop reads itself. The loop reads, runs
// and answers a request without another goroutine, so a request costs at most the wake-up of the
// loop. Slow work does not belong on the loop: the line is paused, and another goroutine finishes
// the request.
//
//	          readable           Serve
//	watched ────────────▶ ready ───────▶ watched, or, if Serve paused it,
//	   ▲                                 paused
//	   └───────────── Resume ──────────────┘
//
// Lines have an epoll descriptor of their own, which the loop's poller watches. The loop asks it
// which lines are ready before it looks for doorbells (wakeRung). Work that a program posted
// before a request is therefore done before it. The kernel's list of ready lines is a round
// robin: after one request a line is at the end of that list.
//
// A line may have a mailbox besides, see mailboxes.go.
//
// Requests are charged to their NIC like turns. While others want turns, requests of a tenant
// wait that has used more than its share: commands give it no more of the loop than messages.
type lineSet struct {
	epfd   int
	of     map[int32]line
	events [commandsPerPass]unix.EpollEvent
	ready  [2 * commandsPerPass]readyLine
	at, n  int     // ready[at:n] are still to be served
	told   bool    // the poller reported epfd as readable
	looked ib.Time // when epfd was asked last
	last   ib.Time // when a request was served last

	boxes mailboxes

	serving Line
	serve   func() // calls Serve of serving
}

// A line is a connection and the NIC that its requests are for.
type line struct {
	Line
	nic *nic.NIC
}

// A readyLine is a line with a request: in its mailbox, or on its connection.
type readyLine struct {
	fd    int32 // -1: the line is gone
	line  Line
	boxed bool // the request is in the mailbox
	shut  bool // the mailbox is shut: the next look does not find the request again
}

// A Line is a client's connection. The loop calls its methods.
type Line = interface {
	// Serve reads a request, if there is one, runs it and answers it. It must not wait.
	Serve()
	// Fail reports that Serve has panicked; see panics.go.
	Fail(err error)
}

const (
	// linesHot is how long after a request the loop looks for the next one in every pass: a
	// program that makes one command usually makes another.
	linesHot = ib.Time(100_000)
	// linesEvery is the shortest time between two such looks.
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

// Watch makes the loop serve the connection fd of a client of NIC n. It runs on the loop.
func (e *Engine) Watch(fd int, n *nic.NIC, l Line) error {
	e.first.lines.forget(fd)
	if err := e.Resume(fd); err != nil {
		return err
	}
	e.first.lines.of[int32(fd)] = line{l, n}
	e.first.lines.last = e.first.clock.now
	return nil
}

// Unwatch undoes Watch, also for a paused line. It runs on the loop, before the descriptor is
// closed.
func (e *Engine) Unwatch(fd int) {
	e.Pause(fd)
	e.Leave(fd)
	e.first.lines.forget(fd)
	delete(e.first.lines.of, int32(fd))
}

// forget drops a ready line: another connection may get the same descriptor number.
func (l *lineSet) forget(fd int) {
	for i := l.at; i < l.n; i++ {
		if l.ready[i].fd == int32(fd) {
			l.ready[i].fd = -1
		}
	}
}

// Pause stops the loop from reading a line until Resume. Any goroutine may call either.
func (e *Engine) Pause(fd int) { unix.EpollCtl(e.first.lines.epfd, unix.EPOLL_CTL_DEL, fd, nil) }

// Resume undoes Pause.
func (e *Engine) Resume(fd int) error {
	err := unix.EpollCtl(e.first.lines.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
	if err != nil {
		return fmt.Errorf("engine: epoll: %w", err)
	}
	return nil
}

// poll reports whether there are requests.
func (l *lineSet) poll(now ib.Time) bool {
	if l.at < l.n {
		return true
	}
	l.at, l.n = 0, 0
	if len(l.boxes.open) > 0 {
		l.pollMailboxes(now)
	}
	if !l.told && (now-l.last > linesHot || now-l.looked < linesEvery) {
		return l.n > 0
	}
	l.told, l.looked = false, now
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

// serveLines serves one request of each ready line, for at most commandTime. The next pass begins
// with the rest.
func (e *loop) serveLines() {
	l := &e.lines
	for begin := e.clock.now; l.at < l.n; {
		r := l.ready[l.at]
		l.ready[l.at] = readyLine{}
		if l.at++; r.fd < 0 {
			continue
		}
		if !r.shut && e.sched.alone == nil && e.sched.mustWait(e.adapters.of[l.of[r.fd].nic]) {
			continue // the next look finds the request again
		}
		l.serving = r.line
		if err := e.command(l.serve); err != nil {
			l.serving.Fail(err)
		}
		l.serving = nil
		if e.clock.read(); !r.boxed {
			l.last = e.clock.now
		}
		if e.clock.now-begin >= commandTime {
			return
		}
	}
}
