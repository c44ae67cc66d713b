package server

import (
	"maps"
	"slices"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/uverbs"
)

// record is a trace record of a process's command in a session.
func record(p *process, session uint64, command string, t time.Time) protocol.TraceRecord {
	return protocol.TraceRecord{Time: t, Session: session, Pid: p.Pid, Program: p.Program, Label: p.Label, Command: command}
}

// tracing tells sessions whether a tool traces them.
type tracing struct {
	srv *Server
	// mu guards session.traced. It is held while a session is updated, which waits for the loop. So it is never taken
	// on the loop, nor with Server.mu held.
	mu sync.Mutex
}

// updateAll is called when a tool has started or ended a trace. A traced program arms its completion queues by command
// and gets no answers ahead, because a trace shows commands.
func (t *tracing) updateAll() {
	processes, all := t.srv.clients.all()
	for _, ses := range all {
		t.update(ses)
	}
	for _, p := range processes {
		if t.srv.desk.Trace.Wants(&p.Caller) {
			t.revoke(p)
		}
	}
}

// revoke revokes the answers ahead of a process. It gets no more of them: GET_EVENT checks whether the process is
// traced.
func (t *tracing) revoke(p *process) {
	p.mu.Lock()
	channels := slices.Collect(maps.Keys(p.channels))
	p.mu.Unlock()
	_ = t.srv.loop.Do(func() { // after the loop has ended nothing is answered
		for _, ses := range channels {
			ses.revoke()
		}
	})
}

// update tells a session whether a tool traces it. A new session calls it after it was added to the clients, where
// updateAll looks, so that no tool is missed.
func (t *tracing) update(ses *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if traced := t.srv.desk.Trace.Wants(&ses.proc.Caller); traced != ses.traced {
		ses.traced = traced
		// An ended session has nothing to trace.
		_ = t.srv.loop.Do(func() {
			if ses.dev.Served() {
				ses.dev.ArmByCommand(traced)
			}
		})
	}
}

// mark records the opening or closing of a device.
func (t *tracing) mark(p *process, session uint64, mark string) {
	if h := &t.srv.desk.Trace; h.Wants(&p.Caller) {
		h.Publish(&p.Caller, record(p, session, mark, time.Now()))
	}
}

// traceCall records a command that has been answered.
func (ses *session) traceCall(c *uverbs.Call, start time.Time) {
	r := record(ses.proc, ses.id, c.Name(), start)
	diag.Outcome(&r, c.Errno, c.Refused(), c.Args, c.Result)
	if ses.mapped != "" {
		r.Result += " " + ses.mapped
	}
	if ses.refused != "" {
		r.Error += " (" + ses.refused + ")"
	}
	ses.srv.desk.Trace.Publish(&ses.proc.Caller, r)
}
