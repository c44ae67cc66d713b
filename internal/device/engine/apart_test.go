package engine

import (
	"bytes"
	"reflect"
	"runtime"
	"strconv"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
)

// spread makes n pairs of connected programs on each of the data loops of an engine.
func spread(t *testing.T, e *Engine, n int) (pairs [][2]*testQP) {
	t.Helper()
	for range n {
		for loop := 1; loop < e.Loops(); loop++ {
			a, b := newClient(t, e).newQP(rc), newClient(t, e).newQP(rc)
			connect(a, b)
			for !a.c.moveTo(loop) { // it may be there already
				if a.c.loop() == loop {
					break
				}
			}
			pairs = append(pairs, [2]*testQP{a, b})
		}
	}
	return pairs
}

// converse posts messages of every kind to each pair, and waits for them.
func converse(t *testing.T, pairs [][2]*testQP) {
	t.Helper()
	const rounds = 30
	for _, p := range pairs {
		a, b := p[0], p[1]
		for range rounds {
			b.recv(0, 64)
			a.write(wr{op: opSend, flags: signal, n: 64})
			a.write(wr{op: opWrite, flags: signal, n: 65536, remote: b.c.base, rkey: b.mr.RKey})
			a.write(wr{op: opRead, flags: signal, off: 1 << 20, n: 8192, remote: b.c.base, rkey: b.mr.RKey})
		}
		a.ring()
	}
	for _, p := range pairs {
		for range 3 * rounds {
			if w := p[0].wait(); w.status != 0 {
				t.Fatalf("%+v", w)
			}
		}
		for range rounds {
			p[1].wait()
		}
	}
}

// betweenLoops is a pair of programs on each data loop of two hosts.
func betweenLoops(t *testing.T, loops int) (hosts [2]*Engine, pairs [][2]*testQP) {
	t.Helper()
	a, from := loopsHost(t, loops, Options{})
	b, to := loopsHost(t, loops, Options{})
	for loop := 1; loop < loops; loop++ {
		x, y := newClientAt(t, a, from).newQP(rc), newClientAt(t, b, to).newQP(rc)
		connect(x, y)
		x.c.moveTo(loop)
		y.c.moveTo(loop)
		pairs = append(pairs, [2]*testQP{x, y})
	}
	for _, e := range []*Engine{a, b} {
		e.Do(func() { e.loops.steer(true) })
	}
	return [2]*Engine{a, b}, pairs
}

// TestLoopsDoNotAllocate: the data path of several loops allocates nothing: on one host, between hosts, and where the kernel
// steers all packets to a loop that hands them over.
func TestLoopsDoNotAllocate(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	const loops = 3
	check := func(t *testing.T, pairs [][2]*testQP) {
		for range 3 {
			converse(t, pairs) // queues grow to what they need
		}
		// Other goroutines may allocate now and then, but not every time.
		least := uint64(1 << 60)
		for range 10 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			converse(t, pairs)
			runtime.ReadMemStats(&after)
			least = min(least, after.Mallocs-before.Mallocs)
		}
		if least > 0 {
			t.Errorf("%d allocations, want 0", least)
		}
	}
	t.Run("one host", func(t *testing.T) { check(t, spread(t, severalLoops(t, loops), 2)) })
	t.Run("between hosts", func(t *testing.T) {
		hosts, pairs := betweenLoops(t, loops)
		converse(t, pairs) // takes what was under way
		var before [2]uint64
		for i, e := range hosts {
			before[i], _ = across(e)
		}
		check(t, pairs)
		for i, e := range hosts {
			if n, _ := across(e); n != before[i] {
				t.Errorf("host %d: %d packets have arrived at another loop", i, n-before[i])
			}
		}
	})
	t.Run("handed over", func(t *testing.T) {
		hosts, pairs := betweenLoops(t, loops)
		for _, e := range hosts {
			e.Do(func() {
				if err := e.first.net.host.underlay.(*portUnderlay).Steer(&roce.SteeringTable{}); err != nil {
					t.Error(err)
				}
			})
		}
		check(t, pairs)
		for i, e := range hosts {
			if n, _ := across(e); n == 0 {
				t.Errorf("host %d: no packet was handed over", i)
			}
		}
	})
}

