package engine

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vrdma/internal/hosts"
	"vrdma/internal/ib"
	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// Options tune an engine; the zero value is good.
type Options struct {
	// Spin is how long the loop looks around, yielding, before it sleeps.
	Spin time.Duration
	// Port leads to other hosts; nil: there are none. Wake are its descriptors, of
	// which one is readable when something has arrived.
	Port *link.Port
	Wake []int
	// Window is how many bytes a queue pair may have on its way to another host;
	// 0: a default.
	Window uint32
	// InFlight is how many all queue pairs together may have; 0: no limit.
	InFlight uint32
	// Recognise has other vrdma hosts recognised, which are told this Version.
	Recognise bool
	Version   string
	// NoMove has the loop stay on a processor that others crowd, see crowd.go.
	NoMove bool
	// NoFiller has no packets filled up so that they leave together, and tells other
	// hosts not to.
	NoFiller bool
	// NoAckWait has acknowledgements leave at the end of the pass, without waiting for
	// an answer that they could leave with, see acks.go.
	NoAckWait bool
	// Log takes what an operator should know.
	Log *slog.Logger
	// Evict is called, on a goroutine of its own, for a session whose memory
	// faulted: whoever opened the session has to close it.
	Evict func(*nic.Session)
}

// Engine is the loop and its queues.
type Engine struct {
	nic  *nic.NIC
	opts Options
	base time.Time
	epfd int
	wake int // eventfd

	// Commands from other goroutines.
	mu       sync.Mutex
	commands queue[func()]
	pending  atomic.Bool
	sleeping atomic.Bool
	stopping atomic.Bool
	arrived  atomic.Bool // foreign memory has come, see inbox.go
	done     chan struct{}
	held     atomic.Uint32 // who holds what follows: see visit.go

	// What follows belongs to the loop.
	now     ib.Time
	time    func() ib.Time // tests have a time of their own
	sched   scheduler
	replies queue[transport.Burst]
	starved starved
	inboxes inboxes
	stuck   stuck
	reply   transport.Burst // the one being delivered
	bells   map[int32]*bell
	active  []*bell
	long    bool    // this pass comes before a command
	look    int     // among active: where the next look at doorbells begins
	wakes   ib.Time // when who woke was asked last
	port    *link.Port
	portFDs map[int32]bool
	traffic traffic
	heard   int // batches taken since a timer of a remote queue pair came due
	tap     *link.Tap
	acks    acks
	flights flights
	crowd   crowd
	strays  uint64 // packets from other hosts for no queue pair of ours

	groups      map[ib.GID]int32 // joined on the network: descriptors
	groupFDs    map[int32]bool   // whether each is in groupsReady
	groupsReady queue[int32]
	toGroups    multicastCount

	mgmt    management
	peers   *hosts.Table // nil: every other host is foreign
	tooLong map[ib.GID]*tooLong
	current *nic.QP // whose turn it is, for fault containment
	events  [64]unix.EpollEvent
	tick    ib.Time // next visit of errored queue pairs and full channels
	ticking bool
	until   ib.Time // when the loop wakes by itself; 0 is never
}

const defaultSpin = 50 * time.Microsecond

// New makes an engine for n; Start starts it.
func New(n *nic.NIC, o Options) (*Engine, error) {
	if o.Spin == 0 {
		o.Spin = defaultSpin
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("engine: epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epfd)
		return nil, fmt.Errorf("engine: eventfd: %w", err)
	}
	e := &Engine{nic: n, opts: o, port: o.Port, portFDs: make(map[int32]bool), base: time.Now(), epfd: epfd, wake: wake, bells: make(map[int32]*bell), done: make(chan struct{})}
	if err := e.watch(wake); err != nil {
		unix.Close(epfd)
		unix.Close(wake)
		return nil, fmt.Errorf("engine: epoll: %w", err)
	}
	for _, fd := range o.Wake {
		// Level-triggered: what one look leaves behind wakes us again.
		if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			unix.Close(epfd)
			unix.Close(wake)
			return nil, fmt.Errorf("engine: epoll: %w", err)
		}
		e.portFDs[int32(fd)] = true
	}
	e.now = 1
	e.time = func() ib.Time { return ib.Time(time.Since(e.base)) + 1 }
	e.groups, e.groupFDs = make(map[ib.GID]int32), make(map[int32]bool)
	n.SetLink(e)
	if o.Port != nil {
		o.Port.OnTooLong(e.noteTooLong)
		if o.Recognise {
			e.recognise(o.Version)
		}
	}
	return e, nil
}

