package simnet

import (
	"sync"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// rove runs one random conversation between two hosts, and inside each, with several loops. Queue pairs move between loops at
// random moments, with their peer if it is on the same host; the steering table follows later, or never.
func rove(t *testing.T, seed uint64) (story, Counters) {
	c := weather(seed)
	c.Local, c.Freeze = false, 0
	net := New(c)
	net.Freeze = 0.2 // of moves
	var hosts [2]*Host
	for i := range hosts {
		hosts[i] = net.NewHost(1 + net.Rand.IntN(4))
		hosts[i].Unsteered = net.Rand.IntN(6) == 0
	}
	loop := func(h *Host) int { return net.Rand.IntN(len(h.loops)) }
	var sides []*side
	for i := range uint32(1 + net.Rand.IntN(6)) {
		num := 17 + 2*i
		if net.Rand.IntN(3) == 0 {
			num = 17 + 64*(1+i) // one bucket for several queue pairs
		}
		s := pair(t, net, num)
		sides = append(sides, s...)
		a, b := hosts[net.Rand.IntN(2)], hosts[net.Rand.IntN(2)]
		at := loop(a)
		a.Add(s[0].e, at)
		if b != a {
			at = loop(b)
		} else {
			s[0].e.QP.SetPath(transport.Path{})
			s[1].e.QP.SetPath(transport.Path{})
		}
		b.Add(s[1].e, at)
	}
	for _, s := range sides {
		for range net.Rand.IntN(20) {
			s.post(net, rcOps)
		}
	}
	limit := net.Now
	for rounds := 0; !finished(sides); rounds++ {
		if rounds == 1_000_000 {
			t.Fatalf("conversation does not end")
		}
		if !net.Round(limit) {
			limit = net.Now + 500_000
		}
		if t.Failed() {
			t.FailNow() // a loop has found a difference
		}
		if rounds%8 == 0 {
			for _, s := range sides {
				for s.ready < len(s.recvs) && net.Rand.IntN(8) != 0 {
					s.postRecv(net)
				}
			}
		}
		if net.Rand.IntN(4) == 0 {
			e := sides[net.Rand.IntN(len(sides))].e
			e.loop.host.Move(e, loop(e.loop.host))
		}
		for _, h := range hosts {
			if net.Rand.IntN(8) == 0 {
				h.Steer()
			}
		}
	}
	for net.Round(net.Now + 1e10) {
	}
	sum := story{frozen: net.Frozen, delayed: net.Delayed}
	for _, s := range sides {
		s.final()
		add(&sum.Counters, s.e.QP.Counters())
	}
	return sum, net.Counters
}

// TestLoops: queue pairs that move between loops at random moments do what they do on one loop.
func TestLoops(t *testing.T) {
	var mu sync.Mutex
	var sum story
	var count Counters
	each(t, 4000, func(t *testing.T, seed uint64) {
		s, c := rove(t, seed)
		mu.Lock()
		defer mu.Unlock()
		add(&sum.Counters, &s.Counters)
		count.add(&c)
		count.Frozen += c.Frozen
		count.Moved += c.Moved
		count.Across += c.Across
		count.Again += c.Again
	})
	if *conversations != 1 && (count.Moved == 0 || count.Frozen == 0 || count.Across == 0 || count.Again == 0 || count.Lost == 0 ||
		count.Delayed == 0 || sum.OutOfSequence == 0 || sum.Retransmitted == 0 || sum.Stashed == 0) {
		t.Errorf("the conversations did not meet every trouble: %+v, %+v", count, sum)
	}
	t.Logf("%+v, %+v", count, sum)
}

// TestLoopsRepeat: what happens depends on the seed alone, although each loop has a goroutine of its own.
func TestLoopsRepeat(t *testing.T) {
	each(t, 100, func(t *testing.T, seed uint64) {
		s, c := rove(t, seed)
		if s2, c2 := rove(t, seed); s2 != s || c2 != c {
			t.Errorf("two runs differ:\n%+v, %+v\n%+v, %+v", s, c, s2, c2)
		}
	})
}

// TestHandedIsBounded: what waits for a loop is bounded, and what does not fit is lost.
func TestHandedIsBounded(t *testing.T) {
	net := New(Config{Seed: 1})
	a, b := net.NewHost(1), net.NewHost(2)
	s := pair(t, net, 17)
	a.Add(s[0].e, 0)
	b.Add(s[1].e, 1)
	b.Unsteered = true
	for range 3 * handedMost {
		net.launch(flight{to: s[1].e, b: transport.Burst{Packets: 1, Kind: transport.KindCNP}})
	}
	for net.Round(net.Now) {
	}
	if want := 3 * handedMost; net.Across != want || net.Lost != want-handedMost || s[1].e.RcvdCNP != handedMost {
		t.Errorf("%d were handed over, %d lost, %d received, want %d, %d, %d", net.Across, net.Lost, s[1].e.RcvdCNP, want, want-handedMost, handedMost)
	}
}

// TestStashStaysBehind: packets of two queue pairs wait on two loops for a missing one, with equal numbers. One of the queue pairs
// moves to the loop of the other, and gets none of the other's.
func TestStashStaysBehind(t *testing.T) {
	const size = 4 * 1024
	net := New(Config{Seed: 1, Delay: 5_000, Chunk: 1})
	a, b := net.NewHost(1), net.NewHost(2)
	attr := Defaults()
	var to [2]*Endpoint
	for i := range to {
		num := uint32(17 + 2*i)
		from := net.Add(NewNode(size), transport.Config{Type: ib.RC, Num: num})
		to[i] = net.Add(NewNode(size), transport.Config{Type: ib.RC, Num: num + 1})
		net.Connect(from, to[i], attr, attr)
		for _, e := range []*Endpoint{from, to[i]} {
			e.QP.SetPath(transport.Path{Remote: true, Own: true})
		}
		a.Add(from, 0)
		b.Add(to[i], i)
		key, rkey := from.Node.Register(Base, size, AllAccess), to[i].Node.Register(Base, size, AllAccess)
		for j := range from.Node.Mem {
			from.Node.Mem[j] = byte(1 + i)
		}
		w := transport.SendWQE{Op: transport.WRWrite, Flags: transport.FlagSignaled, RemoteAddr: Base, RKey: rkey, NumSGE: 1}
		w.SGE[0] = transport.SGE{Addr: Base, Length: size, LKey: key}
		from.Post(w)
	}
	b.Steer()
	net.Lose = func(b *transport.Burst) bool { return b.First && b.Kind == transport.KindWrite }
	for to[0].QP.Counters().Stashed < 3 || to[1].QP.Counters().Stashed < 3 {
		if !net.Round(net.Now + 1_000_000) {
			t.Fatalf("stashed: %d and %d", to[0].QP.Counters().Stashed, to[1].QP.Counters().Stashed)
		}
	}
	if !b.Move(to[1], 0) {
		t.Fatal("not moved")
	}
	net.Lose = func(b *transport.Burst) bool { return b.First && b.Kind == transport.KindWrite && b.Dst == to[0].Num }
	for len(to[1].peer.Sent) == 0 && net.Round(net.Now+1e9) {
	}
	net.Lose = nil
	for net.Round(net.Now + 1e9) {
	}
	for i, e := range to {
		for j, got := range e.Node.Mem {
			if got != byte(1+i) {
				t.Fatalf("queue pair %d: byte %d is %d", i, j, got)
			}
		}
		if len(e.peer.Sent) != 1 || e.peer.Sent[0].Status != transport.Success {
			t.Errorf("queue pair %d: %+v", i, e.peer.Sent)
		}
	}
}
