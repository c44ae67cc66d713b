package engine

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// loopsHost is a host with several loops, at a random address of the loopback network.
func loopsHost(t testing.TB, loops int, o Options) (e *Engine, gid ib.GID) {
	t.Helper()
	var udp *roce.UDP
	var at netip.Addr
	err := error(unix.EADDRINUSE)
	for try := 0; try < 100 && errors.Is(err, unix.EADDRINUSE); try++ {
		at = netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
		udp, err = roce.ListenUDP(roce.UDPOptions{Shards: loops}, at)
	}
	if err != nil {
		t.Fatal(err)
	}
	o.Loops, o.Port, o.Wake = loops, roce.NewPort(udp), udp.Descriptors()
	o.Window, o.InFlight = udp.Windows()
	return newHost(t, at, o)
}

// across is how many packets have arrived at another loop than theirs, and how many of them were lost.
func across(e *Engine) (packets, lost uint64) {
	e.Do(func() {
		list, _ := e.LoopStatus()
		for _, l := range list {
			packets += l.Across
			lost += l.Lost
		}
	})
	return packets, lost
}

// TestLoopsReachHosts: programs on all loops of a host exchange messages of every kind with programs on all loops of another
// host, or of a host with one loop, while their sessions move. Nothing is lost, and nothing differs.
func TestLoopsReachHosts(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	for _, loops := range [][2]int{{3, 3}, {4, 1}} {
		var hosts [2]*Engine
		var gids [2]ib.GID
		for i := range hosts {
			hosts[i], gids[i] = loopsHost(t, loops[i], Options{})
		}
		var pairs [][2]*testQP
		for range 3 {
			pair := [2]*testQP{newClientAt(t, hosts[0], gids[0]).newQP(rc), newClientAt(t, hosts[1], gids[1]).newQP(rc)}
			connect(pair[0], pair[1])
			pairs = append(pairs, pair)
		}
		rounds := 40
		if os.Getenv("VRDMA_TEST_ALL") != "" {
			rounds = 2000
		}
		var over atomic.Bool
		var traffic sync.WaitGroup
		for _, p := range pairs {
			traffic.Go(func() {
				for !over.Load() {
					exchange(t, p[0], p[1])
					pipelined(t, p[0], p[1])
					atomics(t, p[0], p[1])
				}
			})
		}
		r := rand.New(rand.NewPCG(1, 2))
		moved := 0
		for range rounds {
			side := r.IntN(2)
			if pairs[r.IntN(len(pairs))][side].c.moveTo(r.IntN(loops[side])) {
				moved++
			}
			exchangeOnce(t, hosts, gids) // another pair comes and goes meanwhile
		}
		over.Store(true)
		traffic.Wait()
		if moved < rounds/4 {
			t.Errorf("%v loops: %d moves in %d rounds", loops, moved, rounds)
		}
		// Each session is alone in its bucket: as soon as the table follows, no packet arrives at another loop.
		for i, p := range pairs {
			p[0].c.moveTo(i % loops[0])
			p[1].c.moveTo(i % loops[1])
		}
		for settled := false; !settled; {
			var moves, before [2]uint64
			for i, e := range hosts {
				e.Do(func() { e.loops.steer(false) })
				moves[i] = e.moves()
			}
			for _, p := range pairs {
				exchange(t, p[0], p[1]) // takes what is under way
			}
			for i, e := range hosts {
				before[i], _ = across(e)
			}
			for _, p := range pairs {
				exchange(t, p[0], p[1])
				pipelined(t, p[0], p[1])
			}
			settled = true
			for i, e := range hosts {
				n, _ := across(e)
				if settled = settled && e.moves() == moves[i]; settled && n != before[i] { // else the balancer has moved one
					t.Errorf("%v loops: at host %d %d packets have arrived at another loop", loops, i, n-before[i])
				}
			}
		}
		t.Logf("%d moves", moved)
	}
}

