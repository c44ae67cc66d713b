package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/gate"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/tenancy/meter"
)

// Loop is the part of the engine that the server uses: the one goroutine that owns every NIC object.
type Loop interface {
	// Now is the loop's time. It is called on the loop only.
	Now() ib.Time
	// Do runs f on the loop and waits for it. A panic in f is returned as an error. After the loop has ended f does not
	// run, and the error is os.ErrClosed.
	Do(f func()) error
	// Attach makes the loop serve a session's queues; doorbell wakes it. Attach and the methods below are called on the
	// loop only.
	Attach(s *nic.Session, doorbell nic.Doorbell) error
	// Detach undoes Attach.
	Detach(s *nic.Session)
	// Aside are the threads for work that a client's memory may delay. Any goroutine may use them.
	Aside() *memory.Pool
	// Bill charges the loop's next work to a NIC.
	Bill(n *nic.NIC)
	// Wake makes the loop serve a queue pair, as its doorbell would.
	Wake(q *nic.QP)
	// AddFaults makes the plan of a process that uses a NIC, JoinFaults adds a session of the process, and RemoveFaults
	// ends the plan.
	AddFaults(n *nic.NIC, rules []fault.Named) *fault.Plan
	JoinFaults(s *nic.Session, p *fault.Plan)
	RemoveFaults(p *fault.Plan)
	// Watch makes the loop serve a connection of a NIC's client; Unwatch undoes it.
	Watch(fd int, n *nic.NIC, l loopHandler) error
	Unwatch(fd int)
	// Pause makes the loop ignore a connection; Resume undoes it. Any goroutine may call them.
	Pause(fd int)
	Resume(fd int) error
	// Look makes the loop poll the mailbox of a connection, unless too many are open, and reports whether it does.
	// Leave undoes it.
	Look(fd int, b loopBox) bool
	Leave(fd int)
	// SetTap, LinkCounters and Peers are for diagnosis, see diag.Loop.
	SetTap(t *roce.Tap)
	LinkCounters() roce.Counters
	Peers() ([]peers.Status, peers.Counters)
	// LoopOf returns the number of the loop that serves a session.
	LoopOf(s *nic.Session) int
}

// A loopHandler serves a connection on the loop. It is an alias, as engine.Handler is, so that both are one type and an
// engine.Engine is a Loop.
type loopHandler = interface {
	Serve()
	Fail(err error)
}

// A loopBox is engine.Mailbox, likewise.
type loopBox = interface {
	loopHandler
	Asked() bool
	Shut() bool
}

// Guests knows the virtual machines that have NICs.
type Guests interface {
	// Guests returns their names.
	Guests() map[*registry.NIC]string
}

// Config is the configuration of a Server.
type Config struct {
	// Listeners are the listeners from the start, at least one. The path of the first determines the control socket's.
	Listeners []Listener
	Engine    Loop
	Log       *slog.Logger
	Version   string // of the program, for status and messages
	// Budget bounds what users can make the daemon hold; nil: nothing is bounded.
	Budget *budget.Ledger
	// Events records limits that users reach, at most once a second for each kind of a tenant; callers that are not
	// admitted; programs that open and close the device of a declared NIC. nil: nothing is recorded.
	Events events.Sink
	Store  diag.Store // nil: there is none
	// NICs are all NICs, and Collector has their usage; nil: nothing is metered.
	NICs      *registry.Table
	Collector *meter.Collector
	Guests    Guests // nil: no NIC is a virtual machine's
	// ContainerTakeover: a daemon of the same user that differs in its root directory may take over. It is served nothing else.
	ContainerTakeover bool
	// Inherited are sockets of another daemon, by path, which this one continues; nil: there are none.
	Inherited Inherited
	// Stop is called once, when a tool requests the end of the daemon. It is a function, like a context.CancelFunc,
	// because it has no other use than this call.
	Stop func()
	// Operation is what else the daemon's owner can ask of the whole daemon; nil: nothing.
	Operation diag.Operation

	handover time.Duration // replaces the constant in tests
}

