package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// A gate is a hand-made Guard: operations by peer; peers that are not listed may do everything.
type gate struct {
	ops   map[ib.GID]ib.Operations
	none  map[ib.GID]bool // these are not in the network
	types map[ib.Service]bool
}

func (g *gate) Judge(peer ib.GID, _ ib.Contact) (ib.Operations, bool) {
	if ops, ok := g.ops[peer]; ok {
		return ops, true
	}
	return ib.AllOperations, !g.none[peer]
}

func (g *gate) Type(t ib.Service) bool              { return !g.types[t] }
func (g *gate) Why(ib.GID, ib.Contact) string       { return "the test says so" }
func allBut(ops ib.Operations) ib.Operations        { return ib.AllOperations &^ ops }
func closedTo(peer ib.GID) *gate                    { return &gate{ops: map[ib.GID]ib.Operations{peer: 0}} }
func only(peer ib.GID, o ib.Operations) *gate       { return &gate{ops: map[ib.GID]ib.Operations{peer: o}} }
func (p *program) errno(f func() error) (err error) { p.e.Do(func() { err = f() }); return err }

// guard gives NICs rules, in turns of NIC and gate.
func guard(t *testing.T, e *Engine, list ...any) {
	t.Helper()
	var all []Guarded
	for i := 0; i < len(list); i += 2 {
		g, _ := list[i+1].(*gate)
		if g == nil {
			all = append(all, Guarded{NIC: list[i].(*nic.NIC)})
		} else {
			all = append(all, Guarded{list[i].(*nic.NIC), g})
		}
	}
	if err := e.SetGuards(all); err != nil {
		t.Fatal(err)
	}
}

// A sink is one for asynchronous events.
type sink struct {
	mu   sync.Mutex
	seen []uint32
}

func (s *sink) Post(event [16]byte, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, binary.NativeEndian.Uint32(event[8:]))
	return true
}
func (s *sink) Withdraw() (event [16]byte, n int) { return event, 0 }
func (s *sink) HangupFd() int                     { return -1 }
func (s *sink) Close()                            {}

func (s *sink) count(kind uint32) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.seen {
		if k == kind {
			n++
		}
	}
	return n
}

// events gives the program asynchronous events.
func (p *program) events() *sink {
	s := &sink{}
	p.do(func() error { return p.s.CreateAsync(func() (nic.EventSink, error) { return s, nil }) })
	return s
}

// underRules is two NICs with a program each.
func underRules(t *testing.T) (e *Engine, nics []*nic.NIC, a, b *program) {
	t.Helper()
	e, _, nics = twins(t, Options{}, address(1), address(2))
	return e, nics, newProgram(t, e, nics[0], nics[0].GIDs[0].GID, 0), newProgram(t, e, nics[1], nics[1].GIDs[0].GID, 0)
}

const (
	wcFlushed = 5
	wcAccess  = 10
	wcRemOp   = 11
)

