package replay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
)

// What may differ from rxe's packets: the UDP source port and the IP identification, which
// are the link's, and with them the ICRC: it is made anew for those of the capture and
// must then be the same.

//
// Beside that:

// handmade is the address of a program with a UDP socket that plays the peer in some captures. Its packets are not compared.
var handmade = netip.MustParseAddr("10.77.0.1")

// exceptions are captures that end before the last acknowledgement.
var exceptions = map[string]int{"rstream-writeimm": 1}

// unbounded are captures in which rxe has more in flight than vrdma allows before the first acknowledgement.
var unbounded = map[string]bool{"write-64k-mtu4096": true}

func addrPort(g ib.GID) netip.AddrPort {
	return netip.AddrPortFrom(g.Addr(), wire.Port)
}

// TestReplay replaces each side of each golden conversation.
func TestReplay(t *testing.T) {
	compared := 0
	for _, file := range golden.Files(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".pcap")
		if strings.HasSuffix(name, ".dropped") {
			continue
		}
		for _, c := range conversations(read(t, file)) {
			if c.x.addr == handmade {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v-%#x", name, c.x.addr, c.x.qp), func(t *testing.T) {
				s := newSession(t, c)
				s.ends = exceptions[name]
				if unbounded[name] {
					s.q.SetPath(transport.Path{})
				}
				s.play()
				compared += s.compared
				if s.rewrites != 0 && name != "rping" {
					t.Errorf("what rxe read is not what was written before, %d times", s.rewrites)
				}
			})
		}
	}
	// The number of packets that rxe sent in all captures.
	if compared != 1096 {
		t.Errorf("%d packets compared, want 1096", compared)
	}
}

// A session is one of our queue pairs in the place of a conversation's x.
type session struct {
	*host
	c        *conversation
	now      ib.Time
	mtu      uint32
	next     uint32             // PSN of x's next new request
	requests map[uint32]*packet // x's requests by PSN, as first sent
	incoming map[uint32]*packet // y's requests by PSN
	compared int
	ends     int // acknowledgements that are missing in the capture
	rewrites int // how often x's application must have changed its memory, as rping does
}

func newSession(t *testing.T, c *conversation) *session {
	s := &session{c: c, now: 1, requests: map[uint32]*packet{}, incoming: map[uint32]*packet{}}
	s.host = &host{
		t: t, notReady: map[uint32]int{}, refused: map[uint32]bool{}, mem: map[uint64]byte{}, buf: make([]byte, roce.MaxMessage),
		sgid: ib.GIDOf(c.x.addr),
	}
	s.host.env = transport.NewEnv(s.host, s.host, &s.host.sc)
	a := transport.Attr{
		PKey: 0xffff, Access: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic,
		MaxRDAtomic: 16, MaxDestRDAtomic: 16, RetryCount: 7, RNRRetry: 7,
		// Shorter than the time to the first probe, which rxe does not have. Virtual time passes only when nothing else is to
		// do, so the timeout happens when rxe's did.
		Timeout: 8,
		SGID:    ib.GIDOf(c.x.addr), DGID: ib.GIDOf(c.y.addr), DestQPN: c.y.qp,
	}
	if c.service == wire.UD {
		a.DGID = ib.GID{}
	}
	s.mtu = 256
	first, firstIn := true, true
	for i := range c.packets {
		p := &c.packets[i]
		s.survey(p, &a)
		switch ours := c.from(p); {
		case p.response():
		case ours && (s.requests[p.psn()] == nil || s.requests[p.psn()].bad):
			s.requests[p.psn()] = p
			if first {
				a.SQPSN, first = p.psn(), false
			}
		case !ours && (s.incoming[p.psn()] == nil || s.incoming[p.psn()].bad):
			s.incoming[p.psn()] = p
			if firstIn {
				a.RQPSN, firstIn = p.psn(), false
			}
		}
	}
	s.next = a.SQPSN
	typ := map[wire.Service]ib.Service{wire.RC: ib.RC, wire.UC: ib.UC, wire.UD: ib.UD}[c.service]
	a.MTU = s.mtu
	s.q.Init(transport.Config{Type: typ, Num: c.x.qp, MTU: 4096})
	all := ib.AttrMask(1<<21 - 1)
	for _, st := range []ib.State{ib.StateInit, ib.StateRTR, ib.StateRTS} {
		a.State = st
		s.q.Modify(&a, all, s.now, &s.host.env)
	}
	if c.service != wire.UD {
		s.q.SetPath(transport.Path{Remote: true})
	}
	return s
}

