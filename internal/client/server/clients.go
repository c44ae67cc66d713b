package server

import (
	"maps"
	"slices"
	"sync"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
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

// recount charges every process for the registered pages that it has now. A process takes deregistered pages out of its
// memfd later, without telling the daemon.
func (t *clients) recount() {
	processes, _ := t.all()
	for _, p := range processes {
		p.space.Recount()
	}
}
