package engine

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// newHost makes an engine at an address.
func newHost(t testing.TB, at netip.Addr, o Options) (*Engine, ib.GID) {
	t.Helper()
	gid := ib.GIDOf(at)
	n := nic.New(nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: gid, NetDev: "lo"}}})
	e, err := newWith(n, o)
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	t.Cleanup(func() {
		e.Stop()
		o.Port.Close()
	})
	return e, gid
}

// overUDP is two queue pairs of two engines that talk through sockets. Other tests may run on this machine, so the
// addresses are random ones of the loopback network.
func overUDP(t testing.TB) (a, b *testQP) {
	t.Helper()
	a, b = twoHosts(t, func(*program) {})
	connect(a, b)
	return a, b
}

// twoHosts is overUDP with clients that have been prepared, before they are connected.
func twoHosts(t testing.TB, prepare func(*program)) (a, b *testQP) {
	t.Helper()
	var qps [2]*testQP
	for i := range qps {
		var udp *roce.UDP
		var at netip.Addr
		err := error(unix.EADDRINUSE)
		for try := 0; try < 100 && errors.Is(err, unix.EADDRINUSE); try++ {
			at = netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
			udp, err = roce.ListenUDP(roce.UDPOptions{}, at)
		}
		if err != nil {
			t.Fatal(err)
		}
		e, gid := newHost(t, at, Options{Port: roce.NewPort(udp), Wake: udp.Descriptors()})
		c := newClientAt(t, e, gid)
		prepare(c)
		qps[i] = c.newQP(rc)
	}
	return qps[0], qps[1]
}

func TestRemote(t *testing.T) {
	a, b := overUDP(t)
	for _, n := range []uint32{0, 1, 64, 4096, 4097, 65536, 300000, 1 << 20} {
		pattern(a.c.mem[:n], byte(n))
		clear(b.c.mem[:3<<20])
		a.post(wr{op: opWrite, flags: signal, n: n, remote: b.c.base + 100, rkey: b.mr.RKey, id: uint64(n)})
		if w := a.wait(); w.status != 0 || w.id != uint64(n) {
			t.Fatalf("write of %d: %+v", n, w)
		}
		b.recv(2<<20+1, max(n, 1))
		a.post(wr{op: opSend, flags: signal, n: n})
		if w := b.wait(); w.status != 0 || w.length != n {
			t.Fatalf("receive of %d: %+v", n, w)
		}
		if w := a.wait(); w.status != 0 {
			t.Fatalf("send of %d: %+v", n, w)
		}
		a.post(wr{op: opRead, flags: signal, off: 4 << 20, n: n, remote: b.c.base + 100, rkey: b.mr.RKey})
		if w := a.wait(); w.status != 0 {
			t.Fatalf("read of %d: %+v", n, w)
		}
		want := a.c.mem[:n]
		if !bytes.Equal(b.c.mem[100:100+n], want) || !bytes.Equal(b.c.mem[2<<20+1:2<<20+1+n], want) || !bytes.Equal(a.c.mem[4<<20:4<<20+n], want) {
			t.Fatalf("messages of %d: bytes differ", n)
		}
	}
}

func TestRemoteDoesNotAllocate(t *testing.T) {
	a, b := overUDP(t)
	work := func() {
		for range 50 {
			b.recv(0, 64)
			a.write(wr{op: opSend, flags: signal, n: 64})
			a.write(wr{op: opWrite, flags: signal, n: 65536, remote: b.c.base, rkey: b.mr.RKey})
			a.write(wr{op: opRead, flags: signal, off: 1 << 20, n: 8192, remote: b.c.base, rkey: b.mr.RKey})
		}
		a.ring()
		for range 150 {
			a.wait()
		}
		for range 50 {
			b.wait()
		}
	}
	work() // queues grow to what they need
	// testing.AllocsPerRun would leave the two loops and this test one processor. Other
	// goroutines may allocate now and then, but not every time.
	least := uint64(1 << 60)
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		work()
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	if least > 0 {
		t.Errorf("%d allocations for 150 messages, want 0", least)
	}
}

