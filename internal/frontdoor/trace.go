package frontdoor

import (
	"time"

	"vrdma/internal/inspect"
	"vrdma/internal/protocol"
	"vrdma/internal/uverbs"
)

// record is a trace record of what p did in a session.
func record(p *process, session uint64, command string, t time.Time) protocol.TraceRecord {
	return protocol.TraceRecord{Time: t, Session: session, Pid: p.Pid, Program: p.Program, Label: p.Label, Command: command}
}

// listening is called when a tool has begun to listen to traces, or has ended. A program that
// somebody traces arms its completion queues by command: a trace shows commands.
func (s *Server) listening() {
	s.mu.Lock()
	all := make([]*session, 0, len(s.sessions))
	for ses := range s.sessions {
		all = append(all, ses)
	}
	s.mu.Unlock()
	for _, ses := range all {
		s.listen(ses)
	}
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
	inspect.Outcome(&r, c.Errno, c.Refused(), c.Args, c.Result)
	if ses.refused != "" {
		r.Error += " (" + ses.refused + ")"
	}
	ses.srv.desk.Trace.Publish(&ses.proc.Caller, r)
}