// TestLoopsTakeNoLock: traffic that stays on its loop goes on while somebody else holds every lock that loops share, changes
// nothing of what they share, and no packet is for another loop.
func TestLoopsTakeNoLock(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	const loops = 3
	one := severalLoops(t, loops)
	two, remote := betweenLoops(t, loops)
	pairs := append(spread(t, one, 1), remote...) // one for each loop: nothing is moved
	engines := append([]*Engine{one}, two[:]...)
	converse(t, pairs)
	var before []uint64
	for _, e := range engines {
		n, _ := across(e)
		before = append(before, n)
	}
	// What loops share: the NIC, and the queues of what is handed over. Commands change neither.
	each := func(f func(*Engine, *loop)) {
		for _, e := range engines {
			for _, o := range append([]*loop{e.first}, e.loops.all...) {
				f(e, o)
			}
		}
	}
	shared := func() (list [][]byte) {
		each(func(e *Engine, o *loop) {
			e.Do(func() { list = append(list, bytes.Clone(contents(e.only())), bytes.Clone(contents(&o.inward))) })
		})
		return list
	}
	then := shared()
	each(func(_ *Engine, o *loop) { o.cmds.mu.Lock(); o.frames.mu.Lock(); o.inward.mu.Lock() })
	for range 5 {
		converse(t, pairs) // no command: it would wait
	}
	each(func(_ *Engine, o *loop) { o.inward.mu.Unlock(); o.frames.mu.Unlock(); o.cmds.mu.Unlock() })
	for i, now := range shared() {
		if !bytes.Equal(now, then[i]) {
			t.Errorf("shared memory %d has changed", i)
		}
	}
	for i, e := range engines {
		if n, _ := across(e); n != before[i] {
			t.Errorf("engine %d: %d packets were for another loop", i, n-before[i])
		}
	}
}

// TestLoopsShareNoLine: what two loops write on the data path is never in one cache line.
func TestLoopsShareNoLine(t *testing.T) {
	e := severalLoops(t, 4)
	pairs := spread(t, e, 6)
	type user struct {
		loop int
		what string
	}
	of := make(map[uintptr]user)
	use := func(loop int, p any) {
		v := reflect.ValueOf(p)
		u := user{loop, v.Elem().Type().String()}
		for at, end := v.Pointer()/64, (v.Pointer()+v.Elem().Type().Size()-1)/64; at <= end; at++ {
			if o, ok := of[at]; ok && o.loop != loop {
				t.Errorf("a %s of loop %d and a %s of loop %d are in one cache line", u.what, loop, o.what, o.loop)
			}
			of[at] = u
		}
	}
	e.Do(func() {
		for _, o := range e.loops.heldLoops() {
			a := o.adapters.of[e.only()]
			use(o.number, o)
			use(o.number, a)
			use(o.number, a.part)
			use(o.number, o.shared)
		}
		for _, p := range pairs {
			for _, q := range p {
				k := q.task()
				for _, p := range []any{k, k.c, k.q, k.c.session} {
					use(k.e.number, p)
				}
			}
		}
	})
}

// BenchmarkCrossing measures what it costs to hand a burst over, on one thread: a copy into the queue and back out. A burst for no
// queue pair is dropped at the end.
func BenchmarkCrossing(b *testing.B) {
	for _, size := range []int{8, 4096, 65536} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			e := severalLoops(b, 2)
			from, to := e.first, e.loops.others[0]
			data := make([]byte, size)
			var span memory.Span
			b.ReportAllocs()
			e.Do(func() {
				for n := 0; n < b.N; {
					for range min(8, b.N-n) {
						span.Reset()
						span.Add(data)
						from.net.cross(to, crosser{user: 1}, crossed{b: transport.Burst{Type: ib.RC, Kind: transport.KindWrite, Dst: 0x200, Packets: 1, Data: &span}})
						n++
					}
					for to.inward.due() {
						to.takeCrossed()
					}
				}
			})
		})
	}
}
