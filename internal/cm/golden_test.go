package cm

import (
	"bytes"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
)

// These tests replay conversations of Linux's connection manager with this package on either side: its messages must equal Linux's,
// byte for byte.

// A line is one captured message.
type line struct {
	from, to ib.GID
	mad      wire.MAD
}

func (l line) kind() wire.CMMessage { return wire.CMMessage(l.mad.Attribute()) }

// conversation reads the messages of a capture.
func conversation(t *testing.T, name string) (lines []line) {
	t.Helper()
	for _, c := range golden.Read(t, golden.Path(name+".pcap")) {
		p, err := wire.Parse(c.Data)
		if err != nil {
			t.Fatalf("packet %d: %v", c.Number, err)
		}
		if m := p.MAD(); m != nil && m.IsCM() {
			lines = append(lines, line{c.Src.Addr().As16(), c.Dst.Addr().As16(), slices.Clone(m)})
		}
	}
	return lines
}

// A player is our side of a conversation.
type player struct {
	t      *testing.T
	sent   []wire.MAD
	conn   *Conn
	reason uint16
}

func (p *player) Send(_, _ ib.GID, mad wire.MAD)   { p.sent = append(p.sent, slices.Clone(mad)) }
func (p *player) Notify(*Conn, *Event)             {}
func (p *player) Question(c *Conn, _ []byte) uint8 { p.conn, c.Owner = c, p; return 0 }
func (p *player) Request(c *Conn, _ *Params) uint16 {
	p.conn, c.Owner = c, p
	return p.reason
}

// same compares our last message with Linux's. The side that starts a transaction chooses its ID.
func (p *player) same(want wire.MAD, chosen bool) {
	p.t.Helper()
	if len(p.sent) == 0 {
		p.t.Fatalf("we said nothing, want %v", want)
	}
	got := p.sent[len(p.sent)-1]
	if chosen {
		got.SetTID(want.TID())
	}
	for i := range want {
		if got[i] != want[i] {
			p.t.Fatalf("%v: byte %d (%d of the message) is %#x, Linux has %#x\n got %x\nwant %x", want, i, i-wire.MADHeaderSize, got[i], want[i], got, want)
		}
	}
}

func zeros() uint32 { return 0 }

// privateOf returns private data without trailing zeros.
func privateOf(b []byte) []byte { return bytes.TrimRight(b, "\x00") }

func TestGoldenPassive(t *testing.T) {
	for _, name := range []string{"rping", "ucmatose", "rstream-writeimm", "send-4096-cm"} {
		t.Run(name, func(t *testing.T) {
			lines := conversation(t, name)
			req, rep, rtu := lines[0], lines[1], lines[2]
			g := wire.REP(rep.mad.Data())
			p := &player{t: t}
			m := New(Config{GUID: g.LocalCAGUID(), Random: zeros, Env: p})
			m.next = g.LocalCommID() - 1
			m.Receive(1, req.from, req.to, req.mad)
			if p.conn == nil {
				t.Fatal("the REQ was not understood")
			}
			err := m.Accept(2, p.conn, &Params{
				QPN: g.LocalQPN(), PSN: g.StartingPSN(), ResponderResources: g.ResponderResources(), InitiatorDepth: g.InitiatorDepth(),
				RNRRetryCount: g.RNRRetryCount(), FlowControl: g.FlowControl(), SRQ: g.SRQ(), Private: privateOf(g.Private()),
			})
			if err != nil {
				t.Fatal(err)
			}
			p.same(rep.mad, false)
			m.Receive(3, rtu.from, rtu.to, rtu.mad)
			if p.conn.State != Established {
				t.Fatalf("after the RTU: %v", p.conn.State)
			}
			goodbye(t, m, p, lines[3:], rep.from)
		})
	}
}

