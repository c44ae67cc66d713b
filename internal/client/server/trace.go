package server

import (
	"maps"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/uverbs"
)

// record is a trace record of what p did in a session.
func record(p *process, session uint64, command string, t time.Time) protocol.TraceRecord {
	return protocol.TraceRecord{Time: t, Session: session, Pid: p.Pid, Program: p.Program, Label: p.Label, Command: command}
}

// listening is called when a tool has begun to listen to traces, or has ended. A program that
// somebody traces arms its completion queues by command, and is told nothing ahead: a trace
// shows commands.
func (s *Server) listening() {
	s.mu.Lock()
	all := make([]*session, 0, len(s.sessions))
	for ses := range s.sessions {
		all = append(all, ses)
	}
	processes := slices.Collect(maps.Values(s.processes))
	s.mu.Unlock()
	for _, ses := range all {
		s.listen(ses)
	}
	for _, p := range processes {
		if s.desk.Trace.Wants(&p.Caller) {
			s.revoke(p)
		}
	}
}

// revoke takes back what a process was told ahead. It is told nothing more: whoever answers
// GET_EVENT asks whether the process is traced.
func (s *Server) revoke(p *process) {
	p.mu.Lock()
	channels := slices.Collect(maps.Keys(p.channels))
	p.mu.Unlock()
	_ = s.loop.Do(func() { // a loop that has ended answers nobody
		for _, ses := range channels {
			ses.revoke()
		}
	})
}

// listen tells a session whether somebody traces it. A new session calls it after it was added
// to Server.sessions, where listening looks, so no tool is missed.
func (s *Server) listen(ses *session) {
	s.listeningMu.Lock()
	defer s.listeningMu.Unlock()
	if traced := s.desk.Trace.Wants(&ses.proc.Caller); traced != ses.traced {
		ses.traced = traced
		// A session that is gone has nothing to show any more.
		_ = s.loop.Do(func() {
			if ses.dev.Served() {
				ses.dev.ArmByCommand(traced)
			}
		})
	}
}

// mark records the opening or closing of a device.
func (s *Server) mark(p *process, session uint64, mark string) {
	if h := &s.desk.Trace; h.Wants(&p.Caller) {
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
