package server

import (
	"errors"
	"slices"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/netlink"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
)

// This file serves tools. Package control serves requests about declared objects, package diag all others.

// Objects serves requests about declared objects: package control's Plane.
type Objects interface {
	// Serve serves one request that arrives on c.
	Serve(c *protocol.Conn, peer credentials.Peer)
	// Administers reports whether the peer on c administers a tenant.
	Administers(c syscall.Conn, peer credentials.Peer, tenant string) bool
}

// ServeObjects sets the server of requests about declared objects. It is called before Serve; without it such requests
// are refused.
func (s *Server) ServeObjects(o Objects) { s.tools.objects = o }

// toolTime is how long a tool may take to send a request.
const toolTime = 10 * time.Second

// tools serves the requests of tools, and passes those that are not about diagnosis to other servers.
type tools struct {
	srv        *Server
	objects    Objects    // nil: there are none
	succession Succession // nil: the daemon cannot be replaced
	migration  Migration  // nil: NICs do not move while programs use them
}

// serve serves the requests of a tool until it disconnects.
func (t *tools) serve(c *protocol.Conn, v diag.View) error {
	if err := v.Who.Account.Charge(toolBill); err != nil {
		t.srv.admission.overdrawn(err)
		return refusal(protocol.Errno(err, syscall.EBUSY), "%v", err)
	}
	defer v.Who.Account.Refund(toolBill)
	w := welcome()
	if err := c.WriteMessage(w.Append(nil)); err != nil {
		return nil
	}
	for {
		var req protocol.ControlRequest
		c.SetReadDeadline(time.Now().Add(toolTime))
		if err := c.ReceiveRequest(&req); err != nil {
			if errors.Is(err, protocol.ErrMalformed) {
				c.SendJSON(protocol.ControlReply{Error: err.Error()})
			}
			return nil
		}
		c.SetReadDeadline(time.Time{})
		if req.Op == protocol.ControlObjects {
			t.serveObjects(c, &v)
			return nil
		}
		if req.Op == protocol.ControlMigrate {
			t.serveMigration(c, &v, &req)
			return nil
		}
		if req.Op == protocol.ControlHandOver || req.Op == protocol.ControlUpgrade {
			t.serveSuccession(c, &v, &req)
			return nil
		}
		if !t.srv.desk.Answer(c, &v, &req) {
			return nil
		}
	}
}

// Succession replaces this daemon by another one, without an interruption for programs.
type Succession interface {
	// HandOver hands this daemon over to the one at the other end of c.
	HandOver(c *protocol.Conn)
	// Upgrade starts a program as the next daemon, and hands over to it. It returns only after an error.
	Upgrade(c *protocol.Conn, program string)
}

// ServeSuccession sets what replaces this daemon. It is called before Serve; without it such requests are refused.
func (s *Server) ServeSuccession(o Succession) { s.tools.succession = o }

// ServeMigration sets what moves NICs. It is called before Serve; without it such requests are refused.
func (s *Server) ServeMigration(m Migration) { s.tools.migration = m }

// serveSuccession passes the connection of the next daemon, or of vrdma upgrade.
func (t *tools) serveSuccession(c *protocol.Conn, v *diag.View, req *protocol.ControlRequest) {
	switch {
	case !v.All:
		c.SendJSON(protocol.ControlReply{Error: "only the daemon's own user and root, at the control socket, may replace it"})
	case t.succession == nil:
		c.SendJSON(protocol.ControlReply{Error: "this daemon cannot be replaced while it runs"})
	case req.Op == protocol.ControlUpgrade:
		t.succession.Upgrade(c, req.Program)
	default:
		t.succession.HandOver(c)
	}
}

// serveSuccessor serves a process that may only take over. why is what it gets for other requests.
func (t *tools) serveSuccessor(c *protocol.Conn, why error) error {
	w := welcome()
	if err := c.WriteMessage(w.Append(nil)); err != nil {
		return nil
	}
	var req protocol.ControlRequest
	c.SetReadDeadline(time.Now().Add(toolTime))
	if err := c.ReceiveRequest(&req); err != nil {
		return nil
	}
	c.SetReadDeadline(time.Time{})
	if req.Op != protocol.ControlHandOver || t.succession == nil {
		c.SendJSON(protocol.ControlReply{Error: why.Error()})
		return nil
	}
	t.succession.HandOver(c)
	return nil
}

// serveMigration passes the connection of a tool that moves a NIC.
func (t *tools) serveMigration(c *protocol.Conn, v *diag.View, req *protocol.ControlRequest) {
	switch {
	case !v.All:
		c.SendJSON(protocol.ControlReply{Error: "only the daemon's own user and root, at the control socket, may move a NIC that programs use"})
	case t.migration == nil:
		c.SendJSON(protocol.ControlReply{Error: "this daemon cannot move NICs that programs use"})
	default:
		t.migration.Migrate(c, req)
	}
}

