package frontdoor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vrdma/internal/budget"
	"vrdma/internal/channel"
	"vrdma/internal/devicetree"
	"vrdma/internal/hosts"
	"vrdma/internal/link"
	"vrdma/internal/memory"
	"vrdma/internal/nic"
	"vrdma/internal/rdmacm"
	"vrdma/internal/routes"
)

// Loop is the engine as the front door needs it: the one goroutine that owns every
// NIC object.
type Loop interface {
	// Do runs f on the loop and waits for it. A panic in f comes back as an error. Once
	// the loop has ended f does not run; the error is os.ErrClosed then.
	Do(f func()) error
	// Attach makes the loop serve a session's queues; doorbell wakes it. It and
	// the ones below are called on the loop only.
	Attach(s *nic.Session, doorbell *os.File) error
	// Detach undoes Attach.
	Detach(s *nic.Session)
	// Aside are the threads for what a client's memory may hold up. Any goroutine may
	// use them.
	Aside() *memory.Pool
	// Wake makes the loop look at a queue pair, as its doorbell would.
	Wake(q *nic.QP)
	// SetTap has every packet recorded; nil ends that.
	SetTap(t *link.Tap)
	// LinkCounters counts what passed to and from other hosts.
	LinkCounters() link.Counters
	// Peers are the other hosts that are known.
	Peers() ([]hosts.Status, hosts.Counters)
}

// Config is what a Server needs.
type Config struct {
	Socket string // PATH; the device tree lies in PATH.d/sys
	NIC    *nic.NIC
	Engine Loop
	// CMA is the rdma_cm device; nil: there is none.
	CMA *rdmacm.CMA
	// Route finds the address from which another host is reached; nil: the
	// kernel's routing table. from may be unspecified.
	Route func(from, to netip.Addr) (netip.Addr, error)
	// Reach waits until the next station on the way to a host is known; nil: the
	// kernel's neighbour table.
	Reach   func(from, to netip.Addr, timeout time.Duration) error
	Log     *slog.Logger
	Version string // of the program, for status and messages
	// DirMode is the mode of the socket's directory if Listen has to make it;
	// 0 means 0700.
	DirMode fs.FileMode
	// SocketMode is the socket's mode; 0 means 0600.
	SocketMode fs.FileMode
	// Budget bounds what users may make the daemon hold; nil: nothing does.
	Budget *budget.Ledger
	// Stop is called, once, when a tool asks the daemon to end.
	Stop func()
}

// Server serves one socket for programs and one for control. Lock order: mu before a
// process's mu; trace.mu, refused.mu, warned.mu and those of looks are leaves.
type Server struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	uid     int
	home    household

	listener *net.UnixListener
	control  *controlSocket // nil: none could be made
	turning  chan struct{}  // holds one for each connection that is being turned away
	warned   limiter
	tree     *devicetree.Tree
	trace    hub
	refused  refusals
	looks    looks

	ids       atomic.Uint64
	stopOnce  sync.Once
	capturing atomic.Bool
	work      sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	conns     map[*channel.Conn]struct{}
	processes map[channel.Token]*process
	sessions  map[*session]struct{}
	counted   map[string]uint64 // connections of processes that are gone, by label
}

// greetingTime is how long a client may take to say who it is.
const greetingTime = 10 * time.Second

// Listen opens the socket and writes the device tree. A socket that nobody answers
// is taken over; one that somebody answers is left alone.
func Listen(cfg Config) (*Server, error) {
	if cfg.DirMode == 0 {
		cfg.DirMode = 0o700
	}
	if cfg.SocketMode == 0 {
		cfg.SocketMode = 0o600
	}
	if cfg.Route == nil {
		cfg.Route = routes.From
	}
	if cfg.Reach == nil {
		cfg.Reach = routes.Reach
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, started: time.Now(), uid: os.Geteuid(), home: ownHome(),
		turning:   make(chan struct{}, mostTurned),
		conns:     make(map[*channel.Conn]struct{}),
		processes: make(map[channel.Token]*process),
		sessions:  make(map[*session]struct{}),
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Socket), cfg.DirMode); err != nil {
		return nil, fmt.Errorf("the socket's directory: %w", err)
	}
	if err := clearStale(cfg.Socket); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: cfg.Socket, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("the socket: %w", err)
	}
	s.listener = l
	if err := os.Chmod(cfg.Socket, cfg.SocketMode); err != nil {
		l.Close()
		return nil, fmt.Errorf("the socket's mode: %w", err)
	}
	if s.tree, err = devicetree.New(cfg.Socket+".d/sys", cfg.NIC, cfg.DirMode, s.counters); err != nil {
		l.Close()
		return nil, err
	}
	if s.control, err = listenControl(cfg.Socket, s.uid); err != nil {
		s.log.Warn("there will be no vrdma stop, no pcap and no status of everybody: the control socket cannot be made", "error", err)
	}
	return s, nil
}

