package diag

import (
	"cmp"
	"slices"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// Operation is what the daemon's owner can ask of the whole daemon.
type Operation interface {
	// Reload reads the configuration again; lines say what has changed and what needs a restart.
	Reload() (lines []string, err error)
	// Drain refuses new programs, or admits them again. Programs that are served go on.
	Drain(on bool)
	// Draining reports whether new programs are refused.
	Draining() bool
	// AuditFile is the path of the audit log; "": none is kept.
	AuditFile() string
	// Loops describes the loops, and says how many sessions have moved between them.
	Loops() (list []protocol.LoopStatus, moves uint64)
	// MoveProcess moves the sessions of a process to another loop.
	MoveProcess(pid, loop int) error
}

// operate answers a request of the owner about the whole daemon.
func (d *Service) operate(c *protocol.Conn, v *View, req *protocol.ControlRequest) error {
	switch {
	case !v.All:
		return c.SendJSON(protocol.ControlReply{Error: d.denied(v.Who, req.Op+" it")})
	case d.cfg.Operation == nil:
		return c.SendJSON(protocol.ControlReply{Error: "this daemon cannot do it"})
	}
	d.cfg.Log.Info("asked to "+req.Op, "pid", v.Who.Pid, "program", v.Who.Program, "off", req.Off)
	var reply protocol.ControlReply
	switch req.Op {
	case protocol.ControlReload:
		lines, err := d.cfg.Operation.Reload()
		if reply.Lines = lines; err != nil {
			reply.Error = err.Error()
		}
	case protocol.ControlDrain:
		d.cfg.Operation.Drain(!req.Off)
	case protocol.ControlMove:
		if err := d.cfg.Operation.MoveProcess(req.Pid, req.Loop); err != nil {
			reply.Error = err.Error()
		}
	}
	return c.SendJSON(reply)
}

// operation adds what the owner sees of the whole daemon to a status.
func (d *Service) operation(st *protocol.Status) {
	if d.cfg.Operation != nil {
		st.Draining, st.Audit = d.cfg.Operation.Draining(), d.cfg.Operation.AuditFile()
		st.Loops, st.Moves = d.cfg.Operation.Loops()
	}
	if d.cfg.Collector != nil {
		st.Usage = d.cfg.Collector.Meter().Path()
	}
	containers := d.cfg.Clients.Containers()
	for _, p := range d.cfg.Clients.Programs() {
		st.Programs = append(st.Programs, protocol.ProgramStatus{NIC: p.NIC.Name, Pid: p.Of.Pid, UID: p.Of.UID, Program: p.Of.Program, Container: containers[p.NIC]})
	}
	slices.SortFunc(st.Programs, func(a, b protocol.ProgramStatus) int {
		return cmp.Or(cmp.Compare(a.NIC, b.NIC), cmp.Compare(a.Pid, b.Pid))
	})
}