// goodbye replays the end of a conversation, whichever side starts it.
func goodbye(t *testing.T, m *Manager, p *player, lines []line, we ib.GID) {
	t.Helper()
	if len(lines) < 2 || lines[0].kind() != wire.CMDREQ {
		return
	}
	dreq, drep := lines[0], lines[1]
	if dreq.from == we {
		m.Disconnect(10, p.conn)
		p.same(dreq.mad, true)
		p.conn.tid = drep.mad.TID()
		m.Receive(11, drep.from, drep.to, drep.mad)
	} else {
		m.Receive(10, dreq.from, dreq.to, dreq.mad)
		m.Disconnect(11, p.conn)
		p.same(drep.mad, true)
	}
	if p.conn.State != TimeWait {
		t.Errorf("in the end: %v, want TIMEWAIT", p.conn.State)
	}
}

func TestGoldenActive(t *testing.T) {
	for _, name := range []string{"rping", "ucmatose", "rstream-writeimm", "send-4096-cm"} {
		t.Run(name, func(t *testing.T) {
			lines := conversation(t, name)
			req, rep, rtu := lines[0], lines[1], lines[2]
			g := wire.REQ(req.mad.Data())
			path := g.Primary()
			p := &player{t: t}
			m := New(Config{GUID: g.LocalCAGUID(), Random: zeros, Env: p})
			m.next = g.LocalCommID() - 1
			var err error
			p.conn, err = m.Connect(1, p, g.ServiceID(), Path{
				SGID: path.LocalGID(), DGID: path.RemoteGID(), MTU: g.PathMTU(), AckTimeout: path.AckTimeout(), Rate: path.PacketRate(),
				TrafficClass: path.TrafficClass(), HopLimit: path.HopLimit(), FlowLabel: path.FlowLabel(),
			}, &Params{
				QPN: g.LocalQPN(), PSN: g.StartingPSN(), ResponderResources: g.ResponderResources(), InitiatorDepth: g.InitiatorDepth(),
				RetryCount: g.RetryCount(), RNRRetryCount: g.RNRRetryCount(), FlowControl: g.FlowControl(), SRQ: g.SRQ(), Private: g.Private(),
			}, false)
			if err != nil {
				t.Fatal(err)
			}
			// Linux fills two reserved bits between flow label and rate.
			req.mad[wire.MADHeaderSize+52+38] &= 0xf0
			req.mad[wire.MADHeaderSize+52+39] &= 0x3f
			p.same(req.mad, true)
			p.conn.tid = req.mad.TID()
			m.Receive(2, rep.from, rep.to, rep.mad)
			if err := m.Ready(p.conn); err != nil {
				t.Fatal(err)
			}
			p.same(rtu.mad, false)
			goodbye(t, m, p, lines[3:], req.from)
		})
	}
}

func TestGoldenReject(t *testing.T) {
	lines := conversation(t, "rping-reject")
	p := &player{t: t, reason: RejectInvalidService}
	m := New(Config{Random: zeros, Env: p})
	m.Receive(1, lines[0].from, lines[0].to, lines[0].mad)
	p.same(lines[1].mad, false)
}

func TestGoldenSIDR(t *testing.T) {
	lines := conversation(t, "udaddy-sidr")
	req, rep := lines[0], lines[1]
	g := wire.SIDRREP(rep.mad.Data())
	p := &player{t: t}
	m := New(Config{Random: zeros, Env: p})
	m.Receive(1, req.from, req.to, req.mad)
	if err := m.Answer(2, p.conn, g.Status(), g.QPN(), g.QKey(), privateOf(g.Private())); err != nil {
		t.Fatal(err)
	}
	p.same(rep.mad, false)

	q := wire.SIDRREQ(req.mad.Data())
	m.next = q.RequestID() - 1
	c, err := m.Ask(3, p, q.ServiceID(), Path{SGID: req.from, DGID: req.to}, q.Private())
	if err != nil {
		t.Fatal(err)
	}
	p.same(req.mad, true)
	m.Receive(4, rep.from, rep.to, rep.mad)
	if c.State != Closed || c.RemoteQPN != g.QPN() {
		t.Errorf("after the answer: %v, queue pair %#x, want %#x", c.State, c.RemoteQPN, g.QPN())
	}
}