// TestMovesOnLossyNetwork: programs of two hosts that recognise each other write bytes of their own, while packets are lost and
// sessions move: packets wait on each loop for missing ones. Nobody gets bytes of another.
func TestMovesOnLossyNetwork(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	const loops = 3
	net := roce.NewFakeNet()
	random := rand.New(rand.NewPCG(3, 4)) // the network is locked while it is used
	net.Way = func(d *roce.FakeDatagram) {
		if random.IntN(20) == 0 {
			d.Copies = 0
		}
	}
	var hosts [2]*Engine
	var gids [2]ib.GID
	for i := range hosts {
		at := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})
		o := Options{Loops: loops, Port: roce.NewPort(net.Bind(roce.FakeOptions{Shards: loops, Merge: 1}, at)), Window: 1 << 20, InFlight: 4 << 20, Recognise: true, Version: "test"}
		hosts[i], gids[i] = newHost(t, at, o)
		stayAwake(t, hosts[i])
	}
	const size = 256 << 10
	var pairs [][2]*testQP
	for i := range 6 {
		a, b := newClientAt(t, hosts[0], gids[0]), newClientAt(t, hosts[1], gids[1])
		for j := range a.mem[:size] {
			a.mem[j] = byte(1 + i)
		}
		pairs = append(pairs, [2]*testQP{a.newQP(rc), b.newQP(rc)})
		connect(pairs[i][0], pairs[i][1])
	}
	rounds := 20
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		rounds = 500
	}
	var traffic sync.WaitGroup
	var over atomic.Bool
	for i, p := range pairs {
		traffic.Go(func() {
			for range rounds {
				clear(p[1].c.mem[:size])
				p[0].post(wr{op: opWrite, flags: signal, n: size, remote: p[1].c.base, rkey: p[1].mr.RKey})
				if w := p[0].wait(); w.status != 0 {
					t.Errorf("pair %d: %+v", i, w)
					return
				}
				for j, got := range p[1].c.mem[:size] {
					if got != byte(1+i) {
						t.Errorf("pair %d: byte %d is %d", i, j, got)
						return
					}
				}
			}
		})
	}
	var moving sync.WaitGroup
	left := 0 // moves of queue pairs that have left packets behind
	moving.Go(func() {
		l := hosts[1].loops
		for r := rand.New(rand.NewPCG(5, 6)); !over.Load(); time.Sleep(200 * time.Microsecond) {
			q := pairs[r.IntN(len(pairs))][1]
			hosts[1].Do(func() {
				waits := q.episode() != 0
				if k, to := q.task().c, l.heldLoops()[r.IntN(loops)]; k.e == to || !l.move(l.group(nil, k), to) {
					return
				}
				if n := q.episode(); n != 0 {
					t.Errorf("a queue pair has moved with episode %d of another loop's stash", n)
				}
				if waits {
					left++
				}
			})
		}
	})
	traffic.Wait()
	over.Store(true)
	moving.Wait()
	stashed := uint64(0)
	hosts[1].Do(func() {
		for _, p := range pairs {
			stashed += p[1].task().q.Transport().Counters().Stashed
		}
	})
	if left == 0 || stashed == 0 {
		t.Errorf("%d moves with packets that wait, %d packets have waited for others", left, stashed)
	}
	t.Logf("%d moves, %d with packets that wait", hosts[1].moves(), left)
}

// episode is that of the queue pair in its loop's stash (transport/stash.go); 0: none of its packets wait there.
func (q *testQP) episode() uint64 {
	return reflect.ValueOf(q.task().q.Transport()).Elem().FieldByName("resp").FieldByName("Episode").Uint()
}

// exchangeOnce connects two new programs, and lets them talk.
func exchangeOnce(t *testing.T, hosts [2]*Engine, gids [2]ib.GID) {
	t.Helper()
	a, b := newClientAt(t, hosts[0], gids[0]), newClientAt(t, hosts[1], gids[1])
	x, y := a.newQP(rc), b.newQP(rc)
	connect(x, y)
	bounce(t, x, y, 2)
	for _, c := range []*program{a, b} {
		c.e.Do(func() { c.e.Detach(c.s); c.s.Close() })
	}
}