// TestGuardRefuses: a forbidden command is refused with an errno, counted, and reported.
func TestGuardRefuses(t *testing.T) {
	e, nics, a, b := underRules(t)
	peer, nobody := b.gid, ib.GIDOf(address(99))
	var told []nic.Denial
	e.Do(func() { nics[0].Denied = func(d nic.Denial) { told = append(told, d) } })
	q := a.newQP(rc)
	ud := a.newQP(4)
	ud.datagrams(1)
	group := ib.GIDOf(netip.MustParseAddr("239.1.2.3"))
	g := closedTo(peer)
	g.ops[group], g.ops[nobody], g.none, g.types = 0, 0, map[ib.GID]bool{nobody: true}, map[ib.Service]bool{ib.UC: true}
	guard(t, e, nics[0], g)

	meet := func(to ib.GID) func() error {
		return func() error {
			a.s.ModifyQP(q.info.Handle, attrInit, &nic.QPAttr{State: 1, PortNum: 1, AccessFlags: 0xf})
			return a.s.ModifyQP(q.info.Handle, attrRTR, &nic.QPAttr{State: 2, PathMTU: 5, DestQPN: 5, MaxDestRDAtomic: 16, MinRNRTimer: 1,
				AH: nic.AHAttr{DGID: to, IsGlobal: true, PortNum: 1}})
		}
	}
	address := func(to ib.GID) func() error {
		return func() error {
			_, _, err := a.s.CreateAH(q.pd, nic.AHAttr{DGID: to, IsGlobal: true, PortNum: 1})
			return err
		}
	}
	// Judge says 0 and unknown of nobody.
	g.ops = map[ib.GID]ib.Operations{peer: 0, group: 0}
	unknown := &unknownGate{gate: g, gid: nobody}
	e.Do(func() { nics[0].SetGuard(unknown) })
	for _, c := range []struct {
		name string
		f    func() error
		want error
		what nic.Refusal
	}{
		{"modify to RTR", meet(peer), syscall.EACCES, nic.RefusedPeer},
		{"modify to RTR, to nobody", meet(nobody), syscall.ENETUNREACH, nic.RefusedPeer},
		{"create AH", address(peer), syscall.EACCES, nic.RefusedAddress},
		{"create AH, of nobody", address(nobody), syscall.ENETUNREACH, nic.RefusedAddress},
		{"create AH, of a group", address(group), syscall.EACCES, nic.RefusedAddress},
		{"attach to a group", func() error { return a.s.AttachMcast(ud.info.Handle, group, 0) }, syscall.EACCES, nic.RefusedGroup},
		{"create a queue pair of UC", func() error {
			_, err := a.s.CreateQP(nic.QPParams{PD: q.pd, SendCQ: q.cq.Handle, RecvCQ: q.cq.Handle, Type: abi.QPTypeUC})
			return err
		}, syscall.EPERM, nic.RefusedType},
		{"itself", meet(a.gid), nil, 0},
	} {
		var before, after nic.Refusals
		told = nil
		e.Do(func() { before = nics[0].Refusals() })
		if err := a.errno(c.f); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		e.Do(func() { after = nics[0].Refusals() })
		if c.want == nil {
			continue
		}
		before[c.what]++
		if after != before {
			t.Errorf("%s: counted %v, want %v", c.name, after, before)
		}
		if len(told) != 1 || told[0].What != c.what || told[0].Program != "test" || told[0].Why == "" {
			t.Errorf("%s: told %+v", c.name, told)
		}
	}
}

// An unknownGate does not know one address.
type unknownGate struct {
	*gate
	gid ib.GID
}

func (g *unknownGate) Judge(peer ib.GID, c ib.Contact) (ib.Operations, bool) {
	if peer == g.gid {
		return 0, false
	}
	return g.gate.Judge(peer, c)
}

const opFetchAdd = uint32(transport.WRFetchAdd)

// request posts a request of eight bytes at an offset of both memories.
func (q *testQP) request(op, at uint32, to *testQP) {
	slot := q.sq.slot(q.posted)
	q.write(wr{op: op, flags: signal, off: at, n: 8, remote: to.c.base + uint64(at), rkey: to.mr.RKey})
	if op == opFetchAdd {
		binary.NativeEndian.PutUint64(slot[32:], 0)
		binary.NativeEndian.PutUint32(slot[48:], to.mr.RKey)
	}
	q.ring()
}

