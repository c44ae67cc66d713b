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