// Server serves listeners, for programs, and the control socket. Its parts own their state.
//
// Lock order: tracing.mu is taken first, and never on the loop. Then mu, listeners.mu, listener.attaching, listener.mu,
// clients.mu, process.mu. Locks of limiters, of the reserve, of workload names and of package diag are leaves.
type Server struct {
	cfg       Config
	log       *slog.Logger
	loop      Loop
	faults    faultLog
	admission *admission
	acceptor  acceptor
	listeners listenerSet
	clients   clients
	tracing   tracing
	draining  atomic.Bool
	names     workloadNames

	control *controlSocket // nil: none could be made
	tenants tenantsSocket
	desk    *diag.Service
	tools   tools
	moves   moves
	quit    chan struct{} // closed by Close
	failed  chan error    // holds one: why a listener of Config.Listeners does not accept any more

	keeping atomic.Int32           // how many sessions wait for the next request, see requests.keep
	spare   *[]byte                // the loop's: the buffer for the next request; nil: take one from buffers
	left    [protocol.MaxLeft]byte // likewise: for sure commands

	work sync.WaitGroup // goroutines that Close waits for

	inherits atomic.Bool // sockets and device trees are another daemon's, until it has handed over

	gate   gate.Gate
	paused bool // the loop's: it reads no requests, see freeze.go

	mu      sync.Mutex // guards the fields below
	serving bool       // Serve has been called
	closed  bool
	unlink  []*net.UnixListener         // inherited sockets whose files go with the daemon, once they are this daemon's
	conns   map[*protocol.Conn]endpoint // of those that have not said hello, where they connected
}

// Inherited are the sockets of another daemon.
type Inherited interface {
	// Listener returns the socket at a path, which the caller closes; nil: there is none. kept: the service manager
	// keeps it when the daemon ends.
	Listener(path string) (f *os.File, kept bool)
}

