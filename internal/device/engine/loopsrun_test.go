package engine

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// severalLoops is an engine with n loops that run.
func severalLoops(t testing.TB, n int) *Engine {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0)) // a loop is a thread of its own
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	e, err := newWith(foreignNIC(testGID, 60_000_000_000), Options{Loops: n})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	t.Cleanup(e.Stop)
	return e
}

// moveTo moves the group of a program to a loop, if the group can be moved now.
func (c *program) moveTo(loop int) (moved bool) {
	e := c.e
	e.Do(func() {
		if k := clientOf(c.s); k != nil {
			moved = e.loops.move(e.loops.group(nil, k), e.loops.heldLoops()[loop])
		}
	})
	return moved
}

// loop is the number of the loop that serves a program.
func (c *program) loop() (n int) {
	c.e.Do(func() { n = c.e.LoopOf(c.s) })
	return n
}

// TestLoopsRun: pairs of programs with memory of every kind exchange messages of every kind, while their sessions move
// between loops that run, other programs come and go, and the engine is halted. Nothing is lost, and nothing differs.
func TestLoopsRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	e := severalLoops(t, 3)
	rounds := 60
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		rounds = 3000
	}
	var pairs [][2]*testQP
	for _, prepare := range []func(*program){func(*program) {}, func(c *program) { c.foreign() }, func(c *program) { c.mixed() }} {
		a, b := newClientOf(t, e, 1), newClientOf(t, e, 2)
		prepare(a)
		prepare(b)
		pair := [2]*testQP{a.newQP(rc), b.newQP(rc)}
		pair[0].timeout, pair[1].timeout = 31, 31 // hours: nothing is sent again because the machine is busy
		connect(pair[0], pair[1])
		pairs = append(pairs, pair)
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
	moved, halted := 0, 0
	for range rounds {
		switch r.IntN(8) {
		case 0:
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			if err := e.Halt(ctx, func() error { return nil }); err != nil {
				t.Error(err)
			}
			stop()
			halted++
		case 1: // the NIC needs the first loop for a while
			e.Do(func() {
				e.SetShare(e.only(), "red", schedule.NICParams{Weight: 2})
				e.SetShare(e.only(), "red", schedule.NICParams{Weight: 1})
			})
		case 2: // a program comes, talks and goes
			a, b := newClientOf(t, e, 3), newClientOf(t, e, 3)
			x, y := a.newQP(rc), b.newQP(rc)
			connect(x, y)
			if a.loop() != b.loop() {
				t.Error("connected programs are on two loops")
			}
			bounce(t, x, y, 3)
			e.Do(func() { e.Detach(b.s); b.s.Close() })
		default:
			if pairs[r.IntN(len(pairs))][r.IntN(2)].c.moveTo(r.IntN(3)) {
				moved++
			}
		}
	}
	over.Store(true)
	traffic.Wait()
	if moved < rounds/8 {
		t.Errorf("%d moves in %d rounds", moved, rounds)
	}
	for i, p := range pairs {
		for _, q := range p {
			e.Do(func() {
				if n := q.task().q.Transport().Counters().Retransmitted; n != 0 {
					t.Errorf("pair %d: sent again %d times", i, n)
				}
			})
		}
	}
	e.Do(func() {
		list, _ := e.LoopStatus()
		for _, l := range list {
			if l.Across != 0 {
				t.Errorf("%d packets of loop %d were for another loop", l.Across, l.Number)
			}
		}
	})
	t.Logf("%d moves, %d halts", moved, halted)
}