// TestRemoteBatches: messages that are posted together are sent in few calls and acknowledged together.
func TestRemoteBatches(t *testing.T) {
	a, b := overUDP(t)
	const messages = 512
	for range messages {
		a.write(wr{op: opWrite, flags: signal, n: 8, remote: b.c.base, rkey: b.mr.RKey})
	}
	a.ring()
	for range messages {
		if w := a.wait(); w.status != 0 {
			t.Fatalf("%+v", w)
		}
	}
	sent, answered := a.counters(), b.counters()
	if sent.SentPackets < messages || sent.SentCalls*4 > sent.SentPackets {
		t.Errorf("%d packets left in %d calls, want a quarter at most", sent.SentPackets, sent.SentCalls)
	}
	if answered.SentPackets*4 > messages {
		t.Errorf("%d messages were acknowledged with %d packets, want a quarter at most", messages, answered.SentPackets)
	}
}

func (q *testQP) counters() (c roce.Counters) {
	q.c.e.Do(func() { c = q.c.e.LinkCounters() })
	return c
}

// byHand is n pairs of queue pairs of two engines on a fake network, whose loops have ended: the test makes the passes
// and sets the time.
func byHand(t *testing.T, n int, o Options) (as, bs []*testQP) {
	t.Helper()
	return byHandOn(t, roce.NewFakeNet(), n, o)
}

// byHandOn is byHand on a network that others may use.
func byHandOn(t *testing.T, net *roce.FakeNet, n int, o Options) (as, bs []*testQP) {
	t.Helper()
	var clients [2]*program
	for i := range clients {
		at := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})
		o.Port = roce.NewPort(net.Bind(roce.FakeOptions{}, at))
		e, gid := newHost(t, at, o)
		clients[i] = newClientAt(t, e, gid)
	}
	for range n {
		a, b := clients[0].newQP(rc), clients[1].newQP(rc)
		connect(a, b)
		as, bs = append(as, a), append(bs, b)
	}
	for _, c := range clients {
		e := c.e
		e.Stop()
		e.first.net.traffic.wake(e.first.clock.now)
		for _, bell := range e.first.bells.of {
			e.first.bells.activate(bell, e.first.clock.now)
		}
	}
	return as, bs
}

// pass makes one pass, d after the last, and returns the messages and packets that were sent.
func (q *testQP) pass(d time.Duration) (calls, packets uint64) {
	e := q.c.e
	before := e.LinkCounters()
	e.first.clock.now += ib.Time(d)
	e.first.step()
	after := e.LinkCounters()
	return after.SentCalls - before.SentCalls, after.SentPackets - before.SentPackets
}

func (q *testQP) expectPass(what string, d time.Duration, calls, packets uint64) {
	q.c.t.Helper()
	if c, p := q.pass(d); c != calls || p != packets {
		q.c.t.Fatalf("%s: %d packets left in %d calls, want %d in %d", what, p, c, packets, calls)
	}
}

// TestAckWaitsForAnswer: between programs that talk in turns, an acknowledgement is sent with the answer in one call.
// If no answer came last time, it is sent at once.
func TestAckWaitsForAnswer(t *testing.T) {
	as, bs := byHand(t, 1, Options{})
	a, b := as[0], bs[0]
	const us = time.Microsecond
	ask := func(packets uint64) {
		b.recv(0, 64)
		a.post(wr{op: opSend, flags: signal, n: 64})
		a.expectPass("the question", us, 1, packets)
	}
	answer := func(packets uint64) {
		a.recv(0, 64)
		b.post(wr{op: opSend, flags: signal, n: 64})
		b.expectPass("the answer", us, 1, packets)
	}
	ask(1)
	b.expectPass("nothing is known of the program yet", us, 1, 1)
	answer(1)
	a.expectPass("the answer, acknowledged", us, 1, 1)
	b.expectPass("nothing to do", us, 0, 0)

	ask(1)
	b.expectPass("an answer is likely", us, 0, 0)
	answer(2)
	a.expectPass("the next question is likely", us, 0, 0)

	ask(2) // the answer was followed by a question: that is an answer too
	b.expectPass("an answer is likely", us, 0, 0)
	b.expectPass("it does not come", time.Duration(ackWait), 1, 1)

	ask(1)
	b.expectPass("no answer came last time", us, 1, 1)
	for _, q := range []*testQP{a, b} {
		q.pass(us)
		for w, ok := q.try(); ok; w, ok = q.try() {
			if w.status != 0 {
				t.Errorf("completed with %+v", w)
			}
		}
	}
}