// TestGuardOperations: forbidden operations are refused like wrong keys, by the responder if its peer has no rules, and
// by a requester with rules.
func TestGuardOperations(t *testing.T) {
	ops := map[string]struct {
		op  uint32
		bit ib.Operations
	}{"send": {opSend, ib.OpSend}, "write": {opWrite, ib.OpWrite}, "read": {opRead, ib.OpRead}, "fetch and add": {opFetchAdd, ib.OpAtomic}}
	for name, o := range ops {
		for _, where := range []string{"responder", "requester"} {
			t.Run(name+" at the "+where, func(t *testing.T) {
				e, nics, pa, pb := underRules(t)
				events := pb.events()
				if where == "responder" {
					guard(t, e, nics[1], only(pa.gid, allBut(o.bit)))
				} else {
					guard(t, e, nics[0], only(pb.gid, allBut(o.bit)))
				}
				a, b := pa.newQP(rc), pb.newQP(rc)
				connect(a, b)
				b.recv(1000, 100)
				pattern(pa.mem[:8], 3)
				pattern(pb.mem[:2000], 9)
				before := bytes.Clone(pb.mem[:2000])
				mine := bytes.Clone(pa.mem[:100])
				// Something that is allowed goes through.
				for n, k := range ops {
					if n != name && k.op != opSend {
						a.request(k.op, 4096, b)
						if w := a.wait(); w.status != 0 {
							t.Fatalf("%s is allowed: %+v", n, w)
						}
					}
				}
				a.request(o.op, 0, b)
				if w := a.wait(); w.status != wcAccess {
					t.Fatalf("status %d, want %d", w.status, wcAccess)
				}
				if !bytes.Equal(pb.mem[:2000], before) || !bytes.Equal(pa.mem[:100], mine) {
					t.Error("bytes were moved")
				}
				if where == "responder" {
					eventually(t, "an access error", func() bool { return events.count(abi.EventQPAccessErr) == 1 })
				}
				var c nic.Counters
				var r nic.Refusals
				i := map[string]int{"responder": 1}[where]
				e.Do(func() { c, r = nics[i].Counters(), nics[i].Refusals() })
				if c.Denied != 1 || r[nic.RefusedOperation] != 1 {
					t.Errorf("counted %d requests, %v", c.Denied, r)
				}
			})
		}
	}
}

// TestRevoke: a connection that new rules forbid fails at both ends, and no other does.
func TestRevoke(t *testing.T) {
	e, nics, pa, pb := underRules(t)
	ea, eb := pa.events(), pb.events()
	third := twin("c", address(3))
	e.first.opts.Resolver.(*ways).Add(third)
	e.Do(func() { e.Add(third, nil) })
	pc := newProgram(t, e, third, ib.GIDOf(address(3)), 0)
	a, b := pa.newQP(rc), pb.newQP(rc)
	x, y := pa.newQP(rc), pc.newQP(rc)
	connect(a, b)
	connect(x, y)
	for range 3 {
		a.recv(0, 100)
		b.recv(0, 100)
	}
	guard(t, e, nics[0], &gate{}, nics[1], &gate{}, third, &gate{})
	a.post(wr{op: opWrite, flags: signal, n: 8, remote: pb.base, rkey: b.mr.RKey})
	if w := a.wait(); w.status != 0 {
		t.Fatalf("before: %+v", w)
	}
	guard(t, e, nics[0], closedTo(pb.gid), nics[1], closedTo(pa.gid))
	for _, q := range []*testQP{a, b} {
		for range 3 {
			if w := q.wait(); w.status != wcFlushed {
				t.Errorf("a receive: %+v, want status %d", w, wcFlushed)
			}
		}
		q.post(wr{op: opWrite, flags: signal, n: 8, remote: pb.base, rkey: b.mr.RKey})
		if w := q.wait(); w.status != wcFlushed {
			t.Errorf("a write afterwards: %+v, want status %d", w, wcFlushed)
		}
	}
	if n, m := ea.count(abi.EventQPFatal), eb.count(abi.EventQPFatal); n != 1 || m != 1 {
		t.Errorf("QP_FATAL: %d and %d, want one each", n, m)
	}
	x.post(wr{op: opWrite, flags: signal, n: 8, remote: pc.base, rkey: y.mr.RKey})
	if w := x.wait(); w.status != 0 {
		t.Errorf("another connection: %+v", w)
	}
	var c [2]nic.Refusals
	e.Do(func() { c = [2]nic.Refusals{nics[0].Refusals(), nics[1].Refusals()} })
	if c[0][nic.Revoked] != 1 || c[1][nic.Revoked] != 1 {
		t.Errorf("counted %v", c)
	}
	// Without rules a new connection is as before.
	guard(t, e, nics[0], nil, nics[1], nil)
	a, b = pa.newQP(rc), pb.newQP(rc)
	connect(a, b)
	a.post(wr{op: opRead, flags: signal, n: 8, remote: pb.base, rkey: b.mr.RKey})
	if w := a.wait(); w.status != 0 {
		t.Errorf("without rules: %+v", w)
	}
}