// survey collects from p what the queue pair and its host must know in advance.
func (s *session) survey(p *packet, a *transport.Attr) {
	if s.c.service == wire.UD {
		if !s.c.from(p) {
			a.QKey = p.DETH().QKey()
		}
		return
	}
	// The first of several packets of a message has the size of the MTU.
	n := uint32(len(p.Payload()))
	for s.mtu < n {
		s.mtu *= 2
	}
	if !s.c.from(p) || !p.is(wire.Ack) {
		return
	}
	switch syn := p.AETH().Syndrome(); {
	case syn&0xe0 == transport.RNRNak:
		s.notReady[p.psn()]++
		a.MinRNRTimer = syn & 0x1f
	case syn&0xe0 == transport.NakSequence && syn != transport.NakSequence:
		s.refused[p.psn()] = true
	}
}

// play processes the capture.
func (s *session) play() {
	for i := range s.c.packets {
		p := &s.c.packets[i]
		s.now += 1000
		if s.c.from(p) && !p.copy {
			s.expect(p)
		}
		if !p.bad && !p.lost && p.to() == s.c.x {
			s.feed(i)
		}
	}
	if len(s.out) > 0 && len(s.out) <= s.ends && strings.Contains(describe(s.out[0]), "Acknowledge") {
		s.out = nil
	}
	for _, b := range s.out {
		s.t.Errorf("sent beyond what rxe sent: %v", describe(b))
	}
	s.checkArrived()
	s.checkStatus()
}

// feed delivers a packet that x received to the queue pair.
func (s *session) feed(i int) {
	p := &s.c.packets[i]
	s.remember(i)
	var j roce.Joiner
	if !j.Begin(p.Packet, ib.GIDOf(p.src.Addr()), ib.GIDOf(p.dst.Addr())) {
		s.t.Fatalf("%v is no message's", p.Packet)
	}
	b := j.Burst()
	if s.c.service != wire.UD {
		b.Src = s.c.y.qp
	}
	s.feeding = p
	s.q.Receive(s.now, b, &s.host.env)
	s.feeding = nil
	s.work()
}

// work runs the queue pair.
func (s *session) work() {
	for range 1000 {
		switch {
		case s.q.RespondPending():
			s.q.Respond(s.now, 1<<20, &s.host.env)
		case s.q.RunPending():
			s.q.Run(s.now, 1<<20, &s.host.env)
		default:
			return
		}
	}
	s.t.Fatalf("no end of work")
}

// remember sets x's memory to what rxe's answer to packet i shows.
func (s *session) remember(i int) {
	p := &s.c.packets[i]
	switch {
	case p.is(wire.ReadRequest):
		n := (p.RETH().Length() + s.mtu - 1) / s.mtu
		for j := range s.c.packets[i:] {
			r := &s.c.packets[i+j]
			if at := (r.psn() - p.psn()) & 0xffffff; s.c.from(r) && r.is(wire.ReadResponse) && at < n {
				if s.know(p.RETH().VA()+uint64(at)*uint64(s.mtu), r.Payload()) {
					s.rewrites++
				}
			}
		}
	case p.is(wire.FetchAdd, wire.CompareSwap):
		// Only unknown memory is set: the rest must be right already.
		if _, ok := s.mem[p.AtomicETH().VA()]; ok {
			return
		}
		for j := range s.c.packets[i:] {
			r := &s.c.packets[i+j]
			if s.c.from(r) && r.is(wire.AtomicAck) && r.psn() == p.psn() {
				s.set(p.AtomicETH().VA(), r.AtomicAckETH().Orig())
				return
			}
		}
	}
}

// expect compares p, which x sent, with what the queue pair sends.
func (s *session) expect(p *packet) {
	if len(s.out) == 0 && !p.response() {
		if p.psn() == s.next {
			s.post(p)
		} else {
			// x retransmitted after a timeout.
			s.now = max(s.now, s.q.Deadline())
			s.q.Expire(s.now, &s.host.env)
			s.work()
		}
	}
	if len(s.out) == 0 {
		s.t.Errorf("rxe sent %v, we nothing", p.Packet)
		return
	}
	s.compared++
	got := s.out[0]
	s.out = s.out[1:]
	g, err := wire.Parse(got)
	if err != nil {
		s.t.Errorf("we sent %x: %v", got, err)
		return
	}
	var flow wire.Flow
	flow.Set(p.src, p.dst)
	flow.Seal(g, p.id)
	if p.bad {
		// The packet before it was damaged.
		p = s.requests[p.psn()]
		flow.Set(p.src, p.dst)
		flow.Seal(g, p.id)
	}
	if !bytes.Equal(got, p.Bytes()) {
		s.t.Errorf("we sent %v\n%x\nrxe     %v\n%x", g, got, p.Packet, p.Bytes())
	}
}

