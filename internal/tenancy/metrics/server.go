package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/tenancy/meter"
)

// Source is where the numbers come from. Its methods may be called at any time, by several goroutines.
type Source interface {
	// Totals are what tenants have used until now.
	Totals() []meter.Total
	// Device is the device's counters.
	Device() Device
	// NICs is the number of virtual NICs.
	NICs() int
	// Waits are how long requests waited for the loop, by the class of their NIC.
	Waits() map[string]nic.Waits
	// StoreAge is the time since the last answer of a shared store; 0: this host has a store of its own.
	StoreAge() time.Duration
	// UsageUnwritten is how long the usage file could not be written; 0: it is up to date.
	UsageUnwritten() time.Duration
	// Tight reports whether memory is short, so that users have smaller limits.
	Tight() bool
	// Generation is the revision of the store whose policies are in force.
	Generation() int64
	// Stalls is how often a page fault stopped the loop.
	Stalls() uint64
	// Loops describes the loops, and says how many sessions have moved between them.
	Loops() (list []Loop, moves uint64)
	// Processor is the processor time of the daemon, all threads.
	Processor() time.Duration
	// Alive waits for the loop to answer.
	Alive() error
	// Quotas are what tenants hold, and their limits.
	Quotas() []Quota
	// Hosts counts the hosts of a shared store by state.
	Hosts() map[string]int
	// Ready says why programs are not served; nil: they are.
	Ready() error
}

// Config is the configuration of a Server.
type Config struct {
	Source
	Started time.Time
	Version string
	PerNIC  bool // NICs are a label
	// Socket is the socket of another daemon, which the server continues and closes; nil: it makes one.
	Socket *os.File
}

// Limits for scrapers.
const (
	readTime    = 5 * time.Second
	writeTime   = 30 * time.Second
	idleTime    = 2 * time.Minute
	closeTime   = time.Second
	headerBytes = 16 << 10
	// atOnce bounds the requests that are answered at the same time. Others get an error.
	atOnce = 8
	// mostConnections bounds the connections, which are descriptors of the daemon. Others are closed at once.
	mostConnections = 64
)

// aliveTime is how long the loop may take to answer.
var aliveTime = 2 * time.Second

// A Server answers scrapers.
type Server struct {
	src   Config
	asked string // the address as Listen got it
	http  *http.Server
	l     net.Listener
	busy  chan struct{} // holds one for each request in progress
	ended chan struct{}

	mu     sync.Mutex // held while a page is made
	labels *labeller  // nil: NICs are no label
}

// Listen starts to serve at addr, HOST:PORT or :PORT.
func Listen(addr string, src Config) (*Server, error) {
	l, err := src.listen(addr)
	if err != nil {
		return nil, fmt.Errorf("metrics at %s: %w; choose another HOST:PORT with --metrics", addr, err)
	}
	s := &Server{src: src, asked: addr, l: l, busy: make(chan struct{}, atOnce), ended: make(chan struct{})}
	if src.PerNIC {
		s.labels = &labeller{}
	}
	s.http = &http.Server{
		Handler: s.Handler(), ReadTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytes,
		ErrorLog: log.New(io.Discard, "", 0), // scrapers' errors are not logged
	}
	go func() {
		defer close(s.ended)
		s.http.Serve(&bounded{Listener: l})
	}()
	return s, nil
}