// clearStale removes a socket whose daemon is gone. Who may own a path at all is
// settled by package launch before we come here; this protects against mistakes.
func clearStale(socket string) error {
	info, err := os.Lstat(socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("the socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: choose another path with --socket", socket)
	}
	u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err == nil {
		defer u.Close()
		who := "an unknown process"
		if c, err := credentials(u); err == nil {
			who = fmt.Sprintf("pid %d", c.Pid)
		}
		return fmt.Errorf("%s is served already, by %s: stop it, or choose another path with --socket", socket, who)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("the socket %s is there but cannot be tried: %w", socket, err)
	}
	return os.Remove(socket)
}

// Sessions is how many conversations hold the daemon open: processes and devices.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.processes) + len(s.sessions)
}

// Serve accepts connections until Close; it then returns nil.
func (s *Server) Serve() error {
	spare := newSpare()
	defer func() { spare.Close() }()
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		s.serveTools()
	}()
	var full time.Time // since when there is no descriptor for a connection
	for {
		u, err := s.listener.AcceptUnix()
		switch {
		case err == nil:
			full = time.Time{}
			s.serve(u, s.converse)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
			if full.IsZero() {
				full = time.Now()
				s.log.Warn("cannot accept a connection: raise the limit of open files (ulimit -n)", "error", err)
			}
			if time.Since(full) < patience {
				time.Sleep(patience / 20) // somebody may close something
				continue
			}
			spare.Close()
			var room bool
			if spare, room = s.admit(err); room {
				full = time.Time{}
			}
		default:
			return fmt.Errorf("accept on %s: %w", s.cfg.Socket, err)
		}
	}
}

// patience is how long a connection waits for a descriptor. It is not for ever, because
// those who wait may be those who hold what the others wait for.
const patience = 200 * time.Millisecond

// newSpare is a descriptor that can be given up for a moment; nil if there is none.
func newSpare() *os.File {
	f, _ := os.Open(os.DevNull)
	return f
}

// admit takes a connection with the descriptor that the spare had. If there is another for a
// new spare, somebody has closed one meanwhile, and there is room to serve the connection.
func (s *Server) admit(why error) (spare *os.File, room bool) {
	s.listener.SetDeadline(time.Now().Add(patience / 20))
	defer s.listener.SetDeadline(time.Time{})
	u, err := s.listener.AcceptUnix()
	if err != nil {
		time.Sleep(patience / 20)
		return newSpare(), false
	}
	if spare = newSpare(); spare != nil {
		s.serve(u, s.converse)
		return spare, true
	}
	turnAway(u, refusal(channel.Errno(why, syscall.EMFILE), "the daemon has no descriptor left: %v; raise its limit of open files (ulimit -n)", why))
	return newSpare(), false
}

// mostTurned is how many connections are told at one time why they are not served; more
// are closed without a word. Each holds a descriptor until it has spoken, or patience ends.
const mostTurned = 16

// turnAwayBeside turns a connection away without holding up the others.
func (s *Server) turnAwayBeside(u *net.UnixConn, why error) {
	select {
	case s.turning <- struct{}{}:
	default:
		u.Close()
		return
	}
	go func() {
		defer func() { <-s.turning }()
		turnAway(u, why)
	}()
}

// turnAway says why a connection is not served.
func turnAway(u *net.UnixConn, why error) {
	defer u.Close()
	c := channel.NewConn(u)
	c.SetDeadline(time.Now().Add(patience))
	var hello [1024]byte
	if _, fds, err := c.ReadMessage(hello[:]); err == nil {
		channel.CloseFDs(fds)
	}
	refuse(c, why)
}

// serve starts the conversation on u.
func (s *Server) serve(u *net.UnixConn, converse conversation) {
	who, err := s.enter(u)
	if err != nil {
		s.turnAwayBeside(u, err)
		return
	}
	c := channel.NewConn(u)
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		u.Close()
		who.leave()
		return
	}
	s.conns[c] = struct{}{}
	s.work.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.work.Done()
		defer func() {
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
			u.Close()
			who.leave()
		}()
		s.guarded(c, who, converse)
	}()
}

// Close ends every conversation, removes socket and device tree and returns when
// nothing is left, or when ctx ends. It may be called again.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.listener.Close()
	s.control.close(s.uid)

	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("some sessions did not end: %w", ctx.Err())
	}
	return errors.Join(err, s.tree.Remove())
}

// counters reads the device's counters for the device tree.
func (s *Server) counters() []devicetree.Counter { return s.countersThrough(&s.looks.tree) }

func (s *Server) countersThrough(look *throttle) []devicetree.Counter {
	var c nic.Counters
	var l link.Counters
	look.visit(s, func() { c, l = s.cfg.NIC.Counters(), s.cfg.Engine.LinkCounters() })
	return devicetree.Counters(c, l)
}
