package engine

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// ways is the host's network, except that some NICs do not reach some addresses.
type ways struct {
	flatNetwork
	cut map[*nic.NIC]ib.GID
}

func (w *ways) Resolve(from *nic.NIC, to ib.GID) nic.Way {
	if gid, ok := w.cut[from]; ok && gid == to {
		return nic.Way{}
	}
	return w.flatNetwork.Resolve(from, to)
}

// twin makes a NIC whose queue pairs and keys have the same numbers as those of the others.
func twin(name string, at netip.Addr) *nic.NIC {
	next := uint32(0x1000)
	return nic.New(nic.Config{
		Name: name, GIDs: []nic.GIDEntry{{GID: ib.GIDOf(at), NetDev: "lo"}},
		Random: func() uint32 { next += 0x101; return next },
	})
}

// twins is an engine with NICs at these addresses.
func twins(t *testing.T, o Options, at ...netip.Addr) (*Engine, *ways, []*nic.NIC) {
	t.Helper()
	w := &ways{cut: map[*nic.NIC]ib.GID{}}
	o.Resolver = w
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	var nics []*nic.NIC
	for i, a := range at {
		n := twin(string(rune('a'+i)), a)
		nics = append(nics, n)
		w.Add(n)
		if err := e.Add(n, nil); err != nil {
			t.Fatal(err)
		}
	}
	e.Start()
	t.Cleanup(e.Stop)
	return e, w, nics
}

func address(last byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, last}) }

// TestNICsApart: two NICs whose queue pairs, handles and keys are the same do not see each
// other's traffic, and reach each other by their addresses.
func TestNICsApart(t *testing.T) {
	e, _, nics := twins(t, Options{}, address(1), address(2))
	var qs [2][3]*testQP
	for i, n := range nics {
		gid := n.GIDs[0].GID
		for k := range qs[i] {
			qs[i][k] = newProgram(t, e, n, gid, 0).unsteered().newQP(rc)
		}
		connect(qs[i][0], qs[i][1])
	}
	for k := range qs[0] {
		if a, b := qs[0][k], qs[1][k]; a.info.Num != b.info.Num || a.info.Handle != b.info.Handle || a.mr.RKey != b.mr.RKey {
			t.Fatalf("numbers differ: %+v, %+v", a.info, b.info)
		}
	}
	connect(qs[0][2], qs[1][2])
	for i := range qs {
		pattern(qs[i][0].c.mem[:1000], byte(1+i))
		pattern(qs[i][2].c.mem[2000:3000], byte(10+i))
	}
	for i := range qs {
		a, b := qs[i][0], qs[i][1]
		a.post(wr{op: opWrite, flags: signal, n: 1000, remote: b.c.base, rkey: b.mr.RKey})
		if w := a.wait(); w.status != 0 {
			t.Fatalf("NIC %d: %+v", i, w)
		}
		if !bytes.Equal(b.c.mem[:1000], a.c.mem[:1000]) {
			t.Errorf("NIC %d: other bytes arrived", i)
		}
	}
	a, b := qs[0][2], qs[1][2]
	b.recv(0, 1000)
	a.post(wr{op: opSend, flags: signal, off: 2000, n: 1000})
	if w := b.wait(); w.status != 0 || w.length != 1000 {
		t.Fatalf("from NIC to NIC: %+v", w)
	}
	if w := a.wait(); w.status != 0 {
		t.Fatalf("from NIC to NIC: %+v", w)
	}
	if !bytes.Equal(b.c.mem[:1000], a.c.mem[2000:3000]) {
		t.Error("from NIC to NIC: other bytes arrived")
	}
}

