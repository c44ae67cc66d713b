package inspect

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"vrdma/internal/budget"
	"vrdma/internal/caller"
	"vrdma/internal/protocol"
)

// How long a tool may take to ask, and to read an answer that has an end.
const (
	askTime  = 10 * time.Second
	readTime = 30 * time.Second
)

// A subscription's queue is made at once, and fills while nobody reads.
var traceBill = budget.Bill{budget.Tools: 15, budget.State: traceQueue * 512}

// statusState is the heap that describing one queue pair takes, as a record and as JSON.
const statusState = 2 << 10

// Serve answers a tool until it hangs up. At the program socket tools see the programs of
// their own user; at the control socket they see all and may stop the daemon.
func (d *Desk) Serve(c *protocol.Conn, v View) {
	for {
		var req protocol.ControlRequest
		c.SetReadDeadline(time.Now().Add(askTime))
		if err := c.ReceiveRequest(&req); err != nil {
			if errors.Is(err, protocol.ErrMalformed) {
				c.SendJSON(protocol.ControlReply{Error: err.Error()})
			}
			return
		}
		c.SetReadDeadline(time.Time{})
		switch req.Op {
		case protocol.ControlObjects, protocol.ControlTop, protocol.ControlUsage, protocol.ControlStatus:
		default:
			if !v.Tenants {
				break
			}
			c.SendJSON(protocol.ControlReply{Error: "this socket answers about declared objects and their use only, not " + req.Op})
			return
		}
		switch req.Op {
		case protocol.ControlObjects:
			if d.cfg.Objects == nil {
				c.SendJSON(protocol.ControlReply{Error: "this daemon has no declared objects"})
				return
			}
			if c.SendJSON(protocol.ControlReply{}) == nil {
				d.cfg.Objects(c, &v)
			}
			return
		case protocol.ControlStatus:
			if d.sendStatus(c, &v) != nil {
				return
			}
		case protocol.ControlTrace:
			if err := v.Who.Account.Charge(traceBill); err != nil {
				d.cfg.Overdrawn(err)
				c.SendJSON(protocol.ControlReply{Error: err.Error()})
				return
			}
			d.serveTrace(c, d.Trace.Subscribe(req.Label, v.Who, v.All))
			v.Who.Account.Refund(traceBill)
			return
		case protocol.ControlCount:
			if c.SendJSON(protocol.ConnectionCount{RDMA: d.count(req.Label, &v)}) != nil {
				return
			}
		case protocol.ControlNICs:
			if c.SendJSON(protocol.NICList{NICs: d.cfg.Clients.NICs(&v)}) != nil {
				return
			}
		case protocol.ControlTop:
			if d.sendTop(c, &v) != nil {
				return
			}
		case protocol.ControlUsage:
			if d.sendUsage(c, &v, &req) != nil {
				return
			}
		case protocol.ControlCapture:
			if !v.All {
				c.SendJSON(protocol.ControlReply{Error: d.denied(v.Who, "see everybody's packets")})
				continue
			}
			d.serveCapture(c, req.Outer)
			return
		case protocol.ControlStop:
			if !v.All {
				c.SendJSON(protocol.ControlReply{Error: d.denied(v.Who, "stop it")})
				continue
			}
			d.cfg.Log.Info("asked to stop", "pid", v.Who.Pid, "program", v.Who.Program)
			c.SendJSON(protocol.ControlReply{})
			if d.cfg.Stop != nil {
				d.stopOnce.Do(func() { go d.cfg.Stop() })
			}
		default:
			if c.SendJSON(protocol.ControlReply{Error: "unknown request " + req.Op + ": " + syscall.ENOSYS.Error()}) != nil {
				return
			}
		}
	}
}

// sendStatus answers with a status. It can be long, and a tool that does not read it must
// not hold it for ever: it is charged while it is there.
func (d *Desk) sendStatus(c *protocol.Conn, v *View) error {
	sessions := d.visible(v)
	bill := budget.Bill{budget.State: 64 << 10}
	d.looks.of(v.All).look(d.cfg.Loop, func() {
		for _, ses := range sessions {
			bill[budget.State] += 4<<10 + uint64(ses.Device.QPs())*statusState
		}
	})
	if err := v.Who.Account.Charge(bill); err != nil {
		d.cfg.Overdrawn(err)
		return c.SendJSON(protocol.Status{Error: err.Error()})
	}
	defer v.Who.Account.Refund(bill)
	st := d.status(v, sessions)
	c.SetWriteDeadline(time.Now().Add(readTime))
	defer c.SetWriteDeadline(time.Time{})
	return c.SendJSON(st)
}

// denied says why a tool at the program socket may not do something, and where it may.
func (d *Desk) denied(who *caller.Caller, what string) string {
	switch {
	case who.UID != d.cfg.Owner && who.UID != 0:
		return "only the daemon's own user may " + what
	case d.cfg.Control == "":
		return fmt.Sprintf("this daemon has no control socket, its log says why; end it with kill %d", os.Getpid())
	}
	return fmt.Sprintf("only the daemon's own user may %s, at the control socket %s, from where the daemon runs and not from a container", what, d.cfg.Control)
}

// serveTrace sends records until the tool hangs up.
func (d *Desk) serveTrace(c *protocol.Conn, sub *Subscriber) {
	d.cfg.Listening()
	defer func() {
		d.Trace.Unsubscribe(sub)
		d.cfg.Listening()
	}()
	if c.SendJSON(protocol.ControlReply{}) != nil {
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		c.Wait() // the tool has nothing more to say: this is its end
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
