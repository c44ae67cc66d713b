package engine

import (
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// Options tune an engine; the zero value is good, except that there must be a Resolver.
type Options struct {
	// Resolver knows where addresses are.
	Resolver nic.Resolver
	// Spin is how long the loop looks around, yielding, before it sleeps.
	Spin time.Duration
	// Port leads to other hosts; nil: there are none. Wake are its descriptors, of
	// which one is readable when something has arrived.
	Port *roce.Port
	Wake []int
	// Window is how many bytes a queue pair may have on its way to another host;
	// 0: a default.
	Window uint32
	// InFlight is how many all queue pairs together may have; 0: no limit.
	InFlight uint32
	// Recognise has other vrdma hosts recognised, which are told this Version.
	Recognise bool
	Version   string
	// NoMove has the loop stay on a processor where it does not work well, see
	// contention.go and placement.go.
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

// Engine is one loop and what belongs to it. Nothing of it is shared with another engine, so
// a daemon can have several.
type Engine struct {
	opts Options

	// What other goroutines use.
	cmds   commands
	frames frames
	poller poller
	shared *nic.Loop // what package nic keeps for the loop

	// What follows belongs to the loop, or to who stands in for it.
	now        ib.Time
	time       func() ib.Time // tests have a time of their own
	cards      cards
	bells      doorbells
	lines      lineSet
	sched      scheduler
	local      local
	net        network
	mgmt       management
	contention contention
	rivals     rivals
	placement  placement
	chores     chores
	tenants    map[string]*schedule.Tenant
	ledger     ledger
	stall      stall
	long       bool // this pass comes before a command
}

const defaultSpin = 50 * time.Microsecond

// New makes an engine, which serves the NICs that are added to it; Start starts it.
func New(o Options) (*Engine, error) {
	if o.Spin == 0 {
		o.Spin = defaultSpin
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{opts: o, now: 1}
	e.cards = cards{of: make(map[*nic.NIC]*card), at: make(map[place]*card)}
	e.cmds.done = make(chan struct{})
	e.stall.wake = make(chan struct{}, 1)
	base := time.Now()
	e.time = func() ib.Time { return ib.Time(time.Since(base)) + 1 }
	if err := e.poller.open(); err != nil {
		return nil, err
	}
	if err := e.lines.open(&e.poller); err != nil {
		e.poller.close()
		return nil, err
	}
	e.sched.clock = &e.now
	e.sched.nics.Capped = capped
	e.bells.init(e)
	if err := e.openNetwork(); err != nil {
		e.lines.close()
		e.poller.close()
		return nil, err
	}
	e.shared = nic.NewLoop(e.rouse)
	return e, nil
}

// Start runs the loop.
func (e *Engine) Start() {
	go func() {
		runtime.LockOSThread()
		debug.SetPanicOnFault(true)
		defer close(e.cmds.done)
		e.stall.own = threadID()
		e.stall.tid.Store(e.stall.own)
		go e.watchStalls()
		e.loop()
		e.shared.CloseForeign()
		e.lines.close()
		e.poller.close()
	}()
}

// Stop ends the loop and waits for it. Sessions are closed before.
func (e *Engine) Stop() {
	e.cmds.stopping.Store(true)
	e.Do(func() {}) // ErrStopped if it was stopped before
	<-e.cmds.done
}

// Now is the loop's clock. It runs on the loop.
func (e *Engine) Now() ib.Time { return e.now }

// Wake has the loop look at a queue pair, as its doorbell would. It runs on the loop.
func (e *Engine) Wake(q *nic.QP) { taskOf(q).Wake() }

// Aside are the threads for what may be held up by a client's memory. Any goroutine may use
// them.
func (e *Engine) Aside() *memory.Pool { return e.shared.Aside() }

// Attach begins to serve a session, of a NIC that was added, and its doorbells. Without a
// doorbell its client calls Ring. It runs on the loop.
func (e *Engine) Attach(s *nic.Session, doorbell nic.Doorbell) error {
	card := e.cards.of[s.NIC()]
	if card == nil {
		return fmt.Errorf("engine: the NIC %s was not added", s.NIC().Name)
	}
	c := &client{e: e, session: s, card: card}
	c.bell = bell{client: c, fd: -1, page: newPage(s.Arena.Doorbell())}
	if doorbell != nil {
		c.bell.fd, c.bell.far = int(doorbell.Fd()), !s.Wakes()
		if err := e.poller.watch(c.bell.fd); err != nil {
			return err
		}
	}
	s.SetOwner(c)
	e.sched.join(&c.flow, &card.band, s.User)
	e.bells.setPrompt(&c.bell, card.band.nic.Latency())
	e.bells.add(&c.bell, e.now)
	return nil
}

// Ring wakes the loop for a session that has no doorbell: its client calls it where another
// would write to its descriptor. Any goroutine may call it.
func (e *Engine) Ring(s *nic.Session) {
	e.Do(func() {
		if c := clientOf(s); c != nil {
			e.bells.activate(&c.bell, e.now)
		}
	})
}

// Detach stops serving a session. It runs on the loop, before the session's arena
// is unmapped and its doorbell closed.
func (e *Engine) Detach(s *nic.Session) {
	c := clientOf(s)
	if c == nil {
		return
	}
	s.SetOwner(nil)
	e.sched.leave(&c.flow)
	e.bells.setPrompt(&c.bell, false)
	e.bells.remove(&c.bell)
}

// A poller tells which descriptors are readable, and wakes the loop.
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

// watch adds an eventfd. Edge-triggered, each write to it is one event and nobody
// has to read it: a client, which shares the doorbell's file, could clear O_NONBLOCK
// and empty it first, and our read would never return.
func (p *poller) watch(fd int) error {
	return unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)})
}

// watchSocket adds a socket. Level-triggered: what one look leaves behind wakes us again.
func (p *poller) watchSocket(fd int) error {
	return unix.EpollCtl(p.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (p *poller) unwatch(fd int) { unix.EpollCtl(p.epfd, unix.EPOLL_CTL_DEL, fd, nil) }

// kick wakes the loop.
func (p *poller) kick() {
	one := [8]byte{0: 1}
	unix.Write(p.wake, one[:])
}