// TestRevokedPeerIsTold: a peer without rules gets one answer at once. Its data is not placed.
func TestRevokedPeerIsTold(t *testing.T) {
	e, nics, pa, pb := underRules(t)
	a, b := pa.newQP(rc), pb.newQP(rc)
	connect(a, b)
	guard(t, e, nics[1], closedTo(pa.gid))
	pattern(pa.mem[:8], 5)
	for i, want := range []uint32{wcRemOp, wcFlushed} {
		a.post(wr{op: opWrite, flags: signal, n: 8, remote: pb.base, rkey: b.mr.RKey})
		if w := a.wait(); w.status != want {
			t.Errorf("write %d: %+v, want status %d", i, w, want)
		}
	}
	if !bytes.Equal(pb.mem[:8], make([]byte, 8)) {
		t.Error("bytes were placed")
	}
}

// TestOperationsTakenAway: operations are forbidden and allowed again on a live connection, and a READ in progress
// ends.
func TestOperationsTakenAway(t *testing.T) {
	e, nics, pa, pb := underRules(t)
	a, b := pa.newQP(rc), pb.newQP(rc)
	connect(a, b)
	do := func(op uint32) uint32 {
		a.post(wr{op: op, flags: signal, n: 8, remote: pb.base, rkey: b.mr.RKey})
		return a.wait().status
	}
	guard(t, e, nics[1], only(pa.gid, allBut(ib.OpRead)))
	if st := do(opWrite); st != 0 {
		t.Fatalf("a write: %d", st)
	}
	guard(t, e, nics[1], only(pa.gid, ib.AllOperations))
	if st := do(opRead); st != 0 {
		t.Fatalf("a read: %d", st)
	}
	guard(t, e, nics[1], only(pa.gid, allBut(ib.OpRead)))
	if st := do(opRead); st != wcAccess {
		t.Errorf("a read that is not allowed: %d, want %d", st, wcAccess)
	}
}

// TestGuardDatagrams: a forbidden datagram is lost without an error for its sender, and counted where the rule is: at
// the sender, else at the receiver.
func TestGuardDatagrams(t *testing.T) {
	const qkey = 7
	e, nics, pa, pb := underRules(t)
	a, b := pa.newQP(4), pb.newQP(4)
	a.datagrams(qkey)
	b.datagrams(qkey)
	var ah uint32
	pa.do(func() (err error) {
		_, ah, err = pa.s.CreateAH(a.pd, nic.AHAttr{DGID: pb.gid, IsGlobal: true, PortNum: 1})
		return err
	})
	send := func() {
		t.Helper()
		a.datagram(ah, b.info.Num, qkey, 8)
		if w := a.wait(); w.status != 0 {
			t.Fatalf("%+v", w)
		}
	}
	refused := func(i int) (r nic.Refusals) {
		e.Do(func() { r = nics[i].Refusals() })
		return r
	}
	for range 2 {
		b.recv(0, 100)
	}
	guard(t, e, nics[1], closedTo(pa.gid))
	for range 3 {
		send()
	}
	if r := refused(1); r[nic.RefusedReceive] != 3 {
		t.Errorf("at the receiver: %v", r)
	}
	guard(t, e, nics[0], closedTo(pb.gid), nics[1], nil)
	for range 3 {
		send()
	}
	if r := refused(0); r[nic.RefusedSend] != 3 {
		t.Errorf("at the sender: %v", r)
	}
	if w, ok := b.try(); ok {
		t.Errorf("received %+v", w)
	}
	guard(t, e, nics[0], &gate{}, nics[1], &gate{})
	send()
	if w := b.wait(); w.status != 0 || w.length != 48 {
		t.Errorf("when it is allowed: %+v", w)
	}
}

