package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/tenancy/meter"
)

// Loop is the engine as the front door needs it: the one goroutine that owns every
// NIC object.
type Loop interface {
	// Do runs f on the loop and waits for it. A panic in f comes back as an error. Once
	// the loop has ended f does not run; the error is os.ErrClosed then.
	Do(f func()) error
	// Attach makes the loop serve a session's queues; doorbell wakes it. It and
	// the ones below are called on the loop only.
	Attach(s *nic.Session, doorbell nic.Doorbell) error
	// Detach undoes Attach.
	Detach(s *nic.Session)
	// Aside are the threads for what a client's memory may hold up. Any goroutine may
	// use them.
	Aside() *memory.Pool
	// Bill has what the loop does next charged to a NIC.
	Bill(n *nic.NIC)
	// Wake makes the loop look at a queue pair, as its doorbell would.
	Wake(q *nic.QP)
	// Watch has the loop serve a connection, of a client of a NIC; Unwatch undoes that.
	Watch(fd int, n *nic.NIC, l loopLine) error
	Unwatch(fd int)
	// Pause has the loop leave a connection alone, Resume ends that. Any goroutine may
	// call them.
	Pause(fd int)
	Resume(fd int) error
	// Look has the loop look into the box of a connection, unless too many are open, and
	// reports whether it does. Leave undoes that.
	Look(fd int, b loopBox) bool
	Leave(fd int)
	// SetTap, LinkCounters and Peers are for those who look, see diag.Loop.
	SetTap(t *roce.Tap)
	LinkCounters() roce.Counters
	Peers() ([]peers.Status, peers.Counters)
}

// A loopLine is a connection as the loop serves it. It is an alias, as engine.Line is, so that
// both are one type and an engine.Engine is a Loop.
type loopLine = interface {
	Serve()
	Fail(err error)
}

// A loopBox is engine.Box, likewise.
type loopBox = interface {
	loopLine
	Asked() bool
	Shut() bool
}

// Machines knows the virtual machines that have NICs.
type Machines interface {
	// Machines are their names.
	Machines() map[*registry.NIC]string
}

// Config is what a Server needs.
type Config struct {
	// Doors are where programs come in, one at least. The control socket is found from
	// the first one's path.
	Doors   []Door
	Engine  Loop
	Log     *slog.Logger
	Version string // of the program, for status and messages
	// Budget bounds what users may make the daemon hold; nil: nothing does.
	Budget *budget.Ledger
	// Events records limits that users reach, at most once a second for each kind of a tenant's; callers that are not
	// admitted; programs that open and close the device of a declared NIC. nil: nothing does.
	Events events.Sink
	Store  diag.Store // nil: there is none
	// NICs are all that there are, and Clerk has what they used; nil: nothing is metered.
	NICs     *registry.Table
	Clerk    *meter.Clerk
	Machines Machines // nil: no NIC is a virtual machine's
	// Stop is called, once, when a tool asks the daemon to end. It is a function, like a context.CancelFunc, because it has no
	// other use than this call.
	Stop func()

	handover time.Duration // instead of the constant; a test's
}

// Server serves doors, for programs, and the control socket. Lock order: mu before a door's mu
// before a process's mu; warned.mu, reserve.mu and those of package diag are leaves.
type Server struct {
	cfg  Config
	log  *slog.Logger
	loop Loop
	uid  int
	home credentials.Household

	control *controlSocket // nil: none could be made
	tenants tenantsSocket
	desk    *diag.Service
	objects Objects       // nil: there are none
	quit    chan struct{} // closed by Close
	turning chan struct{} // holds one for each connection that is being turned away
	warned  limiter
	reserve reserve
	failed  chan error // holds one: why a door of Config.Doors does not accept any more
	names   workloadNames

	keeping atomic.Int32           // how many sessions wait for the next request, see requests.keep
	spare   *[]byte                // the loop's: what it reads the next request into; nil: take one from buffers
	left    [protocol.MaxLeft]byte // likewise: for sure commands

	work sync.WaitGroup

	// listeningMu is held while a session is told whether somebody traces it, which waits
	// for the loop: it is never taken there, nor with mu held.
	listeningMu sync.Mutex

	mu        sync.Mutex
	doors     []*door // the first is that of the daemon itself, and stays
	serving   bool    // Serve has been called
	closed    bool
	conns     map[*protocol.Conn]struct{}
	processes map[protocol.Token]*process
	sessions  map[*session]struct{}
}

// greetingTime is how long a client may take to say who it is.
const greetingTime = 10 * time.Second

// Listen opens the doors, each with its NIC's device tree beside it, and the control socket.
func Listen(cfg Config) (_ *Server, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Events == nil {
		cfg.Events = events.Discard
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, loop: cfg.Engine, uid: os.Geteuid(), home: credentials.Own(),
		quit:      make(chan struct{}),
		turning:   make(chan struct{}, mostTurned),
		failed:    make(chan error, 1),
		conns:     make(map[*protocol.Conn]struct{}),
		processes: make(map[protocol.Token]*process),
		sessions:  make(map[*session]struct{}),
	}
	defer func() {
		if err != nil {
			s.closeDoors()
			s.control.close(s.uid)
			s.reserve.release()
		}
	}()
	s.reserve.fill()
	for _, d := range cfg.Doors {
		opened, err := s.openDoor(d)
		if err != nil {
			return nil, err
		}
		s.doors = append(s.doors, opened)
	}
	desk := diag.Config{
		Loop: s.loop, Clients: guests{s}, Budget: cfg.Budget, Log: s.log, Version: cfg.Version, Owner: s.uid,
		NICs: cfg.NICs, Clerk: cfg.Clerk, Stop: cfg.Stop, Store: cfg.Store,
	}
	var cerr error
	if s.control, cerr = listenControl(s.doors[0].Socket, s.uid); cerr != nil {
		s.log.Warn("there will be no vrdma stop, no pcap and no status of everybody: the control socket cannot be made", "error", cerr)
	} else {
		desk.Control = s.control.path
	}
	s.desk = diag.New(desk)
	for _, d := range s.doors {
		if err := d.writeTree(s.desk); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Sessions is how many conversations hold the daemon open: processes and devices.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.processes) + len(s.sessions)
}