// TestNoWay: without a Way to the peer a queue pair sends nothing, and its program gets an error. The same happens when
// an existing Way is removed. The program can continue when there is a Way again.
func TestNoWay(t *testing.T) {
	e, w, nics := twins(t, Options{}, address(1), address(2))
	gids := [2]ib.GID{nics[0].GIDs[0].GID, nics[1].GIDs[0].GID}
	a, b := newProgram(t, e, nics[0], gids[0], 0).newQP(rc), newProgram(t, e, nics[1], gids[1], 0).newQP(rc)
	again := newProgram(t, e, nics[0], gids[0], 0).newQP(rc)
	peer := newProgram(t, e, nics[1], gids[1], 0).newQP(rc)
	a.timeout, again.timeout = 5, 5
	connect(again, peer)
	write := func(q, to *testQP) uint32 {
		q.post(wr{op: opWrite, flags: signal, n: 8, remote: to.c.base, rkey: to.mr.RKey})
		return q.wait().status
	}
	if st := write(again, peer); st != 0 {
		t.Fatalf("with a way: status %d", st)
	}
	const retryExceeded = 12
	e.Do(func() {
		w.cut[nics[0]] = gids[1]
		nics[0].Reroute()
	})
	connect(a, b)
	if st := write(a, b); st != retryExceeded {
		t.Errorf("without a way: status %d, want %d", st, retryExceeded)
	}
	var received uint64
	e.Do(func() { received = b.task().q.Transport().Counters().RcvdPackets })
	if received != 0 {
		t.Errorf("%d packets came through", received)
	}
	again.post(wr{op: opWrite, flags: signal, n: 8, remote: peer.c.base, rkey: peer.mr.RKey})
	eventually(t, "a packet that is lost", func() (sent bool) {
		e.Do(func() { sent = again.task().q.Transport().Counters().SentPackets > 1 })
		return sent
	})
	e.Do(func() {
		delete(w.cut, nics[0])
		nics[0].Reroute()
	})
	if st := again.wait().status; st != 0 && st != retryExceeded {
		t.Errorf("with a way again: status %d", st)
	}
}

// TestArrivals: a packet from another host goes to the NIC that has its destination address, even if other NICs have a
// queue pair of that number.
func TestArrivals(t *testing.T) {
	net := roce.NewFakeNet()
	ea, _, na := twins(t, Options{Port: roce.NewPort(net.Bind(roce.FakeOptions{}, address(1), address(2)))}, address(1), address(2))
	eb, _, nb := twins(t, Options{Port: roce.NewPort(net.Bind(roce.FakeOptions{}, address(3)))}, address(3))
	var here, there [2]*testQP
	for i := range here {
		here[i] = newProgram(t, ea, na[i], na[i].GIDs[0].GID, 0).unsteered().newQP(rc)
		there[i] = newProgram(t, eb, nb[0], nb[0].GIDs[0].GID, 0).newQP(rc)
		connect(here[i], there[i])
	}
	if here[0].info.Num != here[1].info.Num {
		t.Fatal("the numbers differ")
	}
	for i := range here {
		pattern(there[i].c.mem[:5000], byte(1+i))
		there[i].post(wr{op: opWrite, flags: signal, n: 5000, remote: here[i].c.base, rkey: here[i].mr.RKey})
		deadline := time.Now().Add(time.Minute)
		for done := false; !done; {
			for _, e := range []*Engine{ea, eb} { // a fake network wakes no loop
				e.Do(func() { e.first.net.traffic.wake(e.first.clock.now) })
			}
			var w wc
			if w, done = there[i].try(); done && w.status != 0 {
				t.Fatalf("to NIC %d: %+v", i, w)
			}
			if time.Now().After(deadline) {
				t.Fatal("no completion within a minute")
			}
		}
	}
	for i := range here {
		if !bytes.Equal(here[i].c.mem[:5000], there[i].c.mem[:5000]) {
			t.Errorf("NIC %d has other bytes", i)
		}
	}
}

// post takes management datagrams.
type post struct {
	from []ib.GID
	due  ib.Time
	ends bool
}

func (p *post) ReceiveMAD(from, _ ib.GID, _ []byte) { p.from = append(p.from, from) }
func (p *post) Ends(ib.GID, []byte) bool            { return p.ends }
func (p *post) Deadline() ib.Time                   { return p.due }
func (p *post) Expire()                             { p.due = 0 }

