package frontdoor

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"vrdma/internal/budget"
	"vrdma/internal/channel"
)

// How long a tool may take to ask, and to read an answer that has an end.
const (
	askTime  = 10 * time.Second
	readTime = 30 * time.Second
)

// serveControl answers a tool. At the program socket tools see the programs of their own
// user; at the control socket (privileged) they see all and may stop the daemon.
func (s *Server) serveControl(c *channel.Conn, who peer, privileged bool) error {
	if err := who.account.Charge(toolBill); err != nil {
		s.overdrawn(err)
		return refusal(channel.Errno(err, syscall.EBUSY), "%v", err)
	}
	defer who.account.Refund(toolBill)
	w := welcome()
	if err := c.WriteMessage(w.Append(nil)); err != nil {
		return nil
	}
	for {
		var req channel.ControlRequest
		c.SetReadDeadline(time.Now().Add(askTime))
		if err := c.ReceiveRequest(&req); err != nil {
			if errors.Is(err, channel.ErrMalformed) {
				c.SendJSON(channel.ControlReply{Error: err.Error()})
			}
			return nil
		}
		c.SetReadDeadline(time.Time{})
		switch req.Op {
		case channel.ControlStatus:
			if s.sendStatus(c, &who, privileged) != nil {
				return nil
			}
		case channel.ControlTrace:
			if err := who.account.Charge(traceBill); err != nil {
				s.overdrawn(err)
				c.SendJSON(channel.ControlReply{Error: err.Error()})
				return nil
			}
			s.serveTrace(c, s.trace.subscribe(req.Label, &who, privileged))
			who.account.Refund(traceBill)
			return nil
		case channel.ControlCount:
			if c.SendJSON(channel.ConnectionCount{RDMA: s.countConnections(req.Label, &who, privileged)}) != nil {
				return nil
			}
		case channel.ControlCapture:
			if !privileged {
				c.SendJSON(channel.ControlReply{Error: s.denied(&who, "see everybody's packets")})
				continue
			}
			s.serveCapture(c)
			return nil
		case channel.ControlStop:
			if !privileged {
				c.SendJSON(channel.ControlReply{Error: s.denied(&who, "stop it")})
				continue
			}
			s.log.Info("asked to stop", "pid", who.pid, "program", who.program)
			c.SendJSON(channel.ControlReply{})
			if s.cfg.Stop != nil {
				s.stopOnce.Do(func() { go s.cfg.Stop() })
			}
		default:
			if c.SendJSON(channel.ControlReply{Error: "unknown request " + req.Op + ": " + syscall.ENOSYS.Error()}) != nil {
				return nil
			}
		}
	}
}

// sendStatus answers with a status. It can be long, and a tool that does not read it must
// not hold it for ever: it is charged while it is there.
func (s *Server) sendStatus(c *channel.Conn, who *peer, all bool) error {
	sessions := s.visible(who, all)
	bill := budget.Bill{budget.State: 64 << 10}
	s.looks.of(all).visit(s, func() {
		for _, ses := range sessions {
			bill[budget.State] += 4<<10 + uint64(ses.dev.QPs())*statusState
		}
	})
	if err := who.account.Charge(bill); err != nil {
		s.overdrawn(err)
		return c.SendJSON(channel.Status{Error: err.Error()})
	}
	defer who.account.Refund(bill)
	st := s.status(who, all, sessions)
	c.SetWriteDeadline(time.Now().Add(readTime))
	defer c.SetWriteDeadline(time.Time{})
	return c.SendJSON(st)
}

// denied says why a tool at the program socket may not do something, and where it may.
func (s *Server) denied(who *peer, what string) string {
	switch {
	case who.uid != s.uid && who.uid != 0:
		return "only the daemon's own user may " + what
	case s.control == nil:
		return fmt.Sprintf("this daemon has no control socket, its log says why; end it with kill %d", os.Getpid())
	}
	return fmt.Sprintf("only the daemon's own user may %s, at the control socket %s, from where the daemon runs and not from a container", what, s.control.path)
}

// serveTrace sends records until the tool hangs up.
func (s *Server) serveTrace(c *channel.Conn, sub *subscriber) {
	defer s.trace.unsubscribe(sub)
	if c.SendJSON(channel.ControlReply{}) != nil {
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		readable(c) // the tool has nothing more to say: this is its end
	}()
	for {
		select {
		case r := <-sub.records:
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