// TestLoopsFault: memory of a program faults on a data loop, while other commands close programs and move them. It ends
// that program and no other, whichever loop or thread touches the memory first.
func TestLoopsFault(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	e := severalLoops(t, 3)
	evicted := make(chan *nic.Session, 16)
	e.Do(func() { e.first.opts.Evict = func(s *nic.Session) { evicted <- s } })
	x, y := newClientOf(t, e, 1).newQP(rc), newClientOf(t, e, 1).newQP(rc)
	x.timeout, y.timeout = 31, 31
	connect(x, y)
	var over atomic.Bool
	var beside sync.WaitGroup
	beside.Go(func() {
		for !over.Load() {
			bounce(t, x, y, 10)
		}
	})
	beside.Go(func() {
		for !over.Load() { // the first loop works in the place of the others
			e.Do(func() {})
		}
	})
	rounds := 12
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		rounds = 500
	}
	for i := range rounds {
		a, b := newClientOf(t, e, 2).newQP(rc), newClientOf(t, e, 2).newQP(rc)
		connect(a, b)
		bounce(t, a, b, 1)
		a.c.moveTo(i % 3)
		protect(t, a.c.s.Arena.Doorbell(), a.info.SQ)
		a.post(wr{op: opWrite, flags: signal, n: 8, remote: b.c.base, rkey: b.mr.RKey})
		if i%2 == 0 { // another command closes it at the same time
			e.Do(func() { e.Detach(a.c.s); a.c.s.CloseLost() })
			continue
		}
		for ended := false; !ended; {
			select {
			case s := <-evicted: // or it is the program before, whose fault was faster than the command
				ended = s == a.c.s
			case <-time.After(time.Minute):
				t.Fatal("the program was not ended")
			}
		}
	}
	over.Store(true)
	beside.Wait()
	if !x.c.s.Served() || !y.c.s.Served() {
		t.Error("a program beside was ended")
	}
}

// protect makes the daemon's mapping of a ring fault, in an arena that begins with doorbell.
func protect(t *testing.T, doorbell []byte, ring nic.MMap) {
	t.Helper()
	first := (ring.Offset + 4095) &^ 4095
	mem := bytesAt(addressOf(doorbell)+uintptr(first), int(uint64(ring.Size)&^4095))
	if err := unix.Mprotect(mem, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE) })
}

// TestStrangersStayApart: a program that connects its queue pairs to those of others, which are not connected to it, does
// not bring them together on one loop, and does not move.
func TestStrangersStayApart(t *testing.T) {
	e := severalLoops(t, 3)
	var victims [][2]*testQP
	for loop := 1; loop < 3; loop++ {
		a, b := newClientOf(t, e, 1).newQP(rc), newClientOf(t, e, 1).newQP(rc)
		connect(a, b)
		bounce(t, a, b, 1)
		a.c.moveTo(loop)
		victims = append(victims, [2]*testQP{a, b})
	}
	stranger := newClientOf(t, e, 2)
	stranger.moveTo(0)
	moves := e.moves()
	for _, v := range victims {
		q := stranger.newQP(rc)
		q.timeout = 8 // a millisecond
		q.to(v[0])
		q.post(wr{op: opWrite, flags: signal, n: 64, remote: v[0].c.base, rkey: v[0].mr.RKey})
		if w := q.wait(); w.status != uint32(transport.RetryExcErr) {
			t.Errorf("a write to a queue pair that is not connected to the writer: %+v", w)
		}
	}
	for i, v := range victims {
		if a, b := v[0].c.loop(), v[1].c.loop(); a != i+1 || b != i+1 {
			t.Errorf("victims %d are on loops %d and %d", i, a, b)
		}
	}
	if n := e.moves() - moves; n != 0 {
		t.Errorf("%d sessions have moved", n)
	}
	e.Do(func() {
		if len(e.loops.meet) != 0 {
			t.Errorf("%d queue pairs wait to meet others", len(e.loops.meet))
		}
	})
}

// moves is how many sessions have moved.
func (e *Engine) moves() (n uint64) {
	e.Do(func() { n = e.loops.moves })
	return n
}

// TestSmallMovesToLarge: a server with many connections stays where it is when another client connects, whichever side
// connects last.
func TestSmallMovesToLarge(t *testing.T) {
	e := severalLoops(t, 3)
	server := newClient(t, e)
	connections := func(n int) (list []*testQP) {
		for range n {
			list = append(list, server.newQP(rc))
		}
		return list
	}
	first := newClient(t, e)
	for _, q := range connections(4) {
		connect(first.newQP(rc), q)
	}
	server.moveTo(2)
	for i, q := range connections(8) {
		c := newClient(t, e)
		c.moveTo(i % 3)
		x := c.newQP(rc)
		if i%2 == 0 {
			connect(x, q)
		} else {
			connect(q, x)
		}
		if s, n := server.loop(), c.loop(); s != 2 || n != 2 {
			t.Fatalf("client %d: the server is on loop %d, the client on %d, want 2", i, s, n)
		}
		bounce(t, x, q, 2)
	}
}