// TestHandedOver: where the kernel steers nothing, all packets arrive at the first loop, which hands them over.
func TestHandedOver(t *testing.T) {
	net := roce.NewFakeNet()
	var qps [2]*testQP
	for i := range qps {
		at := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})
		e, gid := newHost(t, at, Options{Loops: 3, Port: roce.NewPort(net.Bind(roce.FakeOptions{Shards: 3, Unsteered: true}, at)), Window: 1 << 20, InFlight: 4 << 20})
		stayAwake(t, e)
		c := newClientAt(t, e, gid)
		if !c.moveTo(1 + i) {
			t.Fatal("not moved")
		}
		qps[i] = c.newQP(rc)
	}
	connect(qps[0], qps[1])
	exchange(t, qps[0], qps[1])
	pipelined(t, qps[0], qps[1])
	atomics(t, qps[0], qps[1])
	for i, q := range qps {
		if n := q.c.loop(); n != 1+i {
			t.Errorf("program %d is on loop %d", i, n)
		}
		if n, _ := across(q.c.e); n == 0 {
			t.Errorf("host %d: no packet was handed over", i)
		}
	}
}

// TestFloodHarmsItself: a tenant floods what a loop hands over to another, with bursts for its own queue pair. A victim on the same
// two loops talks on, and none of its packets is lost there. The flood has bounded memory, and counters show what is lost of it.
func TestFloodHarmsItself(t *testing.T) {
	net := roce.NewFakeNet()
	var victims, floods [2]*testQP
	for i := range victims {
		at := netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)})
		e, gid := newHost(t, at, Options{Loops: 3, Port: roce.NewPort(net.Bind(roce.FakeOptions{Shards: 3, Unsteered: true}, at)), Window: 1 << 20, InFlight: 4 << 20})
		stayAwake(t, e)
		for user, q := range []**testQP{&victims[i], &floods[i]} {
			c := newUserAt(t, e, gid, 1+user)
			if !c.moveTo(1) {
				t.Fatal("not moved")
			}
			*q = c.newQP(rc)
		}
	}
	connect(victims[0], victims[1])
	connect(floods[0], floods[1])
	var over atomic.Bool
	var flooding sync.WaitGroup
	var lost [2]uint64
	for i, q := range floods {
		data := make([]byte, 4096)
		begun := make(chan struct{})
		flooding.Go(func() {
			for first := true; !over.Load(); time.Sleep(time.Millisecond) {
				q.c.e.Do(func() {
					to := q.c.e.loops.others[0]
					x, before := &to.inward, len(to.inward.queue.list)
					var span memory.Span
					const bursts = 1000
					for range bursts {
						span.Reset()
						span.Add(data)
						b := transport.Burst{Type: ib.RC, Kind: transport.KindWrite, Dst: q.info.Num, SGID: floods[1-i].c.gid, DGID: q.c.gid, PSN: 1000, Packets: 1, Data: &span}
						q.c.e.first.net.Receive(ib.HostNetwork, &b, false)
					}
					lost[i] += uint64(bursts - (len(x.queue.list) - before))
					if n := len(x.queue.data) + crossingCost*len(x.queue.list); n > crossingPart+crossingMost/2 {
						t.Errorf("host %d: %d bytes wait", i, n)
					}
				})
				if first {
					first = false
					close(begun)
				}
			}
		})
		<-begun
	}
	for range 3 {
		exchange(t, victims[0], victims[1])
		pipelined(t, victims[0], victims[1])
		atomics(t, victims[0], victims[1])
	}
	over.Store(true)
	flooding.Wait()
	for i, q := range victims {
		if _, n := across(q.c.e); n != lost[i] || n == 0 {
			t.Errorf("host %d: %d packets are lost, %d of the flood", i, n, lost[i])
		}
	}
	exchange(t, victims[0], victims[1])
}

// stayAwake makes all loops look at the network all the time: a fake network has no descriptor that would wake them.
func stayAwake(t *testing.T, e *Engine) {
	done := make(chan struct{})
	var over atomic.Bool
	go func() {
		defer close(done)
		for !over.Load() {
			if e.Do(func() {
				for _, o := range e.loops.heldLoops() {
					o.net.traffic.wake(o.clock.now)
				}
			}) != nil {
				return
			}
			for _, o := range e.loops.all {
				o.poller.kick()
			}
			time.Sleep(20 * time.Microsecond)
		}
	}()
	t.Cleanup(func() { over.Store(true); <-done })
}

