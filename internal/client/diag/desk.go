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

// Loop is the engine as those see it who look.
type Loop interface {
	// Do runs f on the loop and waits for it. A panic in f comes back as an error.
	Do(f func()) error
	// SetTap has every packet recorded; nil ends that. It and the ones below are called
	// on the loop only.
	SetTap(t *roce.Tap)
	// LinkCounters counts what passed to and from other hosts.
	LinkCounters() roce.Counters
	// Peers are the other hosts that are known.
	Peers() ([]peers.Status, peers.Counters)
}

// Clients are those whom the daemon serves; the server knows them.
type Clients interface {
	Sessions() []Session
	Programs() []Program
	// Recount has every program charged for what it holds now.
	Recount()
	// NICs are those that a view's caller may open, or all that there are.
	NICs(v *View) []protocol.NICSocket
	// Containers are the names of the containers and virtual machines that have NICs.
	Containers() map[*registry.NIC]string
	// Listening is called when a tool has begun or ended to listen to a trace.
	Listening()
	// Overdrawn reports that a tool has reached a limit.
	Overdrawn(err error)
	// Administers reports whether the view's caller administers a tenant.
	Administers(v *View, tenant string) bool
}

// Store is the store of declared objects.
type Store interface {
	// StoreStatus is the state of a store that several hosts share; nil: this host has a store of its own.
	StoreStatus() *protocol.StoreStatus
}

// A Session is an opened device.
type Session struct {
	ID       uint64
	Of       *credentials.Caller
	NIC      *registry.NIC
	Device   *nic.Session
	Opened   time.Time
	Commands uint64
}

// A Program is a process that is served.
type Program struct {
	Of  *credentials.Caller
	NIC *registry.NIC
	CM  *rdmacm.Client // nil: it has nothing of the connection manager
}

// Config is what a Desk needs.
type Config struct {
	Loop      Loop
	Clients   Clients
	Budget    *budget.Ledger // nil: nothing is bounded
	NICs      *registry.Table
	Collector *meter.Collector // nil: nothing is metered
	Log       *slog.Logger
	Version   string // of the program
	Owner     int    // uid of the daemon
	// Control is the path of the control socket; "": there is none.
	Control string
	Store   Store // nil: there is none
	// Stop is called, once, when the owner asks the daemon to end; nil: it does not end. It is a function, like a
	// context.CancelFunc, because it has no other use than this call.
	Stop func()
}

// A Desk is where those are answered who look. trace.mu, refused.mu, mu and those of looks
// are leaves in the order of locks.
type Desk struct {
	Trace   Hub
	Refused Refusals

	cfg       Config
	started   time.Time
	looks     looks
	stopOnce  sync.Once
	capturing atomic.Bool

	mu      sync.Mutex
	counted map[string]uint64 // guarded by mu; connections of processes that are gone, by label
}

// New opens a desk.
func New(c Config) *Desk { return &Desk{cfg: c, started: time.Now()} }

// A View is who looks, and from where.
type View struct {
	Who  *credentials.Caller
	Conn syscall.Conn // by which it came
	All  bool         // the daemon's owner at the control socket: sees everybody
	// Tenants: it came in at the tenants' socket, and asks about declared objects, and about
	// what NICs use.
	Tenants bool
	// Resident: it lives where the daemon lives.
	Resident bool
	NIC      *registry.NIC // the device that is described; nil: the daemon has no default one
	Socket   string        // where it is found
}

// session reports whether a session is in the view. Whoever does not see all sees, of the
// NIC that it can reach, the sessions of its own user.
func (v *View) session(s *Session) bool { return v.All || s.NIC == v.NIC && s.Of.SameUser(v.Who) }

func (v *View) program(p *Program) bool { return v.All || p.NIC == v.NIC && p.Of.SameUser(v.Who) }

// Counters reads a NIC's counters for its device tree.
func (d *Desk) Counters(n *registry.NIC) []sysfs.Counter { return d.counters(n, &d.looks.tree) }

func (d *Desk) counters(n *registry.NIC, t *throttle) []sysfs.Counter {
	var c nic.Counters
	var l roce.Counters
	t.look(d.cfg.Loop, func() {
		c = n.Counters()
		if n.Network == registry.HostNetwork { // what passes to and from other hosts is only theirs
			l = d.cfg.Loop.LinkCounters()
		}
	})
	return sysfs.Counters(c, l)
}