func describe(b []byte) string {
	p, err := wire.Parse(b)
	if err != nil {
		return err.Error()
	}
	return p.String()
}

// message returns the packets of the message that begins with p, as far as the capture has them.
func message(p *packet, all map[uint32]*packet) []*packet {
	list := []*packet{p}
	for p.format().Position&wire.Last == 0 {
		if p = all[(p.psn()+1)&0xffffff]; p == nil {
			break
		}
		list = append(list, p)
	}
	return list
}

func payload(list []*packet) (b []byte) {
	for _, p := range list {
		b = append(b, p.Payload()...)
	}
	return b
}

// post posts the request that begins with p.
func (s *session) post(p *packet) {
	list := message(p, s.requests)
	last := list[len(list)-1]
	data := payload(list)
	psns := uint32(len(list))
	w := transport.SendWQE{
		Pos: uint32(len(s.sends)), Op: operationOf(last.Packet), Flags: transport.FlagSignaled, Length: uint32(len(data)), NumSGE: 1,
	}
	if last.BTH().Solicited() {
		w.Flags |= transport.FlagSolicited
	}
	if h := p.RETH(); h != nil {
		w.RemoteAddr, w.RKey, w.Length = h.VA(), h.RKey(), h.Length()
		if w.Op == transport.WRRead {
			psns = max(1, (w.Length+s.mtu-1)/s.mtu)
			data = make([]byte, w.Length)
		}
	}
	if h := p.AtomicETH(); h != nil {
		w.RemoteAddr, w.RKey, w.Length = h.VA(), h.RKey(), 8
		w.CompareAdd, w.Swap = h.Compare(), h.Swap()
		if w.Op == transport.WRFetchAdd {
			w.CompareAdd = h.Swap()
		}
		data = make([]byte, 8)
	}
	if h := last.ImmDt(); h != nil {
		w.Imm = binary.NativeEndian.Uint32(h)
	}
	if h := p.DETH(); h != nil {
		w.RemoteQPN, w.RemoteQKey = p.BTH().DestQP(), h.QKey()
		s.dgid = ib.GIDOf(p.dst.Addr())
		if w.RemoteQKey&(1<<31) != 0 {
			s.q.Modify(&transport.Attr{QKey: w.RemoteQKey}, ib.MaskQKey, s.now, &s.host.env)
		}
	}
	s.next = (p.psn() + psns) & 0xffffff
	s.sends = append(s.sends, w)
	s.data = append(s.data, data)
	s.q.Run(s.now, 1<<20, &s.host.env)
	s.work()
}

// checkArrived compares the content of x's receives with what y sent.
func (s *session) checkArrived() {
	if s.c.service == wire.UD {
		return
	}
	i := 0
	seen := map[uint32]bool{}
	for k := range s.c.packets {
		p := &s.c.packets[k]
		if s.c.from(p) || p.response() || !p.is(wire.Send) || p.format().Position&wire.First == 0 || seen[p.psn()] {
			continue
		}
		seen[p.psn()] = true
		if i == len(s.arrived) {
			s.t.Errorf("message %d, beginning with %v, did not arrive", i, p.Packet)
			return
		}
		if want := payload(message(p, s.incoming)); !bytes.Equal(s.arrived[i], want) {
			s.t.Errorf("message %d arrived as %x, was sent as %x", i, s.arrived[i], want)
		}
		i++
	}
	if i != len(s.arrived) {
		s.t.Errorf("%d messages arrived, %d were sent", len(s.arrived), i)
	}
}

// checkStatus checks that every request completed: successfully, unless the capture has its NAK.
func (s *session) checkStatus() {
	want := make([]transport.Status, len(s.sends))
	for i := range s.c.packets {
		p := &s.c.packets[i]
		if !s.c.from(p) && p.is(wire.Ack) && p.AETH().Syndrome() == transport.NakAccess {
			want[len(want)-1] = transport.RemAccessErr
		}
	}
	if n := len(want) - len(s.status); n > 0 && n <= s.ends {
		want = want[n:]
	}
	if fmt.Sprint(s.status) != fmt.Sprint(want) {
		s.t.Errorf("statuses %v, want %v", s.status, want)
	}
}