// TestCrossingIsBounded: a loop that does not take what others hand over costs bounded memory. The packets of tenants that
// do not fit are lost and counted, and leave space for those of others, also if several tenants flood it.
func TestCrossingIsBounded(t *testing.T) {
	from, to := newEngine(t), newEngine(t)
	flood, other := crosser{tenant: "red"}, crosser{tenant: "blue"}
	to.Stop() // it takes nothing
	a, b := from.first, to.first
	n := &a.net
	burst := func() crossed {
		var data memory.Span
		data.Add(make([]byte, 3000))
		return crossed{b: transport.Burst{Type: ib.RC, Kind: transport.KindWrite, Packets: 3, Data: &data}}
	}
	for range 10_000 {
		n.cross(b, flood, burst())
	}
	x := &b.inward
	if got := len(x.queue.data); got > crossingPart || got < crossingPart/2 {
		t.Errorf("%d bytes wait, want up to %d", got, crossingPart)
	}
	lost := x.lost.Load()
	if sent := 3 * uint64(len(x.queue.list)); lost+sent != 30_000 || n.local.across != 30_000 {
		t.Errorf("%d packets wait, %d are lost, %d have crossed", sent, lost, n.local.across)
	}
	n.cross(b, other, burst())
	if x.lost.Load() != lost {
		t.Error("a packet of another tenant is lost")
	}
	flooded := func(tenants int) {
		for i := range tenants {
			for range 1000 {
				n.cross(b, crosser{tenant: defaultTenant, user: 1000 + i}, burst())
			}
		}
		if got := len(x.queue.data) + crossingCost*len(x.queue.list); got > crossingMost {
			t.Errorf("%d bytes wait, want up to %d", got, crossingMost)
		}
	}
	flooded(6)
	lost = x.lost.Load()
	n.cross(b, crosser{}, burst())
	n.cross(b, other, burst())
	if x.lost.Load() != lost {
		t.Error("a packet is lost that is not of those who flood")
	}
	flooded(100)
	for x.due() {
		b.takeCrossed()
	}
	if len(x.queue.list) != 0 || len(x.used) != 0 {
		t.Error("something is left")
	}
	lost = x.lost.Load()
	n.cross(b, flood, burst())
	if x.lost.Load() != lost {
		t.Error("a packet is lost after the queue was emptied")
	}
}

// TestSharesBytesInFlight: loops that talk with other hosts have the bytes in flight of one together.
func TestSharesBytesInFlight(t *testing.T) {
	e, gid := loopsHost(t, 4, Options{})
	o, other := loopsHost(t, 1, Options{})
	var qps []*testQP
	for i := range 3 {
		c := newClientAt(t, e, gid)
		c.moveTo(i)
		a, b := c.newQP(rc), newClientAt(t, o, other).newQP(rc)
		connect(a, b)
		qps = append(qps, a)
		e.Do(func() { e.loops.steer(false) })
		e.Do(func() {
			for _, l := range e.loops.heldLoops() {
				if got := l.net.flights.parts; got != uint64(i+1) {
					t.Errorf("%d loops talk with another host; loop %d has one of %d parts", i+1, l.number, got)
				}
			}
		})
	}
	e.Do(func() {
		most := e.first.opts.InFlight
		for i, q := range qps {
			if got := q.task().share(); got != most/3 {
				t.Errorf("queue pair %d may have %d bytes in flight, want %d", i, got, most/3)
			}
		}
	})
}

// TestNumbersNameBuckets: sessions get different buckets of their loop, and their queue pairs' numbers name them. With one loop
// they name the source port only, by three bits.
func TestNumbersNameBuckets(t *testing.T) {
	for _, c := range []struct{ loops, names int }{{1, roce.SourceClasses}, {4, roce.Buckets}} {
		e, gid := loopsHost(t, c.loops, Options{})
		seen, numbers := make(map[int]int), make(map[int]int)
		for range roce.Buckets {
			p := newClientAt(t, e, gid)
			for range 3 {
				q := p.newQP(rc)
				e.Do(func() {
					tk := q.task()
					b := tk.c.bucket - 1
					seen[b]++
					numbers[roce.BucketOf(tk.q.Num())%c.names]++
					if roce.BucketOf(tk.q.Num())%c.names != b%c.names || home(b, c.loops) != uint8(tk.e.number) {
						t.Errorf("%d loops: queue pair %#x of a session on loop %d with bucket %d", c.loops, tk.q.Num(), tk.e.number, b)
					}
				})
			}
		}
		if len(seen) != roce.Buckets || len(numbers) != c.names {
			t.Errorf("%d loops: %d buckets for %d sessions, and numbers name %d", c.loops, len(seen), roce.Buckets, len(numbers))
		}
	}
}