// inherit returns the socket at a path that another daemon has left; nil: there is none. kept: it belongs to the service manager.
func (s *Server) inherit(path string) (u *net.UnixListener, kept bool, err error) {
	if s.cfg.Inherited == nil {
		return nil, false, nil
	}
	f, kept := s.cfg.Inherited.Listener(path)
	if f == nil {
		return nil, false, nil
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, false, fmt.Errorf("the inherited socket %s: %w", path, err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, false, fmt.Errorf("the inherited socket %s is no unix socket", path)
	}
	// While the other daemon runs, the path is its own. thawing.serve changes that.
	u.SetUnlinkOnClose(false)
	if !kept {
		s.mu.Lock()
		s.unlink = append(s.unlink, u)
		s.mu.Unlock()
	}
	return u, kept, nil
}

// greetingTime bounds how long a client may take to send its hello.
const greetingTime = 10 * time.Second

// Listen opens the listeners, each with its NIC's device tree beside it, and the control socket.
func Listen(cfg Config) (_ *Server, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Events == nil {
		cfg.Events = events.Discard
	}
	s := &Server{
		cfg: cfg, log: cfg.Log, loop: cfg.Engine, admission: newAdmission(&cfg),
		quit:   make(chan struct{}),
		failed: make(chan error, 1),
		conns:  make(map[*protocol.Conn]endpoint),
	}
	s.inherits.Store(cfg.Inherited != nil)
	s.acceptor = acceptor{srv: s, rejecting: make(chan struct{}, mostRejections)}
	s.clients = clients{processes: make(map[protocol.Token]*process), sessions: make(map[*session]struct{})}
	s.tracing.srv, s.tenants.srv, s.tools.srv = s, s, s
	defer func() {
		if err != nil {
			s.closeListeners()
			s.control.close(s.admission.uid)
			s.acceptor.reserve.release()
		}
	}()
	s.acceptor.reserve.fill()
	for _, d := range cfg.Listeners {
		opened, err := s.openListener(d)
		if err != nil {
			return nil, err
		}
		s.listeners.add(opened)
	}
	desk := diag.Config{
		Loop: s.loop, Clients: clientList{s}, Budget: cfg.Budget, Log: s.log, Version: cfg.Version, Owner: s.admission.uid,
		NICs: cfg.NICs, Collector: cfg.Collector, Stop: cfg.Stop, Operation: cfg.Operation, Store: cfg.Store,
	}
	var cerr error
	if s.control, cerr = s.listenControl(s.listeners.first().Socket); cerr != nil {
		s.log.Warn("there will be no vrdma stop, no pcap and no status of everybody: the control socket cannot be made", "error", cerr)
	} else {
		desk.Control = s.control.path
	}
	s.desk = diag.New(desk)
	for _, d := range s.listeners.all() {
		if err := d.writeTree(s.desk); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Sessions is the number of processes and open devices, which keep an ephemeral daemon running.
func (s *Server) Sessions() int { return s.clients.count() }

// Serve accepts connections until Close and returns nil. If a listener fails, Serve returns why, and Close must still
// be called.
func (s *Server) Serve() error {
	s.mu.Lock()
	if !s.closed { // Close does not wait for goroutines that start later
		s.serving = true
		s.work.Add(1)
		go func() {
			defer s.work.Done()
			s.serveTools()
		}()
		for _, d := range s.listeners.all() {
			s.acceptAt(d)
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

// acceptAt accepts connections at d. mu is held, and the server is not closed.
func (s *Server) acceptAt(d *listener) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		err := s.acceptor.accept(d.socket, d)
		if err == nil {
			return
		}
		s.log.Error("a listener does not accept connections any more", "socket", d.Socket, "error", err)
		if d.NIC != nil && d.Rests {
			return // the other NICs are still served
		}
		select {
		case s.failed <- err:
		default:
		}
	}()
}

// serve starts the goroutine of a connection.
func (s *Server) serve(u *net.UnixConn, at endpoint) {
	who, err := s.admission.enter(u, at)
	if err != nil {
		s.acceptor.rejectAside(u, err)
		return
	}
	c := protocol.NewConn(u)
	s.start(c, at, &who, func() { s.guarded(c, who, at.converse) }, func() {})
}

// start runs converse in its own goroutine. The caller is admitted already, and leaves when converse returns. over is
// always called, last. at is where the client will say hello; nil: it has done so.
func (s *Server) start(c *protocol.Conn, at endpoint, who *credentials.Caller, converse, over func()) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		c.UnixConn.Close()
		over()
		leave(who)
		return
	}
	s.conns[c] = at
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

// Receive serves a client that is no process of this host, at the listener of a NIC. Its messages come on c, and l is
// what else the two share. The caller vouches for who. The conversation ends with c, and l.Over is called at its end.
// After an error c is closed, and l.Over is not called.
func (s *Server) Receive(n *registry.NIC, c *protocol.Conn, client ClientEnd, who credentials.Caller) error {
	d := s.listeners.of(n)
	if d == nil {
		c.Close()
		return fmt.Errorf("there is no listener for NIC %s", n.Name)
	}
	if err := s.enterClient(d, &who); err != nil {
		c.Close()
		return err
	}
	s.startClient(d, c, client, who)
	return nil
}

// enterClient charges the connection of a client that is no process of this host. endClient undoes it.
func (s *Server) enterClient(d *listener, who *credentials.Caller) error {
	who.Account = d.account(who)
	err := who.Account.Charge(connectionBill)
	if err == nil {
		if err = who.Account.Charge(relayBill); err != nil {
			who.Account.Refund(connectionBill)
		}
	}
	if err != nil {
		who.Account.Drop()
		s.admission.overdrawn(err)
	}
	return err
}

// endClient is called last for the connection of such a client; leave does the rest.
func endClient(client ClientEnd, who *credentials.Caller) {
	if client.Number() != 0 {
		who.Account.Refund(relayBill)
	}
	client.Over()
}

// startClient serves the connection of such a client, which has not said hello.
func (s *Server) startClient(d *listener, c *protocol.Conn, client ClientEnd, who credentials.Caller) {
	at := clientEndpoint{d, client}
	s.start(c, at, &who, func() { s.guarded(c, who, at.converse) }, func() { endClient(client, &who) })
}

// A clientEndpoint is where a client that is no process of this host has connected.
type clientEndpoint struct {
	*listener
	client ClientEnd
}

// converse implements endpoint.
func (at clientEndpoint) converse(c *protocol.Conn, who credentials.Caller) error {
	return at.talk(c, at.client, who)
}

// Close ends every conversation, removes sockets and device trees, and returns when nothing is left, or when ctx ends.
// It may be called again.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		close(s.quit)
	}
	s.closed = true
	for c := range s.conns {
		c.Close()
	}
	for _, d := range s.listeners.all() {
		d.socket.Close()
		d.shut()
	}
	s.mu.Unlock()
	s.control.close(s.admission.uid)
	s.tenants.close()

	done := make(chan struct{})
	go func() { s.work.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("some sessions did not end: %w", ctx.Err())
	}
	s.acceptor.reserve.release()
	return errors.Join(err, s.closeListeners())
}

// closeListeners closes the listeners and removes their device trees.
func (s *Server) closeListeners() error {
	all := s.listeners.all()
	var errs []error
	for _, d := range all {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}

// Evict closes the connection of a session whose memory faulted. The engine has closed the session itself.
func (s *Server) Evict(dev *nic.Session) { s.clients.closeSession(dev) }

// Vouch identifies the peer at another socket of a NIC than its listener, and returns why the peer may not use the NIC.
// No account is charged.
func (s *Server) Vouch(n *registry.NIC, u *net.UnixConn) (credentials.Caller, error) {
	d := s.listeners.of(n)
	if d == nil {
		return credentials.Caller{}, fmt.Errorf("there is no listener for NIC %s", n.Name)
	}
	who, err := s.admission.recognise(u, d)
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

// Charge charges b to a caller that was vouched for at a NIC, for what it holds outside of conversations.
func (s *Server) Charge(n *registry.NIC, who credentials.Caller, b budget.Bill) (refund func(), err error) {
	d := s.listeners.of(n)
	if d == nil {
		return nil, fmt.Errorf("there is no listener for NIC %s", n.Name)
	}
	account := d.account(&who)
	defer account.Drop() // it exists as long as something is charged to it
	if err := account.Charge(b); err != nil {
		s.admission.overdrawn(err)
		return nil, err
	}
	return func() { account.Refund(b) }, nil
}
