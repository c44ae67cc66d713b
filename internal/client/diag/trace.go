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

// A Hub hands trace records to the tools that asked for them. While nobody does, a
// command pays one atomic load. Wants is asked on the loop, which must not wait for whoever
// holds mu.
type Hub struct {
	subs atomic.Pointer[[]*Subscriber] // a list is never changed
	mu   sync.Mutex                    // held while subs is replaced, and by Publish
}

// A Subscriber is one tool. A tool that reads too slowly loses records and is told
// how many; it never slows a program down.
type Subscriber struct {
	// Records are what it is sent.
	Records chan protocol.TraceRecord

	label string
	who   *credentials.Caller
	all   bool   // may see everybody's programs
	lost  uint64 // guarded by the hub's mu
}

const traceQueue = 4096

// Subscribe adds a tool that wants the programs with a label; "": all that it may see.
func (h *Hub) Subscribe(label string, who *credentials.Caller, all bool) *Subscriber {
	s := &Subscriber{label: label, who: who, all: all, Records: make(chan protocol.TraceRecord, traceQueue)}
	h.mu.Lock()
	defer h.mu.Unlock()
	more := append(slices.Clone(h.list()), s)
	h.subs.Store(&more)
	return s
}

// Unsubscribe undoes Subscribe.
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

// Wants reports whether anybody listens to p.
func (h *Hub) Wants(p *credentials.Caller) bool {
	for _, s := range h.list() {
		if s.wants(p) {
			return true
		}
	}
	return false
}

// Publish hands a record of p to whoever wants it.
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

// errnoName returns the name that people know: ENOTSUP has the same number on Linux.
func errnoName(e syscall.Errno) string {
	if e == syscall.EOPNOTSUPP {
		return "EOPNOTSUPP"
	}
	return unix.ErrnoName(e)
}

// Refusals counts what programs asked for and we do not support.
type Refusals struct {
	mu     sync.Mutex
	counts map[string]uint64 // guarded by mu
}

// maxRefusals bounds the names, some of which a client can make up.
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