// watch adds an eventfd. Edge-triggered, each write to it is one event and nobody
// has to read it: a client, which shares the doorbell's file, could clear O_NONBLOCK
// and empty it first, and our read would never return.
func (e *Engine) watch(fd int) error {
	return unix.EpollCtl(e.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)})
}

// Start runs the loop.
func (e *Engine) Start() {
	go func() {
		runtime.LockOSThread()
		debug.SetPanicOnFault(true)
		defer close(e.done)
		e.loop()
		e.nic.CloseForeign()
		unix.Close(e.epfd)
		unix.Close(e.wake)
	}()
}

// Stop ends the loop and waits for it. Sessions are closed before.
func (e *Engine) Stop() {
	e.stopping.Store(true)
	e.Do(func() {})
	<-e.done
}

// Do runs f on the loop, or in its place while it sleeps, and waits until it has run.
// After Stop, f does not run.
func (e *Engine) Do(f func()) {
	if e.standIn(f) {
		return
	}
	ran := make(chan struct{})
	e.mu.Lock()
	*e.commands.push() = func() { f(); close(ran) }
	e.pending.Store(true)
	e.mu.Unlock()
	if e.sleeping.Load() {
		e.kick()
	}
	select {
	case <-ran:
	case <-e.done:
	}
}

func (e *Engine) kick() {
	one := [8]byte{0: 1}
	unix.Write(e.wake, one[:])
}

const (
	// commandsPerPass and commandTime bound the commands of one pass. The rest wait for
	// the next: each connection has one under way at a time, so their order is fair.
	commandsPerPass = 8
	commandTime     = ib.Time(5_000)
)

// takeCommands runs the first of what other goroutines asked for, n at most.
func (e *Engine) takeCommands(n int) {
	for begin := e.now; n > 0; n-- {
		e.mu.Lock()
		c := e.commands.pop()
		f := *c
		*c = nil
		e.pending.Store(e.commands.n > 0)
		e.mu.Unlock()
		f()
		if e.clock(); e.now-begin >= commandTime {
			return
		}
	}
}

// commandsNow is how many commands one pass may run: none that comes later, because what
// its program posted before it may not have been seen.
func (e *Engine) commandsNow() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return min(e.commands.n, commandsPerPass)
}

// clock reads the time.
func (e *Engine) clock() { e.now = e.time() }

// Now implements nic.Link.
func (e *Engine) Now() ib.Time { return e.now }

// Wake implements nic.Link.
func (e *Engine) Wake(q *nic.QP) {
	e.schedule(q)
	e.settle(q)
}

// Forget implements nic.Link.
func (e *Engine) Forget(q *nic.QP) {
	e.flights.set(q, 0)
	e.unpark(q)
	if f := flowOf(q); f != nil {
		e.sched.forget(f, q)
	}
}

// Attach begins to serve a session's doorbells. It runs on the loop.
func (e *Engine) Attach(s *nic.Session, doorbell *os.File) error {
	b := newBell(s, int(doorbell.Fd()))
	if err := e.watch(b.fd); err != nil {
		return err
	}
	e.bells[int32(b.fd)] = b
	s.Engine = b
	e.sched.join(&b.flow, s.User)
	e.activate(b)
	return nil
}

// Detach stops serving a session. It runs on the loop, before the session's arena
// is unmapped and its doorbell closed.
func (e *Engine) Detach(s *nic.Session) {
	b, ok := s.Engine.(*bell)
	if !ok {
		return
	}
	s.Engine = nil
	e.sched.leave(&b.flow)
	unix.EpollCtl(e.epfd, unix.EPOLL_CTL_DEL, b.fd, nil)
	delete(e.bells, int32(b.fd))
	for i, o := range e.active {
		if o == b {
			e.active = append(e.active[:i], e.active[i+1:]...)
			break
		}
	}
}