// TestPinnedConnects: a group that needs the first loop brings those there that it is connected to.
func TestPinnedConnects(t *testing.T) {
	e := severalLoops(t, 3)
	for _, swap := range []bool{false, true} {
		a, b := newClient(t, e), newClient(t, e)
		a.moveTo(1)
		b.moveTo(2)
		a.newQP(ud)
		if n := a.loop(); n != 0 {
			t.Fatalf("a program with datagrams is on loop %d", n)
		}
		x, y := a.newQP(rc), b.newQP(rc)
		if swap {
			x, y = y, x
		}
		connect(x, y)
		if k, n := a.loop(), b.loop(); k != 0 || n != 0 {
			t.Errorf("the programs are on loops %d and %d, want 0", k, n)
		}
		bounce(t, x, y, 2)
	}
}

// TestCommandsLeaveTime: programs that make commands all the time leave busy data loops half of the time.
func TestCommandsLeaveTime(t *testing.T) {
	e := severalLoops(t, 2)
	a, b := newClient(t, e).newQP(rc), newClient(t, e).newQP(rc)
	connect(a, b)
	a.c.moveTo(1)
	busy := 0
	for range 500 {
		a.post(wr{op: opWrite, flags: signal, n: 64, remote: b.c.base, rkey: b.mr.RKey})
		for range 2 {
			e.Do(func() {
				l := e.loops
				if l.held < l.freeUntil {
					t.Errorf("the data loop was held %d ns too early", l.freeUntil-l.held)
				}
				if l.busy {
					busy++
				}
				for at := e.first.clock.time(); e.first.clock.time() < at+20_000; { // a command that takes long
				}
			})
		}
		if w := a.wait(); w.status != 0 {
			t.Fatalf("%+v", w)
		}
	}
	if busy == 0 {
		t.Error("the data loop was never busy")
	}
}

// TestMarksReachAllLoops: memory that has stopped one loop is reached aside on all loops, also for programs of the user
// that move, and the marks end everywhere.
func TestMarksReachAllLoops(t *testing.T) {
	e := severalLoops(t, 3)
	var of []*testQP
	for loop := range 3 {
		c := newClientOf(t, e, 7)
		c.reachable()
		q := c.newQP(rc)
		connect(q, q)
		c.moveTo(loop)
		of = append(of, q)
	}
	other := newClientOf(t, e, 8)
	other.reachable()
	stranger := other.newQP(rc)
	connect(stranger, stranger)
	e.Do(func() { of[1].task().e.stall.blame(of[1].task()) })
	aside := func(q *testQP) (is bool) {
		e.Do(func() { is = q.task().q.Aside() })
		return is
	}
	for i, q := range of {
		eventually(t, "loop "+strconv.Itoa(i)+" reaches the memory aside", func() bool { return aside(q) })
	}
	if aside(stranger) {
		t.Error("another user's memory is reached aside")
	}
	of[0].c.moveTo(2)
	if !aside(of[0]) {
		t.Error("the mark is lost by a move")
	}
	e.Do(func() {
		for _, o := range e.loops.heldLoops() {
			if o.stall.due.Load() == 0 {
				t.Errorf("loop %d does not review its marks", o.number)
			}
		}
	})
	for _, q := range of {
		q.post(wr{op: opWrite, flags: signal, n: 64, remote: q.c.base, rkey: q.mr.RKey})
		if w := q.wait(); w.status != 0 {
			t.Errorf("%+v", w)
		}
	}
}

