package frontdoor

import (
	"errors"
	"syscall"

	"vrdma/internal/channel"
)

// serveControl answers a tool. Tools see the programs of their own user; the
// daemon's user and root see all and may stop it.
func (s *Server) serveControl(c *channel.Conn, who peer) error {
	w := welcome()
	if err := c.WriteMessage(w.Append(nil)); err != nil {
		return nil
	}
	privileged := who.uid == s.uid || who.uid == 0
	for {
		var req channel.ControlRequest
		if err := c.ReceiveJSON(&req); err != nil {
			if errors.Is(err, channel.ErrMalformed) {
				c.SendJSON(channel.ControlReply{Error: err.Error()})
			}
			return nil
		}
		switch req.Op {
		case channel.ControlStatus:
			if c.SendJSON(s.status(who.uid, privileged)) != nil {
				return nil
			}
		case channel.ControlTrace:
			s.serveTrace(c, s.trace.subscribe(req.Label, who.uid, privileged))
			return nil
		case channel.ControlCount:
			if c.SendJSON(channel.ConnectionCount{RDMA: s.countConnections(req.Label, who.uid, privileged)}) != nil {
				return nil
			}
		case channel.ControlCapture:
			if !privileged {
				c.SendJSON(channel.ControlReply{Error: "only the daemon's own user may see everybody's packets"})
				continue
			}
			s.serveCapture(c)
			return nil
		case channel.ControlStop:
			if !privileged {
				c.SendJSON(channel.ControlReply{Error: "only the daemon's own user may stop it"})
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
