package server

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/printable"
)

// A program may fail on purpose (package fault): the hello of its process carries the rules that `vrdma run --fault` was
// given. They hit its own queue pairs, registrations and connections only, so every program may have some.

// mostRules is how many rules a process may have.
const mostRules = 32

// faultsOf are the rules in a hello.
func faultsOf(h *protocol.Hello) ([]fault.Named, error) {
	rules, err := fault.ParseAll(h.Faults)
	switch {
	case err != nil:
		return nil, refusal(syscall.EINVAL, "VRDMA_FAULT: %s", printable.Text(err.Error()))
	case len(rules) > mostRules:
		return nil, refusal(syscall.EINVAL, "VRDMA_FAULT has %d rules, and a program may have %d", len(rules), mostRules)
	}
	var list []fault.Named
	for i, r := range rules {
		if r.Action.OfNIC() {
			return nil, refusal(syscall.EINVAL, "VRDMA_FAULT: a program cannot have %s, only a NIC: use vrdma fault add", r.Action)
		}
		list = append(list, fault.Named{Name: fmt.Sprintf("run/%d", i+1), Rule: r})
	}
	return list, nil
}

// setFaults gives the process its plan. It runs on the loop.
func (p *process) setFaults(plan *fault.Plan) {
	p.faults = plan
	if p.cm != nil {
		p.cm.Faults = plan
	}
}

// A faultLog logs hits of rules and adds them to traces. The loop hands them over, and a goroutine does the rest.
type faultLog struct {
	mu      sync.Mutex
	waiting []loggedHit // guarded by mu
	lost    int         // guarded by mu: hits that were not logged
	running bool        // guarded by mu

	// Used by the goroutine only.
	since time.Time
	said  int
}

type loggedHit struct {
	nic *nic.NIC
	hit fault.Hit
	at  time.Time
}

const (
	// faultQueue is how many hits may wait to be logged, and faultLines how many are logged in a minute: every program may
	// have faults, and must not fill the disk. Metrics count all of them.
	faultQueue = 8192
	faultLines = 2000
)

// Fault logs a hit. The loop calls it.
func (s *Server) Fault(n *nic.NIC, h fault.Hit) {
	l := &s.faults
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= faultQueue {
		l.lost++
		return
	}
	l.waiting = append(l.waiting, loggedHit{n, h, time.Now()})
	if !l.running {
		l.running = true
		go l.run(s)
	}
}

// run logs hits until none waits.
func (l *faultLog) run(s *Server) {
	for {
		l.mu.Lock()
		list, lost := l.waiting, l.lost
		l.waiting, l.lost = nil, 0
		l.running = len(list) > 0
		l.mu.Unlock()
		if len(list) == 0 {
			return
		}
		for i := range list {
			lost += l.write(s, &list[i])
		}
		if lost > 0 {
			s.log.Info("faults on purpose that are not logged one by one", "hits", lost)
		}
	}
}

// write logs a hit and returns 0, or returns 1 if there were too many.
func (l *faultLog) write(s *Server, h *loggedHit) int {
	if h.at.Sub(l.since) >= time.Minute {
		l.since, l.said = h.at, 0
	}
	h.trace(s)
	if l.said++; l.said > faultLines {
		return 1
	}
	s.log.Info(h.hit.String(), "nic", s.clients.nameOf(h.nic), "pid", h.hit.Of.Pid)
	return 0
}

// trace adds the hit to the traces of its process.
func (h *loggedHit) trace(s *Server) {
	processes, _ := s.clients.all()
	for _, p := range processes {
		if p.Pid == h.hit.Of.Pid && p.nic.Device == h.nic && s.desk.Trace.Wants(&p.Caller) {
			r := record(p, 0, "FAULT", h.at)
			r.Args = h.hit.String()
			s.desk.Trace.Publish(&p.Caller, r)
		}
	}
}