// bounded is a listener with at most mostConnections open connections: every user of the machine can connect.
type bounded struct {
	net.Listener
	open atomic.Int64
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if b.open.Add(1) <= mostConnections {
			return &counted{Conn: c, closed: sync.OnceFunc(func() { b.open.Add(-1) })}, nil
		}
		b.open.Add(-1)
		c.Close()
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	closed func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

// listen returns the socket of another daemon, or a new one.
func (c *Config) listen(addr string) (net.Listener, error) {
	if c.Socket == nil {
		return net.Listen("tcp", addr)
	}
	defer c.Socket.Close()
	return net.FileListener(c.Socket)
}

// Descriptor is the descriptor of the socket, which stays the server's.
func (s *Server) Descriptor() (fd int, err error) {
	c, ok := s.l.(syscall.Conn)
	if !ok {
		return -1, syscall.EBADF
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(of uintptr) { fd = int(of) })
	return fd, err
}

// Asked is the address that Listen got.
func (s *Server) Asked() string { return s.asked }

// Addr is the address of the server.
func (s *Server) Addr() net.Addr { return s.l.Addr() }

// Close closes the server. Requests in progress have a moment to end.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.http.Close()
	}
	<-s.ended
	return err
}

// Handler is the HTTP handler.
func (s *Server) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /metrics", s.few(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		w.Write(s.Page())
	}))
	m.HandleFunc("GET /healthz", s.few(func(w http.ResponseWriter, _ *http.Request) { answer(w, s.alive()) }))
	m.HandleFunc("GET /readyz", s.few(func(w http.ResponseWriter, _ *http.Request) {
		err := s.src.Ready()
		if err == nil {
			err = s.alive()
		}
		answer(w, err)
	}))
	m.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "vrdma: /metrics, /healthz, /readyz\n")
	})
	return m
}

// few bounds the requests that are answered at the same time.
func (s *Server) few(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.busy <- struct{}{}:
			defer func() { <-s.busy }()
			f(w, r)
		default:
			http.Error(w, "too many at a time", http.StatusServiceUnavailable)
		}
	}
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	io.WriteString(w, "ok\n")
}

// alive checks that the loop answers soon.
func (s *Server) alive() error {
	done := make(chan error, 1)
	go func() { done <- s.src.Alive() }()
	select {
	case err := <-done:
		return err
	case <-time.After(aliveTime):
		return errors.New("the loop does not answer")
	}
}

// Page is the current page.
func (s *Server) Page() []byte {
	totals, device := s.src.Totals(), s.src.Device()
	s.mu.Lock()
	list := groups(totals, s.labels)
	s.mu.Unlock()
	var p page
	p.build(s.src.Version)
	p.process()
	p.family("process_cpu_seconds_total", "counter", "Processor time of the daemon, all threads.")
	p.sample(s.src.Processor().Seconds())
	p.family("vrdma_loop_stalls_total", "counter", "Page faults that stopped the daemon's loop for 10 ms or longer.")
	p.sample(float64(s.src.Stalls()))
	p.loops(s.src.Loops())
	p.family("process_start_time_seconds", "gauge", "Start time of the daemon, in seconds since the epoch.")
	p.sample(float64(s.src.Started.UnixMilli()) / 1000)
	p.family("vrdma_nics", "gauge", "Virtual NICs.")
	p.sample(float64(s.src.NICs()))
	p.family("vrdma_store_age_seconds", "gauge", "Time since the last contact with a shared store; 0 for a file.")
	p.sample(s.src.StoreAge().Seconds())
	p.family("vrdma_usage_unwritten_seconds", "gauge", "Time since the usage of tenants could not be written to its file: a daemon that ends now loses what it counted. 0: the file is up to date.")
	p.sample(s.src.UsageUnwritten().Seconds())
	p.family("vrdma_memory_pressure", "gauge", "1 while memory is short and users have smaller limits, else 0.")
	tight := 0.0
	if s.src.Tight() {
		tight = 1
	}
	p.sample(tight)
	p.family("vrdma_policy_generation", "gauge", "Revision of the store whose policies are in force.")
	p.sample(float64(s.src.Generation()))
	p.waits(s.src.Waits())
	hosts := s.src.Hosts()
	p.hosts(hosts, slices.Sorted(maps.Keys(hosts)))
	p.quotas(s.src.Quotas())
	p.device(&device)
	p.tenants(list)
	return p.Bytes()
}