// TestGuardGroups: a datagram to a group reaches the members that may receive from its sender. A NIC that may no longer
// be a member is removed.
func TestGuardGroups(t *testing.T) {
	const qkey = 7
	group := ib.GIDOf(netip.MustParseAddr("239.9.9.9"))
	e, nics, pa, pb := underRules(t)
	a, b, own := pa.newQP(4), pb.newQP(4), pa.newQP(4)
	for _, q := range []*testQP{a, b, own} {
		q.datagrams(qkey)
		q.recv(0, 100)
		q.recv(0, 100)
	}
	var ah uint32
	pa.do(func() (err error) {
		_, ah, err = pa.s.CreateAH(a.pd, nic.AHAttr{DGID: group, IsGlobal: true, PortNum: 1})
		return err
	})
	for _, q := range []*testQP{b, own} {
		q.c.do(func() error { return q.c.s.AttachMcast(q.info.Handle, group, 0) })
	}
	send := func() {
		a.datagram(ah, ib.EveryQP, qkey, 8)
		if w := a.wait(); w.status != 0 {
			t.Fatalf("%+v", w)
		}
	}
	guard(t, e, nics[1], closedTo(pa.gid))
	send()
	if w := own.wait(); w.status != 0 {
		t.Fatalf("%+v", w)
	}
	if w, ok := b.try(); ok {
		t.Errorf("the sender is not allowed, but came through: %+v", w)
	}
	guard(t, e, nics[1], closedTo(group))
	var members int
	e.Do(func() { members = len(nics[1].Multicast(group)) })
	if members != 0 {
		t.Errorf("%d members that may not be", members)
	}
}

// TestHandMadePeer: a peer without rules that forges packets with the right numbers and keys delivers nothing: not to a
// queue pair that it was connected to, not to one for datagrams, not to others.
func TestHandMadePeer(t *testing.T) {
	const qkey, tries = 7, 1_000_000
	e, nics, pa, pb := underRules(t)
	victim, friend := pa.newQP(rc), pa.newQP(rc)
	revoked, peer := pa.newQP(rc), pb.newQP(rc)
	half, ud := pa.newQP(rc), pa.newQP(4)
	connect(victim, friend)
	connect(revoked, peer)
	half.to(peer)
	ud.datagrams(qkey)
	qs := []*testQP{victim, friend, revoked, half, ud}
	for _, q := range qs {
		for range 8 {
			q.recv(0, 4096)
		}
	}
	guard(t, e, nics[0], closedTo(pb.gid))
	for _, q := range []*testQP{revoked, half} {
		for range 8 {
			q.wait() // flushed
		}
	}
	data := make([]byte, 64)
	pattern(data, 0xee)
	var span memory.Span
	r := rand.New(rand.NewPCG(1, 1))
	kinds := []transport.Kind{
		transport.KindSend, transport.KindSendImm, transport.KindSendInv, transport.KindWrite, transport.KindWriteImm,
		transport.KindReadReq, transport.KindCmpSwap, transport.KindFetchAdd, transport.KindAtomicWrite, transport.KindFlush,
		transport.KindReadResp, transport.KindAtomicResp, transport.KindAck,
	}
	for done := 0; done < tries; done += 1000 {
		e.Do(func() {
			for range 1000 {
				q := qs[r.IntN(len(qs))]
				b := transport.Burst{
					Type: ib.RC, Kind: kinds[r.IntN(len(kinds))], First: r.IntN(8) > 0, Last: r.IntN(8) > 0, AckReq: true, Src: peer.info.Num, Dst: q.info.Num,
					SGID: pb.gid, DGID: pa.gid, PKey: 0xffff, MTU: 4096, PSN: uint32(r.IntN(4)), Packets: 1, QKey: qkey,
					VA: pa.base, RKey: q.mr.RKey, Length: 64, Swap: 1,
				}
				if q == ud {
					b.Type, b.Kind, b.First, b.Last = ib.UD, transport.KindSend, true, true
				}
				if b.Kind <= transport.KindWriteImm || b.Kind == transport.KindReadResp {
					span.Reset()
					span.Add(data)
					b.Data = &span
				}
				e.first.net.Receive(ib.HostNetwork, &b, false)
			}
		})
	}
	if !bytes.Equal(pa.mem[:4096], make([]byte, 4096)) {
		t.Error("bytes were delivered")
	}
	for i, q := range qs {
		if w, ok := q.try(); ok {
			t.Errorf("queue pair %d: a completion %+v", i, w)
		}
	}
	var c nic.Refusals
	var sent uint64
	e.Do(func() { c, sent = nics[0].Refusals(), victim.task().q.Transport().Counters().SentPackets })
	if c[nic.RefusedReceive] < tries/10 || sent != 0 {
		t.Errorf("%d datagrams were refused, and %d answers left a queue pair of others", c[nic.RefusedReceive], sent)
	}
	// What is allowed still works.
	friend.post(wr{op: opWrite, flags: signal, n: 8, remote: pa.base, rkey: victim.mr.RKey})
	if w := friend.wait(); w.status != 0 {
		t.Errorf("a friend's write: %+v", w)
	}
}

