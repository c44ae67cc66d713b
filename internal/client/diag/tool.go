package diag

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// readTime is the time limit for a tool to read a finite answer.
const readTime = 30 * time.Second

// traceBill is the charge of a subscription, whose queue is allocated at once.
var traceBill = budget.Bill{budget.Tools: 15, budget.State: traceQueue * 512}

// statusState is the heap for the description of one queue pair, as a record and as JSON.
const statusState = 2 << 10

// Answer answers one request of a tool and reports whether the connection can carry another. At a program socket tools see the
// programs of their own user; at the control socket they see all programs and may stop the daemon.
func (d *Service) Answer(c *protocol.Conn, v *View, req *protocol.ControlRequest) (more bool) {
	switch req.Op {
	case protocol.ControlTop, protocol.ControlUsage, protocol.ControlStatus:
	default:
		if v.Tenants {
			c.SendJSON(protocol.ControlReply{Error: "this socket answers about declared objects and their use only, not " + req.Op})
			return false
		}
	}
	switch req.Op {
	case protocol.ControlStatus:
		return d.sendStatus(c, v) == nil
	case protocol.ControlTrace:
		if err := v.Who.Account.Charge(traceBill); err != nil {
			d.cfg.Clients.Overdrawn(err)
			c.SendJSON(protocol.ControlReply{Error: err.Error()})
			return false
		}
		d.serveTrace(c, d.Trace.Subscribe(req.Label, v.Who, v.All))
		v.Who.Account.Refund(traceBill)
		return false
	case protocol.ControlCount:
		return c.SendJSON(protocol.ConnectionCount{RDMA: d.count(req.Label, v)}) == nil
	case protocol.ControlNICs:
		return c.SendJSON(protocol.NICList{NICs: d.cfg.Clients.NICs(v)}) == nil
	case protocol.ControlTop:
		return d.sendTop(c, v) == nil
	case protocol.ControlUsage:
		return d.sendUsage(c, v, req) == nil
	case protocol.ControlCapture:
		if !v.All {
			c.SendJSON(protocol.ControlReply{Error: d.denied(v.Who, "see everybody's packets")})
			return true
		}
		d.serveCapture(c, req)
		return false
	case protocol.ControlReload, protocol.ControlDrain, protocol.ControlMove:
		return d.operate(c, v, req) == nil
	case protocol.ControlStop:
		if !v.All {
			c.SendJSON(protocol.ControlReply{Error: d.denied(v.Who, "stop it")})
			return true
		}
		d.cfg.Log.Info("asked to stop", "pid", v.Who.Pid, "program", v.Who.Program)
		c.SendJSON(protocol.ControlReply{})
		if d.cfg.Stop != nil {
			d.stopOnce.Do(func() { go d.cfg.Stop() })
		}
	default:
		return c.SendJSON(protocol.ControlReply{Error: "unknown request " + req.Op + ": " + syscall.ENOSYS.Error()}) == nil
	}
	return true
}

// sendStatus answers with a status. It can be long, and a tool may not read it, so it is charged while it is in memory.
func (d *Service) sendStatus(c *protocol.Conn, v *View) error {
	sessions := d.visible(v)
	bill := budget.Bill{budget.State: 64 << 10}
	d.looks.of(v.All).look(d.cfg.Loop, func() {
		for _, ses := range sessions {
			bill[budget.State] += 4<<10 + uint64(ses.Device.QPs())*statusState
		}
	})
	if err := v.Who.Account.Charge(bill); err != nil {
		d.cfg.Clients.Overdrawn(err)
		return c.SendJSON(protocol.Status{Error: err.Error()})
	}
	defer v.Who.Account.Refund(bill)
	st := d.status(v, sessions)
	c.SetWriteDeadline(time.Now().Add(readTime))
	defer c.SetWriteDeadline(time.Time{})
	return c.SendJSON(st)
}

// denied returns why a tool at the program socket may not do something, and where it may.
func (d *Service) denied(who *credentials.Caller, what string) string {
	switch {
	case who.UID != d.cfg.Owner && who.UID != 0:
		return "only the daemon's own user may " + what
	case d.cfg.Control == "":
		return fmt.Sprintf("this daemon has no control socket, its log says why; end it with kill %d", os.Getpid())
	}
	return fmt.Sprintf("only the daemon's own user may %s, at the control socket %s, from where the daemon runs and not from a container", what, d.cfg.Control)
}

// serveTrace sends records until the tool disconnects.
func (d *Service) serveTrace(c *protocol.Conn, sub *Subscriber) {
	d.cfg.Clients.Listening()
	defer func() {
		d.Trace.Unsubscribe(sub)
		d.cfg.Clients.Listening()
	}()
	if c.SendJSON(protocol.ControlReply{}) != nil {
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		c.Wait() // the tool sends nothing more: this is its disconnect
	}()
	for {
		select {
		case r := <-sub.Records:
			if c.SendJSON(r) != nil {
				c.Close()
				<-gone
				return
			}
		case <-gone:
			return
		}
	}
}
