package frontdoor

import (
	"slices"
	"syscall"
	"time"

	"vrdma/internal/caller"
	"vrdma/internal/inspect"
	"vrdma/internal/protocol"
	"vrdma/internal/rdmanl"
)

// The conversations of those who look: package inspect answers them.

// serveTool answers a tool.
func (s *Server) serveTool(c *protocol.Conn, v inspect.View) error {
	if err := v.Who.Account.Charge(toolBill); err != nil {
		s.overdrawn(err)
		return refusal(protocol.Errno(err, syscall.EBUSY), "%v", err)
	}
	defer v.Who.Account.Refund(toolBill)
	w := welcome()
	if err := c.WriteMessage(w.Append(nil)); err != nil {
		return nil
	}
	s.desk.Serve(c, v)
	return nil
}

// serveGuestCard tells a tool what a virtual machine is started with to have the NIC.
func (s *Server) serveGuestCard(c *protocol.Conn, d *door) error {
	if d.Guest == nil {
		return refusal(syscall.EOPNOTSUPP, "NIC %s is in the host's own network: a virtual machine can have a declared NIC in a network with way vxlan", d.NIC.Name)
	}
	card, err := d.Guest()
	if err != nil {
		card.Error = err.Error()
	}
	w := welcome()
	if err := c.WriteMessage(w.Append(nil)); err == nil {
		c.SendJSON(card)
	}
	return nil
}

// netlinkPatience is how long a program may leave an answer unread.
const netlinkPatience = 10 * time.Second

// serveNetlink is one socket of NETLINK_RDMA. It holds nothing and keeps nothing alive.
func (s *Server) serveNetlink(c *protocol.Conn, who caller.Caller, d *door) error {
	w := welcome()
	if err := c.WriteMessage(w.Append(nil)); err != nil {
		return nil
	}
	who.Locate(c)
	looker := s.desk.Looker(&who, d.NIC)
	for {
		buf, n, err := receive(c)
		if err != nil {
			return nil
		}
		err = rdmanl.Answer((*buf)[:n], looker, func(b []byte) error {
			c.SetWriteDeadline(time.Now().Add(netlinkPatience))
			return c.WriteMessage(b)
		})
		buffers.Put(buf)
		if err != nil {
			return nil
		}
	}
}

// guests are whom the server serves, for those who look. It implements inspect.Clients.
type guests struct{ s *Server }

func (g guests) Sessions() []inspect.Session {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	out := make([]inspect.Session, 0, len(g.s.sessions))
	for ses := range g.s.sessions {
		out = append(out, inspect.Session{
			ID: ses.id, Of: &ses.proc.Caller, NIC: ses.nic, Device: ses.dev, Opened: ses.opened, Commands: ses.commands.Load(),
		})
	}
	return out
}

// NICs implements inspect.Clients. At the door of one of a tenant's NICs there is no other, nor at
// a side door, which is a container's.
func (g guests) NICs(v *inspect.View) (out []protocol.NICDoor) {
	g.s.mu.Lock()
	doors := slices.Clone(g.s.doors)
	g.s.mu.Unlock()
	first := v.NIC == doors[0].NIC && !slices.ContainsFunc(doors, func(d *door) bool { return d.Side && d.Socket == v.Socket })
	for _, d := range doors {
		if d.Side || d.NIC == nil || !v.All && (d.NIC != v.NIC && !first || !v.Who.Owner && d.Admit != nil && d.Admit(v.Who, v.Conn) != nil) {
			continue
		}
		n := protocol.NICDoor{Name: d.NIC.Name, Network: d.NIC.Network, Socket: d.Socket}
		for _, gid := range d.NIC.Device.Face().GIDs {
			n.Addresses = append(n.Addresses, gid.GID.Addr().String())
		}
		if v.All {
			for _, o := range doors { // a side door leads to it, too
				if o.NIC == d.NIC {
					n.Programs += len(o.users())
				}
			}
		}
		out = append(out, n)
	}
	return out
}

func (g guests) Recount() { g.s.recount() }

func (g guests) Programs() []inspect.Program {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	out := make([]inspect.Program, 0, len(g.s.processes))
	for _, p := range g.s.processes {
		out = append(out, inspect.Program{Of: &p.Caller, NIC: p.nic, CM: p.cm})
	}
	return out
}