// Serve accepts connections until Close; it then returns nil. If a door fails, it returns
// why, and Close is still to be called.
func (s *Server) Serve() error {
	s.mu.Lock()
	if !s.closed { // Close does not wait for what begins later
		s.serving = true
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			s.serveTools()
		}()
		for _, d := range s.doors {
			s.attend(d)
		}
	}
	s.mu.Unlock()
	select {
	case err := <-s.failed:
		return err
	case <-s.quit:
		return nil
	}
}

// attend accepts connections at d. mu is held, and the server is not closed.
func (s *Server) attend(d *door) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		err := s.accept(d.listener, d)
		if err == nil {
			return
		}
		s.log.Error("a door serves nobody any more", "socket", d.Socket, "error", err)
		if d.NIC != nil && d.Rests {
			return // the other NICs are served
		}
		select {
		case s.failed <- err:
		default:
		}
	}()
}

// serve starts the conversation on u.
func (s *Server) serve(u *net.UnixConn, at entrance) {
	who, err := s.enter(u, at)
	if err != nil {
		s.turnAwayBeside(u, err)
		return
	}
	c := protocol.NewConn(u)
	s.begin(c, &who, func() { s.guarded(c, who, at.converse) }, func() {})
}

// begin has a conversation in a goroutine of its own; who has entered, and leaves with it. over is
// called in any case, when nothing is left of it.
func (s *Server) begin(c *protocol.Conn, who *credentials.Caller, converse, over func()) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		c.UnixConn.Close()
		over()
		leave(who)
		return
	}
	s.conns[c] = struct{}{}
	s.work.Add(1)
	s.mu.Unlock()
	u := c.UnixConn
	go func() {
		defer s.work.Done()
		defer func() {
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
			u.Close()
			c.Release()
			over()
			leave(who)
		}()
		converse()
	}()
}

// Receive has a conversation with a client that is no process of this host, at the door of a NIC:
// its messages come on c, and what else the two share is l's. who is said by whoever answers for it.
// The conversation ends with c, and l is told when it is over. An error says why there is none; c is
// closed then, and l is not told.
func (s *Server) Receive(n *registry.NIC, c *protocol.Conn, l Line, who credentials.Caller) error {
	d := s.doorOf(n)
	if d == nil {
		c.Close()
		return fmt.Errorf("there is no door to NIC %s", n.Name)
	}
	who.Account = d.account(&who)
	err := who.Account.Charge(connectionBill)
	if err == nil {
		if err = who.Account.Charge(relayBill); err != nil {
			who.Account.Refund(connectionBill)
		}
	}
	if err != nil {
		who.Account.Drop()
		s.overdrawn(err)
		c.Close()
		return err
	}
	s.begin(c, &who, func() {
		s.guarded(c, who, func(c *protocol.Conn, who credentials.Caller) error { return d.talk(c, l, who) })
	}, func() {
		who.Account.Refund(relayBill)
		l.Over()
	})
	return nil
}

// Close ends every conversation, removes sockets and device trees and returns when
// nothing is left, or when ctx ends. It may be called again.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		close(s.quit)
	}
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	for _, d := range s.doors {
		d.listener.Close()
		d.shut()
	}
	s.mu.Unlock()
	s.control.close(s.uid)
	s.closeTenants()

	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("some sessions did not end: %w", ctx.Err())
	}
	s.reserve.release()
	return errors.Join(err, s.closeDoors())
}

// closeDoors closes the doors and removes their device trees.
func (s *Server) closeDoors() error {
	s.mu.Lock()
	doors := slices.Clone(s.doors)
	s.mu.Unlock()
	var errs []error
	for _, d := range doors {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}

// Evict closes the connection of a session whose memory faulted; the engine has
// closed the session itself.
func (s *Server) Evict(dev *nic.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ses := range s.sessions {
		if ses.dev == dev {
			ses.line.Close()
		}
	}
}

// Vouch says who has connected at a socket for a NIC that is not its door, and why that one may not
// use the NIC. Nobody is charged.
func (s *Server) Vouch(n *registry.NIC, u *net.UnixConn) (credentials.Caller, error) {
	d := s.doorOf(n)
	if d == nil {
		return credentials.Caller{}, fmt.Errorf("there is no door to NIC %s", n.Name)
	}
	who, err := s.recognise(u, d)
	if err != nil {
		return who, err
	}
	who.Account.Drop()
	who.Account = nil
	if d.Admit == nil || who.Owner {
		return who, nil
	}
	return who, d.Admit(&who, u)
}

// Charge charges b to who, who was vouched for at a NIC: for what it has the daemon hold outside of conversations.
func (s *Server) Charge(n *registry.NIC, who credentials.Caller, b budget.Bill) (refund func(), err error) {
	d := s.doorOf(n)
	if d == nil {
		return nil, fmt.Errorf("there is no door to NIC %s", n.Name)
	}
	account := d.account(&who)
	defer account.Drop() // it is there for as long as it owes something
	if err := account.Charge(b); err != nil {
		s.overdrawn(err)
		return nil, err
	}
	return func() { account.Refund(b) }, nil
}