// TestManagementOfMany: a management datagram reaches the manager of the NIC that has the address. Without a Way it
// reaches none. Each manager's deadline is kept.
func TestManagementOfMany(t *testing.T) {
	e, w, nics := twins(t, Options{}, address(1), address(2), address(3))
	posts := make([]*post, len(nics))
	e.Do(func() {
		for i, n := range nics {
			posts[i] = &post{}
			e.Remove(n)
			if err := e.Add(n, posts[i]); err != nil {
				t.Error(err)
			}
		}
		w.cut[nics[2]] = nics[1].GIDs[0].GID
		for _, i := range []int{0, 2} {
			e.MADs(nics[i]).SendMAD(nics[i].GIDs[0].GID, nics[1].GIDs[0].GID, make([]byte, 256))
		}
		for i, p := range posts {
			p.due = e.first.clock.now + ib.Time(time.Millisecond)
			e.MADs(nics[i]).Due(p.due)
		}
	})
	eventually(t, "the datagram and the deadlines", func() (all bool) {
		e.Do(func() { all = len(posts[1].from) == 1 && posts[0].due+posts[1].due+posts[2].due == 0 })
		return all
	})
	e.Do(func() {
		if len(posts[0].from)+len(posts[2].from) > 0 || posts[1].from[0] != nics[0].GIDs[0].GID {
			t.Errorf("datagrams: %v, %v, %v; want one, from the first to the second", posts[0].from, posts[1].from, posts[2].from)
		}
	})
}

// TestSameAddress: two NICs cannot have the same arrival address until one is removed.
func TestSameAddress(t *testing.T) {
	e, w, nics := twins(t, Options{}, address(1))
	other := twin("other", address(1))
	e.Do(func() {
		if err := e.Add(nics[0], nil); err == nil {
			t.Error("a NIC was added twice")
		}
		w.Add(other) // the address belongs to the other NIC from now on
		if err := e.Add(other, nil); err == nil {
			t.Error("a second NIC with the same address was added")
		}
		e.Remove(nics[0])
		if err := e.Add(other, nil); err != nil {
			t.Error(err)
		}
	})
}

// TestGroupOfMany: a datagram to a group reaches the members of every NIC that means the same
// group by it, once each.
func TestGroupOfMany(t *testing.T) {
	e, w, nics := twins(t, Options{}, address(1), address(2), address(3))
	group := ib.GIDOf(netip.MustParseAddr("239.1.2.3"))
	w.cut[nics[2]] = group
	const ud, qkey = 4, 7
	var qs []*testQP
	for _, n := range nics {
		q := newProgram(t, e, n, n.GIDs[0].GID, 0).newQP(ud)
		q.datagrams(qkey)
		q.c.do(func() error { return q.c.s.AttachMcast(q.info.Handle, group, 0) })
		qs = append(qs, q)
	}
	var ah uint32
	qs[0].c.do(func() (err error) {
		_, ah, err = qs[0].c.s.CreateAH(qs[0].pd, nic.AHAttr{DGID: group, IsGlobal: true, PortNum: 1})
		return err
	})
	for _, q := range qs {
		q.recv(0, 1000)
	}
	qs[0].datagram(ah, ib.EveryQP, qkey, 100)
	for _, q := range qs[:2] {
		for got := false; !got; {
			if w := q.wait(); w.opcode == 128 {
				got = true
				if w.status != 0 || w.length != 140 {
					t.Errorf("a member received %+v", w)
				}
			}
		}
	}
	e.Do(func() {
		if n := qs[2].task().q.Transport().Counters().RcvdPackets; n != 0 {
			t.Errorf("%d packets reached a NIC that means another group", n)
		}
	})
	for _, q := range qs {
		q.c.do(func() error { return q.c.s.DetachMcast(q.info.Handle, group, 0) })
	}
	e.Do(func() {
		if n := len(e.first.net.groups.of); n != 0 {
			t.Errorf("%d groups are left", n)
		}
	})
}
