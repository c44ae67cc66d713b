package engine

import (
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// Options configure an engine. Resolver is required; the zero value of the rest is good.
type Options struct {
	// Resolver finds the NIC or host that has an address.
	Resolver nic.Resolver
	// Loops is the number of loops; 0: one. See loops.go. Auto: it is the largest number, and the engine uses as many as
	// the traffic needs.
	Loops int
	Auto  bool
	// Spin is how long an idle loop polls, yielding its processor, before it sleeps.
	Spin time.Duration
	// Port leads to other hosts; nil: there are none. Wake are its descriptors: one of them is
	// readable when packets have arrived.
	Port *roce.Port
	Wake []int
	// Deaf makes the loop read no packets until Listen: they are for another daemon, which has the same sockets.
	Deaf bool
	// Window is how many bytes a queue pair may have in flight to another host; 0: a default.
	Window uint32
	// InFlight is how many bytes all queue pairs together may have in flight; 0: no limit.
	InFlight uint32
	// Recognise makes the engine recognise other vrdma hosts, and tell them this Version.
	Recognise bool
	Version   string
	// NoMove keeps the loop from moving to another processor, see contention.go and
	// affinity.go.
	NoMove bool
	// NoFiller keeps the engine from padding packets so that they leave in one batch, and tells
	// other hosts not to.
	NoFiller bool
	// NoAckWait sends ACKs at the end of each pass. They do not wait for a request that they
	// could leave with, see acks.go.
	NoAckWait bool
	// Fault is called on the loop for each packet or call that fails on purpose; nil: nothing is
	// called.
	Fault func(n *nic.NIC, h fault.Hit)
	// Faced is called on the loop when a fault on purpose has changed what a NIC shows of its port; nil: nothing is.
	Faced func(n *nic.NIC)
	// Log receives messages for the operator.
	Log *slog.Logger
	// Evict is called, on a new goroutine, for a session whose memory faulted. The owner of
	// the session has to close it.
	Evict func(*nic.Session)
}

// Engine is the public interface of the loops: most of its methods run on the first, or on the thread that has its state.
type Engine struct {
	first *loop
	loops *loops
}

// A loop is one loop and its parts, see the package comment. Its own methods are the loop itself; each part has the methods that
// work on it.
type loop struct {
	number int    // 0: the first
	loops  *loops // all, this one among them
	opts   Options
	busy   atomic.Int64 // clock.busy, as of lately

	// Other goroutines use these, too.
	cmds   commands
	frames frames
	inward crossing // bursts that other loops have received for this one
	poller poller
	shared *nic.Loop // the loop's data in package nic

	// Only the loop, or a stand-in, touches what follows.
	clock    clock
	adapters adapters
	bells    doorbells
	handlers handlerSet
	sched    scheduler
	local    local
	net      network
	mgmt     management
	proc     processor
	events   eventSender
	waiters  waiters
	chores   chores
	stall    stall
	faults   *faults // nil: nothing fails on purpose
	hits     [fault.NumActions]uint64
	long     bool // this pass precedes a command
}

const defaultSpin = 50 * time.Microsecond

// New makes an engine. Add adds NICs, Start starts the loops.
func New(o Options) (*Engine, error) {
	l := &loops{}
	first, err := newLoop(o, l, 0)
	if err != nil {
		return nil, err
	}
	l.first = first
	if err := l.addLoops(o.Loops - 1); err != nil {
		for _, o := range l.others {
			o.shut()
		}
		first.shut()
		return nil, err
	}
	return &Engine{first: first, loops: l}, nil
}

// newLoop makes one of the loops l.
func newLoop(o Options, l *loops, number int) (*loop, error) {
	if o.Spin == 0 {
		o.Spin = defaultSpin
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &loop{opts: o, loops: l, number: number}
	e.connect()
	if err := e.poller.open(); err != nil {
		return nil, err
	}
	if err := e.handlers.open(&e.poller); err != nil {
		e.poller.close()
		return nil, err
	}
	if err := e.net.open(); err != nil {
		e.handlers.close()
		e.poller.close()
		return nil, err
	}
	return e, nil
}

// shut closes what newLoop has opened.
func (e *loop) shut() {
	e.shared.CloseForeign()
	e.handlers.close()
	e.poller.close()
}

// connect makes the parts, and gives each the other parts that it uses.
func (e *loop) connect() {
	e.shared = nic.NewLoop(e.cmds.foreignArrived)
	e.cmds.done, e.cmds.poller = make(chan struct{}), &e.poller
	base := time.Now()
	e.clock = clock{now: 1, time: func() ib.Time { return ib.Time(time.Since(base)) + 1 }, sched: &e.sched}
	e.adapters = adapters{of: make(map[*nic.NIC]*adapter), at: make(map[netAddr]*adapter), resolver: e.opts.Resolver, under: &e.net.underlays}
	e.sched.clock = &e.clock.now
	e.sched.nics.Capped = capped
	e.bells = doorbells{of: make(map[int32]*bell), clock: &e.clock, sched: &e.sched, poller: &e.poller}
	e.net.opts, e.net.clock, e.net.adapters, e.net.sched = &e.opts, &e.clock, &e.adapters, &e.sched
	e.net.local, e.net.mgmt, e.net.poller, e.net.loop = &e.local, &e.mgmt, &e.poller, e
	e.mgmt.clock, e.mgmt.adapters, e.mgmt.net = &e.clock, &e.adapters, &e.net
	e.proc = processor{opts: &e.opts, clock: &e.clock, bells: &e.bells, sched: &e.sched, net: &e.net, shared: e.shared}
	e.events = eventSender{clock: &e.clock, bells: &e.bells, sched: &e.sched, proc: &e.proc, shared: e.shared}
	e.waiters = waiters{clock: &e.clock, sched: &e.sched, shared: e.shared}
	e.chores.shared = e.shared
	e.stall.clock, e.stall.cmds, e.stall.shared, e.stall.log = &e.clock, &e.cmds, e.shared, e.opts.Log
	e.stall.wake, e.stall.command, e.stall.first, e.stall.spread = make(chan struct{}, 1), e.command, &e.cmds, e.spreadMark
	e.local.shared, e.local.log = e.shared, e.opts.Log
}

// Start runs the loops.
func (e *Engine) Start() {
	for _, o := range e.loops.others {
		o.run()
	}
	e.first.run()
	if len(e.loops.others) > 0 {
		go e.loops.balance()
	}
}

// run runs this loop.
func (e *loop) run() {
	go func() {
		runtime.LockOSThread()
		debug.SetPanicOnFault(true)
		defer close(e.cmds.done)
		e.stall.own = threadID()
		e.stall.tid.Store(e.stall.own)
		go e.stall.watch(e.do)
		e.work()
		e.shared.CloseForeign()
		e.handlers.close()
		e.poller.close()
	}()
}

// Stop ends the loops and waits for them. All sessions are closed before.
func (e *Engine) Stop() {
	e.loops.stopOthers()
	e.first.cmds.stopping.Store(true)
	e.Do(func() {}) // ErrStopped if it was stopped before
	<-e.first.cmds.done
}

// Now is the loop's time. It runs on the loop.
func (e *Engine) Now() ib.Time { return e.first.clock.now }

// Wake gives a queue pair a turn, as its doorbell would. It runs on the loop.
func (e *Engine) Wake(q *nic.QP) { taskOf(q).Wake() }

// Aside returns the threads for work that a client's memory may hold up. Any goroutine may use
// them.
func (e *Engine) Aside() *memory.Pool { return e.first.shared.Aside() }

// Attach makes the loop serve a session of a NIC that was added: a new one, or one of
// nic.ThawSession, whose queue pairs continue. Sessions that talk with each other are restored in one
// command, because a burst for a queue pair that is not there yet is lost. A client without a doorbell
// descriptor calls Ring instead. It runs on the loop.
func (e *Engine) Attach(s *nic.Session, doorbell nic.Doorbell) error {
	if err := e.loops.place(s, doorbell).attach(s, doorbell); err != nil {
		return err
	}
	if len(e.loops.others) > 0 {
		e.loops.joinMates(s)
	}
	return nil
}

// attach is Attach for this loop.
func (e *loop) attach(s *nic.Session, doorbell nic.Doorbell) error {
	adapter := e.adapters.of[s.NIC()]
	if adapter == nil {
		return fmt.Errorf("engine: the NIC %s was not added", s.NIC().Name)
	}
	c := &client{e: e, session: s, adapter: adapter}
	e.loops.steering.enter(c)
	c.bell = bell{client: c, fd: -1, page: newPage(s.Arena.Doorbell())}
	if doorbell != nil {
		c.bell.fd, c.bell.far = int(doorbell.Fd()), !s.Wakes()
		if err := e.poller.watch(c.bell.fd); err != nil {
			return err
		}
	}
	s.SetOwner(c)
	e.loops.joined(1)
	e.sched.join(&c.flow, &adapter.band, s.User)
	e.bells.setPrompt(&c.bell, adapter.band.nic.Latency())
	e.bells.add(&c.bell, e.clock.now)
	if s.QPs() == 0 {
		return nil
	}
	if err := s.AdoptQPs(); err != nil {
		e.detach(c)
		return err
	}
	c.tasks.each((*task).resume)
	return nil
}

// Ring wakes the loop for a session without a doorbell descriptor. Any goroutine may call it.
func (e *Engine) Ring(s *nic.Session) {
	e.Do(func() {
		if c := clientOf(s); c != nil {
			c.e.bells.activate(&c.bell, c.e.clock.now)
		}
	})
}

// Detach undoes Attach. It runs on the loop, before the session's arena is unmapped and its
// doorbell closed.
func (e *Engine) Detach(s *nic.Session) { e.loops.detach(s) }

func (l *loops) detach(s *nic.Session) {
	if c := clientOf(s); c != nil {
		if f := l.first.faults; f != nil {
			f.leave(s)
		}
		c.e.detach(c)
	}
}

// detach undoes attach.
func (e *loop) detach(c *client) {
	e.loops.joined(-1)
	e.loops.steering.leave(c)
	c.session.SetOwner(nil)
	e.sched.leave(&c.flow)
	e.bells.setPrompt(&c.bell, false)
	e.bells.remove(&c.bell)
}

// A poller reports which descriptors are readable, and wakes the loop.
type poller struct {
	epfd   int
	wake   int // eventfd
	events [64]unix.EpollEvent
}

func (p *poller) open() (err error) {
	if p.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("engine: epoll: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(p.epfd)
		return fmt.Errorf("engine: eventfd: %w", err)
	}
	if err = p.watch(p.wake); err != nil {
		p.close()
		return fmt.Errorf("engine: epoll: %w", err)
	}
	return nil
}

func (p *poller) close() {
	unix.Close(p.epfd)
	unix.Close(p.wake)
}

// watch adds an eventfd. It is edge-triggered: each write is one event, and the loop never reads
// the descriptor. A client shares the doorbell's file. It could clear O_NONBLOCK and empty the
// eventfd first, and our read would never return.
func (p *poller) watch(fd int) error {
	return unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)})
}

