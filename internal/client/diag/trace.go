package diag

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// A Hub distributes trace records to subscribed tools. Without a subscriber, a command costs one atomic load. The loop calls
// Wants, which must not wait for a holder of mu.
type Hub struct {
	subs atomic.Pointer[[]*Subscriber] // lists are immutable
	mu   sync.Mutex                    // held while subs is replaced, and by Publish
}

// A Subscriber is one tool. A slow tool loses records and gets their number; it never slows down a program.
type Subscriber struct {
	// Records are the tool's records.
	Records chan protocol.TraceRecord

	label string
	who   *credentials.Caller
	all   bool   // may see all programs
	lost  uint64 // guarded by the hub's mu
}

const traceQueue = 4096

// Subscribe adds a tool for the programs with a label; "" selects all that it may see.
func (h *Hub) Subscribe(label string, who *credentials.Caller, all bool) *Subscriber {
	s := &Subscriber{label: label, who: who, all: all, Records: make(chan protocol.TraceRecord, traceQueue)}
	h.mu.Lock()
	defer h.mu.Unlock()
	more := append(slices.Clone(h.list()), s)
	h.subs.Store(&more)
	return s
}

// Unsubscribe reverts Subscribe.
func (h *Hub) Unsubscribe(s *Subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(h.list()), func(o *Subscriber) bool { return o == s })
	h.subs.Store(&others)
}

func (h *Hub) list() []*Subscriber {
	if l := h.subs.Load(); l != nil {
		return *l
	}
	return nil
}

func (s *Subscriber) wants(p *credentials.Caller) bool {
	return (s.all || s.who.NIC == p.NIC && s.who.SameUser(p)) && (s.label == "" || s.label == p.Label)
}

// Wants reports whether a tool traces p.
func (h *Hub) Wants(p *credentials.Caller) bool {
	for _, s := range h.list() {
		if s.wants(p) {
			return true
		}
	}
	return false
}

// Publish passes a record of p to the tools that trace it.
func (h *Hub) Publish(p *credentials.Caller, r protocol.TraceRecord) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.list() {
		if !s.wants(p) {
			continue
		}
		r.Lost = s.lost
		select {
		case s.Records <- r:
			s.lost = 0
		default:
			s.lost++
		}
	}
}

// Outcome completes the record of a command that began at r.Time.
func Outcome(r *protocol.TraceRecord, errno syscall.Errno, refused bool, args, result string) {
	r.Duration, r.Args, r.Result = time.Since(r.Time), args, result
	if errno != 0 {
		r.Result, r.Errno, r.Error, r.Refused = "", int(errno), errnoName(errno), refused
	}
}

// errnoName returns the common name: ENOTSUP has the same number as EOPNOTSUPP on Linux.
func errnoName(e syscall.Errno) string {
	if e == syscall.EOPNOTSUPP {
		return "EOPNOTSUPP"
	}
	return unix.ErrnoName(e)
}

// Refusals counts unsupported commands of programs.
type Refusals struct {
	mu     sync.Mutex
	counts map[string]uint64 // guarded by mu
}

// maxRefusals limits the number of names, because clients can invent some.
const maxRefusals = 256

// Count counts one.
func (r *Refusals) Count(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = make(map[string]uint64)
	}
	if _, known := r.counts[name]; known || len(r.counts) < maxRefusals {
		r.counts[name]++
	}
}

func (r *Refusals) snapshot() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}
