package frontdoor

import (
	"maps"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma/internal/channel"
	"vrdma/internal/uverbs"
)

// A hub hands trace records to the tools that asked for them. While nobody does, a
// command pays one atomic load.
type hub struct {
	listening atomic.Int32

	mu   sync.Mutex
	subs map[*subscriber]struct{} // guarded by mu
}

// A subscriber is one tool. A tool that reads too slowly loses records and is told
// how many; it never slows a program down.
type subscriber struct {
	label   string
	who     *peer
	all     bool // may see everybody's programs
	records chan channel.TraceRecord
	lost    uint64 // guarded by the hub's mu
}

const traceQueue = 4096

func (h *hub) subscribe(label string, who *peer, all bool) *subscriber {
	s := &subscriber{label: label, who: who, all: all, records: make(chan channel.TraceRecord, traceQueue)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = make(map[*subscriber]struct{})
	}
	h.subs[s] = struct{}{}
	h.listening.Add(1)
	return s
}

func (h *hub) unsubscribe(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, s)
	h.listening.Add(-1)
}

func (s *subscriber) wants(p *peer) bool {
	return (s.all || s.who.sameUser(p)) && (s.label == "" || s.label == p.label)
}

// wants reports whether anybody listens to p.
func (h *hub) wants(p *peer) bool {
	if h.listening.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		if s.wants(p) {
			return true
		}
	}
	return false
}

// publish hands a record of p to whoever wants it.
func (h *hub) publish(p *peer, r channel.TraceRecord) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		if !s.wants(p) {
			continue
		}
		r.Lost = s.lost
		select {
		case s.records <- r:
			s.lost = 0
		default:
			s.lost++
		}
	}
}

// traceMark records the opening or closing of the device.
func (ses *session) traceMark(mark string) {
	h := &ses.srv.trace
	if h.wants(&ses.proc.peer) {
		h.publish(&ses.proc.peer, ses.record(mark, time.Now()))
	}
}

func (ses *session) record(command string, t time.Time) channel.TraceRecord {
	p := &ses.proc.peer
	return channel.TraceRecord{
		Time: t, Session: ses.id, Pid: p.pid, Program: p.program, Label: p.label, Command: command,
	}
}

// traceCall records a command that has been answered.
func (ses *session) traceCall(c *uverbs.Call, start time.Time) {
	r := ses.record(c.Name(), start)
	outcome(&r, c.Errno, c.Refused(), c.Args, c.Result)
	if ses.refused != "" {
		r.Error += " (" + ses.refused + ")"
	}
	ses.srv.trace.publish(&ses.proc.peer, r)
}

// outcome completes the record of a command that began at r.Time.
func outcome(r *channel.TraceRecord, errno syscall.Errno, refused bool, args, result string) {
	r.Duration, r.Args, r.Result = time.Since(r.Time), args, result
	if errno != 0 {
		r.Result, r.Errno, r.Error, r.Refused = "", int(errno), errnoName(errno), refused
	}
}

// errnoName is the name that people know: ENOTSUP has the same number on Linux.
func errnoName(e syscall.Errno) string {
	if e == syscall.EOPNOTSUPP {
		return "EOPNOTSUPP"
	}
	return unix.ErrnoName(e)
}

// refusals counts what programs asked for and we do not support.
type refusals struct {
	mu     sync.Mutex
	counts map[string]uint64 // guarded by mu
}

// maxRefusals bounds the names, some of which a client can make up.
const maxRefusals = 256

func (r *refusals) count(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = make(map[string]uint64)
	}
	if _, known := r.counts[name]; known || len(r.counts) < maxRefusals {
		r.counts[name]++
	}
}

func (r *refusals) snapshot() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}