// watchSocket adds a socket. It is level-triggered: unread packets wake the loop again.
func (p *poller) watchSocket(fd int) error {
	return unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (p *poller) unwatch(fd int) { unix.EpollCtl(p.epfd, unix.EPOLL_CTL_DEL, fd, nil) }

// kick wakes the loop.
func (p *poller) kick() {
	one := [8]byte{0: 1}
	unix.Write(p.wake, one[:])
}

// nap is how long the loop may sleep without telling the Go scheduler.
const nap = 200_000

// wait blocks until a watched descriptor is readable, or for timeout nanoseconds unless that is
// negative, and returns how many are in events. It returns early if commands or frames are
// pending. It touches nothing else that a stand-in uses.
func (p *poller) wait(timeout int64, commands, frames *atomic.Bool) int {
	// Most waits between two messages are short. Telling the Go scheduler about them costs more
	// than they last, so the first nap is hidden from it. A garbage collection that needs this
	// thread waits at most that long.
	if timeout < 0 || timeout > nap {
		if n, err := epollNap(p.epfd, p.events[:], nap); n > 0 || err != nil {
			return n
		}
		if commands.Load() || frames.Load() {
			return 0
		}
		if timeout > 0 {
			timeout -= nap
		}
	}
	n, err := epollWait(p.epfd, p.events[:], timeout)
	if err != nil {
		return 0
	}
	return n
}