// TestInFlightIsShared: the data in flight of many queue pairs together is bounded, and all of it arrives.
func TestInFlightIsShared(t *testing.T) {
	const (
		pairs = 16
		most  = 256 << 10
		mtu   = 4096
		size  = 1 << 20
	)
	as, bs := byHand(t, pairs, Options{InFlight: most})
	e := as[0].c.e
	for i, a := range as {
		a.post(wr{op: opWrite, flags: signal, n: size, remote: bs[i].c.base, rkey: bs[i].mr.RKey})
	}
	done := 0
	for range 10_000 {
		as[0].pass(time.Microsecond)
		// A queue pair with nothing in flight may always send one packet.
		if f := e.first.net.flights.bytes; f > most+pairs*mtu {
			t.Fatalf("%d bytes in flight, want %d at most and a packet for each", f, most)
		}
		bs[0].pass(time.Microsecond)
		for _, a := range as {
			if w, ok := a.try(); ok {
				if done++; w.status != 0 {
					t.Fatalf("%+v", w)
				}
			}
		}
		if done == pairs {
			break
		}
	}
	if done != pairs || e.first.net.flights != (flights{}) {
		t.Errorf("%d of %d writes completed, in flight %+v", done, pairs, e.first.net.flights)
	}
	if c := e.LinkCounters(); c.SentPackets != pairs*size/mtu {
		t.Errorf("%d packets sent, want %d and none twice", c.SentPackets, pairs*size/mtu)
	}
}

// TestFloodBeforeTimeout: arrived packets are handled before a timer expires. A pass handles a bounded part of a flood,
// however many timers are due, and a flood does not stop the timers.
func TestFloodBeforeTimeout(t *testing.T) {
	const pairs, flood, batch = 8, 4000, 16
	net := roce.NewFakeNet()
	as, bs := byHandOn(t, net, pairs, Options{})
	e := as[0].c.e
	for i, a := range as {
		a.post(wr{op: opWrite, n: 8, remote: bs[i].c.base, rkey: bs[i].mr.RKey})
	}
	for range 4 {
		as[0].pass(time.Microsecond)
	}
	if len(as[0].c.flow().timers) != pairs {
		t.Fatalf("%d timers, want %d", len(as[0].c.flow().timers), pairs)
	}
	stranger := net.Bind(roce.FakeOptions{}, strangerIP)
	id, _, _ := stranger.Source(strangerIP, 0)
	pour := func() {
		for i := range flood {
			m := roce.Message{Data: make([]byte, 40+i%2), Source: id, Remote: netip.AddrPortFrom(as[0].c.gid.Addr(), 4791)}
			if _, err := stranger.Send([]roce.Message{m}); err != nil {
				t.Fatal(err)
			}
		}
	}
	pour()
	e.first.clock.now += ib.Time(2 * time.Second)
	sent := as[0].c.sent()
	for passes := 0; as[0].c.sent() == sent; passes++ {
		if passes > 2*drainMost/drainPerPass {
			t.Fatal("a flood stops the clock")
		}
		before := e.LinkCounters().RcvdCalls
		e.first.step()
		if heard := e.LinkCounters().RcvdCalls - before; heard > (1+drainPerPass)*batch {
			t.Fatalf("one pass heard %d messages, want %d at most", heard, (1+drainPerPass)*batch)
		}
		pour()
	}
}

// TestHeardAfterWait: the loop loses its processor in the middle of a pass, after it found nothing at the sockets.
// Packets that came meanwhile are handled before a peer counts as silent.
func TestHeardAfterWait(t *testing.T) {
	as, bs := byHand(t, 1, Options{})
	a, b := as[0], bs[0]
	e := a.c.e
	a.post(wr{op: opWrite, n: 8, remote: b.c.base, rkey: b.mr.RKey})
	a.pass(time.Microsecond)
	e.first.net.pollPort()
	if !e.first.net.traffic.dry {
		t.Fatal("there is an answer already")
	}
	for range 4 {
		b.pass(time.Millisecond)
	}
	before := e.LinkCounters().RcvdPackets
	if e.first.net.drain(); e.LinkCounters().RcvdPackets != before {
		t.Error("it has looked twice in a moment")
	}
	e.first.clock.now += ib.Time(time.Second)
	if heard := e.first.net.drain(); !heard || e.LinkCounters().RcvdPackets == before {
		t.Error("it has not looked again a second later")
	}
}