// TestRevokeMany: ten thousand queue pairs end, and the log says how long it took.
func TestRevokeMany(t *testing.T) {
	if testing.Short() {
		t.Skip("ten thousand queue pairs")
	}
	const pairs = 5000
	e, nics, pa, pb := underRules(t)
	var qs [2][]*testQP
	for i, p := range []*program{pa, pb} {
		first := p.newQP(rc)
		qs[i] = append(qs[i], first)
		for range pairs - 1 {
			q := &testQP{c: p, pd: first.pd, mr: first.mr, cq: first.cq}
			p.do(func() (err error) {
				q.info, err = p.s.CreateQP(nic.QPParams{PD: q.pd, SendCQ: q.cq.Handle, RecvCQ: q.cq.Handle, Type: rc, Cap: nic.QPCap{SendWR: 1, RecvWR: 1, SendSGE: 1, RecvSGE: 1}})
				return err
			})
			qs[i] = append(qs[i], q)
		}
	}
	for i := range pairs {
		connect(qs[0][i], qs[1][i])
	}
	guard(t, e, nics[0], &gate{}, nics[1], &gate{})
	begin := time.Now()
	guard(t, e, nics[0], closedTo(pb.gid), nics[1], closedTo(pa.gid))
	t.Logf("%d queue pairs ended in %v", 2*pairs, time.Since(begin))
	e.Do(func() {
		for i, list := range qs {
			for _, q := range list {
				if st := q.task().q.Transport().State(); st != ib.StateError {
					t.Fatalf("NIC %d: a queue pair in state %d", i, st)
				}
			}
		}
	})
}

// BenchmarkGuard measures the two decisions for a datagram: without a Guard, and with one that has decided before.
func BenchmarkGuard(b *testing.B) {
	for _, c := range []struct {
		name string
		g    nic.Guard
	}{{"none", nil}, {"one", &gate{}}} {
		b.Run(c.name, func(b *testing.B) {
			e := newEngine(b)
			q := newClient(b, e).newQP(4)
			e.Do(func() { e.only().SetGuard(c.g) })
			n := q.task().q
			peer := testGID
			b.ReportAllocs()
			for b.Loop() {
				if !n.MayTell(&peer) || !n.MayHear(&peer) {
					b.Fatal("refused")
				}
			}
		})
	}
}