// serveObjects passes the connection of a tool to the server of declared objects.
func (t *tools) serveObjects(c *protocol.Conn, v *diag.View) {
	if t.objects == nil {
		c.SendJSON(protocol.ControlReply{Error: "this daemon has no declared objects"})
		return
	}
	if c.SendJSON(protocol.ControlReply{}) == nil {
		t.objects.Serve(c, peerOf(v))
	}
}

// peerOf is the peer of a view.
func peerOf(v *diag.View) credentials.Peer {
	p := credentials.Peer{Who: v.Who, Operator: v.All, Resident: v.Resident}
	if !v.All && !v.Tenants {
		if p.NIC = registry.Default; v.NIC != nil {
			p.NIC = v.NIC.Name
		}
	}
	return p
}

// serveMachineCard tells a tool how to start a virtual machine with the NIC.
func (d *listener) serveMachineCard(c *protocol.Conn) error {
	if d.OpenGuest == nil {
		return refusal(syscall.EOPNOTSUPP, "NIC %s is in the host's own network: a virtual machine can have a declared NIC in a network with way vxlan", d.NIC.Name)
	}
	card, err := d.OpenGuest()
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

// serveNetlink serves one NETLINK_RDMA socket. It holds nothing, and does not keep an ephemeral daemon running.
func (d *listener) serveNetlink(c *protocol.Conn, who credentials.Caller) error {
	w := welcome()
	if err := c.WriteMessage(w.Append(nil)); err != nil {
		return nil
	}
	return d.answerNetlink(c, who)
}

// answerNetlink serves a NETLINK_RDMA socket after its hello.
func (d *listener) answerNetlink(c *protocol.Conn, who credentials.Caller) error {
	d.mu.Lock()
	if g := d.users[c]; g != nil {
		g.netlink = &who
	}
	d.mu.Unlock()
	who.Locate(c)
	looker := d.srv.desk.Looker(&who, d.NIC)
	for {
		buf, n, err := d.srv.receive(c)
		if err != nil {
			return nil
		}
		err = netlink.Answer((*buf)[:n], looker, func(b []byte) error {
			c.SetWriteDeadline(time.Now().Add(netlinkPatience))
			return c.WriteMessage(b)
		})
		buffers.Put(buf)
		if err != nil {
			return nil
		}
	}
}

// clientList lists the server's clients for package diag. It implements diag.Clients.
type clientList struct{ srv *Server }

func (g clientList) Sessions() []diag.Session {
	_, sessions := g.srv.clients.all()
	out := make([]diag.Session, 0, len(sessions))
	for _, ses := range sessions {
		out = append(out, diag.Session{
			ID: ses.id, Of: &ses.proc.Caller, NIC: ses.nic, Device: ses.dev, Opened: ses.opened, Commands: ses.commands.Load(),
		})
	}
	return out
}

// NICs implements diag.Clients. At the listener of a tenant's NIC only that NIC is listed, and so at a secondary
// listener, which is a container's.
func (g clientList) NICs(v *diag.View) (out []protocol.NICSocket) {
	all := g.srv.listeners.all()
	first := v.NIC == all[0].NIC && !slices.ContainsFunc(all, func(d *listener) bool { return d.Secondary && d.Socket == v.Socket })
	for _, d := range all {
		if d.Secondary || d.NIC == nil || !v.All && (d.NIC != v.NIC && !first || !v.Who.Owner && d.Admit != nil && d.Admit(v.Who, v.Conn) != nil) {
			continue
		}
		n := protocol.NICSocket{Name: d.NIC.Name, Network: d.NIC.Network, Socket: d.Socket}
		for _, gid := range d.NIC.Device.Face().GIDs {
			n.Addresses = append(n.Addresses, gid.GID.Addr().String())
		}
		if v.All {
			for _, o := range all { // the secondary listener serves the same NIC
				if o.NIC == d.NIC {
					n.Programs += len(o.programs())
				}
			}
		}
		out = append(out, n)
	}
	return out
}

func (g clientList) Recount()                             { g.srv.clients.recount() }
func (g clientList) Containers() map[*registry.NIC]string { return g.srv.containers() }
func (g clientList) Listening()                           { g.srv.tracing.updateAll() }
func (g clientList) Overdrawn(err error)                  { g.srv.admission.overdrawn(err) }

func (g clientList) Administers(v *diag.View, tenant string) bool {
	return g.srv.tools.objects != nil && v.Conn != nil && g.srv.tools.objects.Administers(v.Conn, peerOf(v), tenant)
}

func (g clientList) Programs() []diag.Program {
	processes, _ := g.srv.clients.all()
	out := make([]diag.Program, 0, len(processes))
	for _, p := range processes {
		out = append(out, diag.Program{Of: &p.Caller, NIC: p.nic, CM: p.cm})
	}
	return out
}