// TestHeldLoopIsNotStopped: a loop that is held for long was not stopped by a client's memory.
func TestHeldLoopIsNotStopped(t *testing.T) {
	e := severalLoops(t, 3)
	a, b := newClient(t, e).newQP(rc), newClient(t, e).newQP(rc)
	connect(a, b)
	a.c.moveTo(1)
	before := e.Stalls()
	for range 3 {
		bounce(t, a, b, 3)
		if err := e.Halt(t.Context(), func() error { time.Sleep(20 * stallLook); return nil }); err != nil {
			t.Fatal(err)
		}
		a.c.moveTo(1)
	}
	bounce(t, a, b, 3)
	if n := e.Stalls() - before; n != 0 {
		t.Errorf("%d stalls of loops that were held", n)
	}
}

// TestWeightsNeedNoLoop: programs of tenants and NICs with a weight stay on their loops, and can be moved to any.
func TestWeightsNeedNoLoop(t *testing.T) {
	e := severalLoops(t, 3)
	var of []*program
	for loop := range 3 {
		c := newClient(t, e)
		c.moveTo(loop)
		of = append(of, c)
	}
	e.Do(func() {
		e.SetTenant("red", schedule.TenantParams{Weight: 3})
		e.SetShare(e.only(), "red", schedule.NICParams{Weight: 2})
	})
	for loop, c := range of {
		if n := c.loop(); n != loop {
			t.Errorf("a program of loop %d is on loop %d", loop, n)
		}
		if c.moveTo(2 - loop); c.loop() != 2-loop {
			t.Errorf("a program of loop %d was not moved to loop %d", loop, 2-loop)
		}
	}
}

// TestCapAcrossLoops: programs of a NIC with a cap, or of a tenant with one, are on one loop, whenever the cap comes and
// wherever they are moved, and do not exceed the cap.
func TestCapAcrossLoops(t *testing.T) {
	const most = 100_000_000
	for name, rate := range map[string]schedule.Rate{"NIC, out": {Out: most}, "NIC, in": {In: most}, "tenant, out": {Out: most}, "tenant, in": {In: most}} {
		e := severalLoops(t, 3)
		pairs := make([][2]*testQP, 3)
		for i := range pairs {
			a, b := newClientOf(t, e, i).newQP(rc), newClientOf(t, e, i).newQP(rc)
			a.timeout, b.timeout = 31, 31
			connect(a, b)
			a.c.moveTo(i)
			pairs[i] = [2]*testQP{a, b}
		}
		e.Do(func() {
			if strings.HasPrefix(name, "NIC") {
				e.SetShare(e.only(), "red", schedule.NICParams{Rate: rate})
			} else {
				e.SetShare(e.only(), "red", schedule.NICParams{})
				e.SetTenant("red", schedule.TenantParams{Rate: rate})
			}
		})
		late := newClientOf(t, e, 9)
		together := func(want int) {
			t.Helper()
			for _, c := range []*program{pairs[0][0].c, pairs[1][1].c, pairs[2][0].c, late} {
				if n := c.loop(); n != want {
					t.Fatalf("a program is on loop %d, want %d", n, want)
				}
			}
		}
		together(0)
		begun, sent := time.Now(), 0
		const size, window = 64 << 10, 16
		for i := range 12 {
			for _, p := range pairs {
				for range window {
					p[0].post(wr{op: opWrite, flags: signal, n: size, remote: p[1].c.base, rkey: p[1].mr.RKey})
				}
			}
			for !pairs[i%3][0].c.moveTo(i % 3) { // a reply may be under way
			}
			together(i % 3)
			if i%10 == 4 {
				if err := e.Halt(t.Context(), func() error { return nil }); err != nil {
					t.Error(err)
				}
			}
			for _, p := range pairs {
				for range window {
					if w := p[0].wait(); w.status != 0 {
						t.Fatalf("%+v", w)
					}
					sent += size
				}
			}
		}
		passed := time.Since(begun)
		t.Logf("%s: %.0f %% of the cap", name, float64(sent)/passed.Seconds()/most*100)
		if allowed := int(most*passed.Seconds()) + 2<<20; sent > allowed {
			t.Errorf("%s: %d bytes in %v, want %d at most", name, sent, passed, allowed)
		}
		e.Do(func() {
			if out, in := e.Throttled(e.only()); out+in == 0 {
				t.Errorf("%s: the NIC was not throttled", name)
			}
		})
		e.Do(func() { e.SetTenant("red", schedule.TenantParams{}) })
	}
}

