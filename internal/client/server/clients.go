package server

import (
	"maps"
	"slices"
	"sync"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
)

// clients are the processes that the server knows, and their sessions.
type clients struct {
	mu        sync.Mutex // guards the fields below
	processes map[protocol.Token]*process
	sessions  map[*session]struct{}
}

// count is the number of processes and sessions.
func (t *clients) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.processes) + len(t.sessions)
}

// all returns the processes and the sessions.
func (t *clients) all() ([]*process, []*session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.processes)), slices.Collect(maps.Keys(t.sessions))
}

func (t *clients) add(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.processes[p.token] = p
}

func (t *clients) remove(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.processes, p.token)
}

func (t *clients) addSession(ses *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessions[ses] = struct{}{}
}

func (t *clients) removeSession(ses *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions, ses)
}

// closeSession closes the connection of a device's session.
func (t *clients) closeSession(dev *nic.Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ses := range t.sessions {
		if ses.dev == dev {
			ses.client.Close()
		}
	}
}

// using returns the processes that use a NIC, by process number.
func (t *clients) using(n *registry.NIC) (list []*process) {
	all, _ := t.all()
	for _, p := range all {
		if p.nic == n {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *process) int { return a.Pid - b.Pid })
	return list
}

// requests returns the requests of all sessions and channels.
func (t *clients) requests() (out []*requests) {
	processes, _ := t.all()
	for _, p := range processes {
		p.mu.Lock()
		for ses := range p.sessions {
			if ses.requests != nil {
				out = append(out, ses.requests)
			}
		}
		for ses := range p.channels {
			if ses.requests != nil {
				out = append(out, ses.requests)
			}
		}
		p.mu.Unlock()
	}
	return out
}

// settled reports whether no request waits for a session's goroutine. The gate is closed. Sessions of a program that is away have
// no goroutine any more (depart.go).
func (t *clients) settled() bool {
	return !slices.ContainsFunc(t.requests(), func(r *requests) bool { return r.busy.Load() && !r.ended.Load() })
}

// nameOf is the name that people know a device by.
func (t *clients) nameOf(n *nic.NIC) string {
	processes, _ := t.all()
	for _, p := range processes {
		if p.nic.Device == n {
			return p.nic.Name
		}
	}
	return n.Name
}

// recount charges every process for the registered pages that it has now. A process takes deregistered pages out of its
// memfd later, without telling the daemon.
func (t *clients) recount() {
	processes, _ := t.all()
	for _, p := range processes {
		p.space.Recount()
	}
}
