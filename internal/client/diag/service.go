package diag

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/device/sysfs"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/tenancy/meter"
)

// Loop is the interface of the engine for queries.
type Loop interface {
	// Do runs f on the loop and waits for it. A panic in f comes back as an error.
	Do(f func()) error
	// SetTap starts recording every packet; nil stops it. This and the following methods are called only on the loop.
	SetTap(t *roce.Tap)
	// LinkCounters returns the counters of traffic with other hosts.
	LinkCounters() roce.Counters
	// LoopOf returns the number of the loop that serves a session.
	LoopOf(s *nic.Session) int
	// Peers returns the known other hosts.
	Peers() ([]peers.Status, peers.Counters)
}

// Clients are the clients of the daemon; package server implements it.
type Clients interface {
	Sessions() []Session
	Programs() []Program
	// Recount updates the charges of every program to its current usage.
	Recount()
	// NICs returns the NICs that a view's caller may open, or all.
	NICs(v *View) []protocol.NICSocket
	// Containers returns the names of the containers and virtual machines that have NICs.
	Containers() map[*registry.NIC]string
	// Listening is called when a tool has started or stopped a trace.
	Listening()
	// Overdrawn reports that a tool has reached a limit.
	Overdrawn(err error)
	// Administers reports whether the view's caller administers a tenant.
	Administers(v *View, tenant string) bool
}

// Store is the store of declared objects.
type Store interface {
	// StoreStatus returns the state of the store.
	StoreStatus() *protocol.StoreStatus
}

// A Session is an open device.
type Session struct {
	ID       uint64
	Of       *credentials.Caller
	NIC      *registry.NIC
	Device   *nic.Session
	Opened   time.Time
	Commands uint64
}

// A Program is a served process.
type Program struct {
	Of  *credentials.Caller
	NIC *registry.NIC
	CM  *rdmacm.Client // nil: it does not use rdma_cm
}

// Config has the dependencies of a Service.
type Config struct {
	Loop      Loop
	Clients   Clients
	Budget    *budget.Ledger // nil: no limits
	NICs      *registry.Table
	Collector *meter.Collector // nil: no metering
	Log       *slog.Logger
	Version   string // version of the program
	Owner     int    // uid of the daemon
	// Control is the path of the control socket; "": none.
	Control string
	Store   Store // nil: none
	// Stop is called once, when the owner asks the daemon to end; nil: it does not end. It is a function like a
	// context.CancelFunc, because it has no other use.
	Stop func()
	// Operation is what else the owner can ask of the whole daemon; nil: nothing.
	Operation Operation
}

// A Service answers queries. trace.mu, refused.mu, mu and the locks of looks are leaves in the lock order.
type Service struct {
	Trace   Hub
	Refused Refusals

	cfg       Config
	started   time.Time
	looks     looks
	stopOnce  sync.Once
	capturing atomic.Bool

	mu      sync.Mutex
	counted map[string]uint64 // guarded by mu; connections of ended processes, by label
}

// New returns a Service.
func New(c Config) *Service { return &Service{cfg: c, started: time.Now()} }

// A View is the caller of a query and what it may see.
type View struct {
	Who  *credentials.Caller
	Conn syscall.Conn // its connection
	All  bool         // the daemon's owner at the control socket: sees everything
	// Tenants: it connected to the tenants' socket, and queries declared objects and the usage of NICs.
	Tenants bool
	// Resident: it is in the daemon's namespaces.
	Resident bool
	NIC      *registry.NIC // the described NIC; nil: the daemon has no default one
	Socket   string        // path of its socket
}

// session reports whether a session is in the view. A caller that does not see everything sees its own user's sessions of its NIC.
func (v *View) session(s *Session) bool { return v.All || s.NIC == v.NIC && s.Of.SameUser(v.Who) }

func (v *View) program(p *Program) bool { return v.All || p.NIC == v.NIC && p.Of.SameUser(v.Who) }

// Counters returns a NIC's counters for its sysfs tree.
func (d *Service) Counters(n *registry.NIC) []sysfs.Counter { return d.counters(n, &d.looks.tree) }

func (d *Service) counters(n *registry.NIC, t *throttle) []sysfs.Counter {
	var c nic.Counters
	var l roce.Counters
	t.look(d.cfg.Loop, func() {
		c = n.Counters()
		if n.Network == registry.HostNetwork { // only the host's NICs include traffic with other hosts
			l = d.cfg.Loop.LinkCounters()
		}
	})
	return sysfs.Counters(c, l)
}