// TestManySessionsOnHeldLoop: no ring is lost while the first loop holds a data loop with few or many sessions, which falls
// asleep again and again.
func TestManySessionsOnHeldLoop(t *testing.T) {
	rounds := 300
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		rounds = 10_000
	}
	for _, n := range []int{fewBells, standInBells / 2, standInBells + 8} {
		e := severalLoops(t, 2)
		pairs := make([][2]*testQP, 2)
		for i := range pairs {
			pairs[i] = [2]*testQP{newClient(t, e).newQP(rc), newClient(t, e).newQP(rc)}
			connect(pairs[i][0], pairs[i][1])
			pairs[i][0].c.moveTo(1)
		}
		for range n {
			newClient(t, e).moveTo(1)
		}
		var over atomic.Bool
		var commands sync.WaitGroup
		commands.Go(func() {
			for !over.Load() {
				e.Do(func() {})
			}
		})
		for i := range rounds {
			if i%8 == 0 {
				time.Sleep(300 * time.Microsecond) // the loop falls asleep
			}
			for _, p := range pairs {
				p[1].recv(0, 64)
				p[0].post(wr{op: opSend, flags: signal, n: 64})
			}
			for _, p := range pairs {
				for _, q := range p {
					if w := q.wait(); w.status != 0 {
						t.Fatalf("%+v", w)
					}
				}
			}
		}
		over.Store(true)
		commands.Wait()
		if loop := pairs[0][0].c.loop(); loop != 1 {
			t.Errorf("the programs are on loop %d", loop)
		}
	}
}

// TestRouteFoundLater: programs on two loops connect while no route leads from one to the other. When there is one, the
// first message is lost and brings them together, whichever loop its sender is on, although the receiver sends nothing.
func TestRouteFoundLater(t *testing.T) {
	const uc = 3
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for _, on := range [][2]int{{0, 1}, {1, 0}, {1, 2}} {
		e, w, nics := twins(t, Options{Loops: 3}, address(1), address(2))
		var qs [2]*testQP
		for i, n := range nics {
			c := newProgram(t, e, n, n.GIDs[0].GID, 0)
			c.moveTo(on[i])
			qs[i] = c.newQP(uc)
		}
		a, b := qs[0], qs[1]
		e.Do(func() { w.cut[nics[0]], w.cut[nics[1]] = b.c.gid, a.c.gid })
		for i, q := range qs {
			q.c.do(func() error {
				for _, to := range []struct {
					mask ib.AttrMask
					attr nic.QPAttr
				}{
					{attrInit, nic.QPAttr{State: 1, PortNum: 1, AccessFlags: 0xf}},
					{1<<0 | 1<<7 | 1<<8 | 1<<12 | 1<<20, nic.QPAttr{State: 2, PathMTU: 5, DestQPN: qs[1-i].info.Num,
						AH: nic.AHAttr{DGID: qs[1-i].c.gid, IsGlobal: true, PortNum: 1}}},
					{1<<0 | 1<<16, nic.QPAttr{State: 3}},
				} {
					if err := q.c.s.ModifyQP(q.info.Handle, to.mask, &to.attr); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if k, n := a.c.loop(), b.c.loop(); k != on[0] || n != on[1] {
			t.Fatalf("the programs are on loops %d and %d, want %d", k, n, on)
		}
		e.Do(func() {
			clear(w.cut)
			e.first.adapters.rerouteAll()
		})
		send := func() {
			a.post(wr{op: opSend, flags: signal, n: 64})
			if w := a.wait(); w.status != 0 {
				t.Errorf("loops %d: %+v", on, w)
			}
		}
		b.recv(0, 64)
		send()
		eventually(t, "the programs are on one loop", func() bool { return a.c.loop() == b.c.loop() })
		send()
		if w := b.wait(); w.status != 0 || w.length != 64 {
			t.Errorf("loops %d: received %+v", on, w)
		}
	}
}
