package rdmacm

import (
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// A gate is a Guard that allows what a test says.
type gate func(peer ib.GID, c ib.Contact) bool

func (g gate) Judge(peer ib.GID, c ib.Contact) (ib.Operations, bool) {
	if g(peer, c) {
		return ib.AllOperations, true
	}
	return 0, true
}

func (g gate) Type(ib.Service) bool          { return true }
func (g gate) Why(ib.GID, ib.Contact) string { return "the test says so" }
func nothing(ib.GID, ib.Contact) bool        { return false }
func everything(ib.GID, ib.Contact) bool     { return true }
func tcpPort(p uint64) uint64                { return uint64(abi.PSTCP)<<16 | p }

// pair returns two hosts, 10.0.0.1 with a listening program and 10.0.0.2.
func pair(t *testing.T) (server, client *fabric) {
	t.Helper()
	server, client = newFabric(t), newFabric(t)
	client.cma.nic.GIDs[0].GID = gid("10.0.0.2")
	hosts := map[ib.GID]*fabric{gid("10.0.0.1"): server, gid("10.0.0.2"): client}
	server.hosts, client.hosts = hosts, hosts
	return server, client
}

// judge sets the rules of a host and checks all connections again.
func (f *fabric) judge(g gate) {
	f.cma.nic.SetGuard(g)
	for f.cma.nic.Rejudge(1) {
	}
}

func (f *fabric) refused(what nic.Refusal) uint64 { return f.cma.nic.Refusals()[what] }

// ask makes a program request a connection.
func (p *prog) ask(uid uint64, ps uint16, to string) *ID {
	p.f.t.Helper()
	id := p.id(uid, ps)
	_, _, err := id.BeginResolve(addr("10.0.0.2:0"), addr(to))
	p.must(err)
	id.EndResolve(addr("10.0.0.2:0").Addr(), 0)
	p.next(abi.CMEventAddrResolved)
	p.must(id.ResolveRoute())
	p.next(abi.CMEventRouteResolved)
	p.must(id.Connect(param(0x11, "hello"), ECE{}))
	return id
}

// TestRefusedHere checks that rdma_connect is refused at once, and that nothing is sent.
func TestRefusedHere(t *testing.T) {
	server, client := pair(t)
	var asked ib.Contact
	client.judge(func(_ ib.GID, c ib.Contact) bool { asked = c; return false })
	var told []nic.Denial
	client.cma.nic.Denied = func(d nic.Denial) { told = append(told, d) }
	s, c := server.program(), client.program()
	s.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
	c.ask(200, abi.PSTCP, "10.0.0.1:7000")
	if len(client.q) != 0 {
		t.Errorf("%d messages left", len(client.q))
	}
	if e := c.next(abi.CMEventRejected); e.Status != cm.RejectInvalidService {
		t.Errorf("status %d, want %d", e.Status, cm.RejectInvalidService)
	}
	if want := (ib.Contact{Type: ib.RC, By: ib.Us, ID: tcpPort(7000)}); asked != want {
		t.Errorf("judged %+v, want %+v", asked, want)
	}
	c.ask(201, abi.PSUDP, "10.0.0.1:7000")
	if e := c.next(abi.CMEventUnreachable); e.Status != cm.SidrUnsupported {
		t.Errorf("datagrams: status %d, want %d", e.Status, cm.SidrUnsupported)
	}
	s.none()
	if n := client.refused(nic.RefusedConnect); n != 2 || len(told) != 2 || told[0].Program != "test" || told[0].Why == "" {
		t.Errorf("counted %d, told %+v", n, told)
	}
}

// TestRefusedThere checks that a host without rules is refused by a host with rules, as if there were no listener, and that the listener
// gets no event.
func TestRefusedThere(t *testing.T) {
	server, client := pair(t)
	server.judge(func(peer ib.GID, c ib.Contact) bool {
		return peer == gid("10.0.0.2") && c.By == ib.Them && c.ID == tcpPort(7001)
	})
	s, c := server.program(), client.program()
	s.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
	s.listener(101, abi.PSTCP, "0.0.0.0:7001", 0)
	s.listener(102, abi.PSUDP, "0.0.0.0:7000", 0)
	c.ask(200, abi.PSTCP, "10.0.0.1:7000")
	if e := c.next(abi.CMEventRejected); e.Status != cm.RejectInvalidService {
		t.Errorf("status %d, want %d", e.Status, cm.RejectInvalidService)
	}
	c.ask(201, abi.PSUDP, "10.0.0.1:7000")
	c.next(abi.CMEventUnreachable)
	s.none()
	c.ask(202, abi.PSTCP, "10.0.0.1:7001")
	s.next(abi.CMEventConnectRequest)
	if n := server.refused(nic.RefusedRequest); n != 2 {
		t.Errorf("counted %d", n)
	}
}

// TestContact checks that the queue pairs of a connection are found by their peers, before and after it is accepted; other queue pairs
// count as connected manually.
func TestContact(t *testing.T) {
	server, client := pair(t)
	s, c := server.program(), client.program()
	s.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
	s.listener(101, abi.PSUDP, "0.0.0.0:7000", 0)
	from := c.ask(200, abi.PSTCP, "10.0.0.1:7000")
	e := s.next(abi.CMEventConnectRequest)
	at, _ := s.ch.ID(e.ID)
	check := func(f *fabric, num uint32, peer string, peerNum uint32, want ib.Contact) {
		t.Helper()
		got, ok := f.cma.Contact(num, max(want.Type, ib.RC), gid(peer), peerNum)
		if ok != (want.Type != 0) || got != want {
			t.Errorf("queue pair %#x with %#x at %s: %+v, %v, want %+v", num, peerNum, peer, got, ok, want)
		}
	}
	in, out := ib.Contact{Type: ib.RC, By: ib.Them, ID: tcpPort(7000)}, ib.Contact{Type: ib.RC, By: ib.Us, ID: tcpPort(7000)}
	check(server, 0x22, "10.0.0.2", 0x11, in)
	s.must(at.Accept(102, param(0x22, ""), ECE{}))
	c.next(abi.CMEventConnectResponse)
	check(server, 0x22, "10.0.0.2", 0x11, in)
	check(server, 0x23, "10.0.0.2", 0x11, ib.Contact{})
	check(client, 0x11, "10.0.0.1", 0x22, out)
	check(client, 0x11, "10.0.0.1", 0x23, ib.Contact{})
	check(client, 0x12, "10.0.0.1", 0x22, ib.Contact{})
	c.must(from.Accept(0, &abi.CMConnParam{}, ECE{}))
	s.next(abi.CMEventEstablished)
	check(server, 0x22, "10.0.0.2", 0x11, in)
	check(client, 0x11, "10.0.0.1", 0x22, out)

	asker := c.ask(201, abi.PSUDP, "10.0.0.1:7000")
	e = s.next(abi.CMEventConnectRequest)
	at, _ = s.ch.ID(e.ID)
	s.must(at.Accept(103, param(0x33, ""), ECE{}))
	c.next(abi.CMEventEstablished)
	id := uint64(abi.PSUDP)<<16 | 7000
	check(server, 0x33, "10.0.0.2", 0, ib.Contact{Type: ib.UD, By: ib.Them, ID: id})
	check(client, 0x11, "10.0.0.1", 0, ib.Contact{Type: ib.UD, By: ib.Us, ID: id})
	asker.Destroy()
	if _, ok := client.cma.Contact(0x11, ib.UD, gid("10.0.0.1"), 0); ok {
		t.Error("the ID is gone, but its contact is not")
	}
}

// established makes a connection between two hosts.
func established(t *testing.T) (server, client *fabric, s, c *prog) {
	t.Helper()
	server, client = pair(t)
	s, c = server.program(), client.program()
	s.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
	from := c.ask(200, abi.PSTCP, "10.0.0.1:7000")
	at, _ := s.ch.ID(s.next(abi.CMEventConnectRequest).ID)
	s.must(at.Accept(101, param(0x22, ""), ECE{}))
	c.next(abi.CMEventConnectResponse)
	c.must(from.Accept(0, &abi.CMConnParam{}, ECE{}))
	s.next(abi.CMEventEstablished)
	return server, client, s, c
}

// TestRevokedConnection checks that both sides get DISCONNECTED at once, whichever side has the rules.
func TestRevokedConnection(t *testing.T) {
	for _, who := range []string{"server", "client", "both"} {
		server, client, s, c := established(t)
		server.judge(everything)
		client.judge(everything)
		if who != "client" {
			server.judge(nothing)
		}
		if who != "server" {
			client.judge(nothing)
		}
		s.next(abi.CMEventDisconnected)
		c.next(abi.CMEventDisconnected)
		s.none()
		c.none()
		if n := server.refused(nic.Revoked) + client.refused(nic.Revoked); n != map[string]uint64{"both": 2}[who] && n != 1 {
			t.Errorf("%s: counted %d", who, n)
		}
	}
}

// TestRevokedRequest checks that a pending request is refused at both ends.
func TestRevokedRequest(t *testing.T) {
	t.Run("sent", func(t *testing.T) {
		server, client := pair(t)
		s, c := server.program(), client.program()
		s.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
		c.ask(200, abi.PSTCP, "10.0.0.1:7000")
		client.q = nil // lost
		client.judge(nothing)
		if e := c.next(abi.CMEventRejected); e.Status != cm.RejectInvalidService {
			t.Errorf("status %d", e.Status)
		}
		s.none()
	})
	t.Run("not read", func(t *testing.T) {
		server, client := pair(t)
		s, c := server.program(), client.program()
		s.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
		c.ask(200, abi.PSTCP, "10.0.0.1:7000")
		server.settle()
		server.judge(nothing)
		if e := c.next(abi.CMEventRejected); e.Status != cm.RejectInvalidService {
			t.Errorf("status %d", e.Status)
		}
		s.none()
	})
	t.Run("read", func(t *testing.T) {
		server, client := pair(t)
		s, c := server.program(), client.program()
		s.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
		c.ask(200, abi.PSTCP, "10.0.0.1:7000")
		at, _ := s.ch.ID(s.next(abi.CMEventConnectRequest).ID)
		server.judge(nothing)
		c.next(abi.CMEventRejected)
		if err := at.Accept(101, param(0x22, ""), ECE{}); err != syscall.EINVAL {
			t.Errorf("accept afterwards: %v", err)
		}
	})
	t.Run("answered", func(t *testing.T) {
		server, client := pair(t)
		s, c := server.program(), client.program()
		s.listener(100, abi.PSTCP, "0.0.0.0:7000", 0)
		c.ask(200, abi.PSTCP, "10.0.0.1:7000")
		at, _ := s.ch.ID(s.next(abi.CMEventConnectRequest).ID)
		s.must(at.Accept(101, param(0x22, ""), ECE{}))
		c.next(abi.CMEventConnectResponse)
		client.judge(nothing)
		c.next(abi.CMEventRejected)
		s.next(abi.CMEventRejected)
	})
}

// TestRefusedGroup checks that a forbidden group gives MULTICAST_ERROR, and can be left.
func TestRefusedGroup(t *testing.T) {
	f := newFabric(t)
	f.judge(nothing)
	p := f.program()
	id := p.id(1, abi.PSUDP)
	p.must(id.Bind(addr("10.0.0.1:0")))
	g, err := id.Join(5, addr("239.1.1.1:0").Addr())
	p.must(err)
	if e := p.next(abi.CMEventMulticastError); int32(e.Status) != -int32(syscall.EACCES) || e.UID != 5 {
		t.Errorf("%+v", e)
	}
	if n, err := p.ch.Leave(g.Name); n != 1 || err != nil {
		t.Errorf("leave: %d, %v", n, err)
	}
}
