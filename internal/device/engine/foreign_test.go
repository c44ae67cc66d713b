package engine

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// A far is a client's memory that cannot be mapped: its bytes are the client's own, and a gate can block every access.
type far struct {
	c     *program
	gate  atomic.Pointer[chan struct{}] // closed: open
	free  atomic.Int32                  // how many it lets through though it is closed
	stuck atomic.Int32                  // how many it holds up
	late  atomic.Int32                  // writes that came through it

	mu     sync.RWMutex
	closed bool // the client has unmapped it
}

func (f *far) pass() bool {
	g := f.gate.Load()
	if g == nil || f.free.Add(-1) >= 0 {
		return false
	}
	f.stuck.Add(1)
	<-*g
	f.stuck.Add(-1)
	return true
}

// hold closes the gate; the returned function opens it.
func (f *far) hold() (release func()) {
	g := make(chan struct{})
	f.gate.Store(&g)
	return func() {
		f.gate.Store(nil)
		close(g)
	}
}

func (f *far) at(addr int64, n int) ([]byte, error) {
	off := uint64(addr) - f.c.base
	if f.closed || off > clientMemory || uint64(n) > clientMemory-off {
		return nil, io.EOF
	}
	return f.c.mem[off:][:n], nil
}

func (f *far) ReadAt(b []byte, addr int64) (int, error) {
	f.pass()
	f.mu.RLock()
	defer f.mu.RUnlock()
	mem, err := f.at(addr, len(b))
	return copy(b, mem), err
}

func (f *far) WriteAt(b []byte, addr int64) (int, error) {
	if f.pass() {
		f.late.Add(1)
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	mem, err := f.at(addr, len(b))
	return copy(mem, b), err
}

func (f *far) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

// foreign makes c's memory unmapped, from the next queue pair on.
func (c *program) foreign() *far {
	f := &far{c: c}
	c.space.SetForeign(f)
	c.kind = memory.Foreign
	return f
}

// mixed makes every second page of it foreign.
func (c *program) mixed() *far {
	f := c.foreign()
	c.kind = memory.Hole // of neither kind
	return f
}

func foreignEngine(t testing.TB, patience ib.Time) *Engine {
	t.Helper()
	e, err := newWith(foreignNIC(testGID, patience), Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	t.Cleanup(e.Stop)
	return e
}

func foreignNIC(gid ib.GID, patience ib.Time) *nic.NIC {
	return nic.New(nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: gid, NetDev: "lo"}}, Patience: patience})
}

// TestForeign: all operations, between memory of every kind.
func TestForeign(t *testing.T) {
	kinds := map[string]func(*program){"mapped": func(*program) {}, "foreign": func(c *program) { c.foreign() }, "mixed": func(c *program) { c.mixed() }}
	for from, makeA := range kinds {
		for to, makeB := range kinds {
			t.Run(from+" to "+to, func(t *testing.T) {
				e := newEngine(t)
				ca, cb := newClient(t, e), newClient(t, e)
				makeA(ca)
				makeB(cb)
				a, b := ca.newQP(rc), cb.newQP(rc)
				connect(a, b)
				exchange(t, a, b)
				pipelined(t, a, b)
				atomics(t, a, b)
			})
		}
	}
}

// TestForeignRemote is TestForeign between two hosts.
func TestForeignRemote(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4)) // two loops, and others
	for name, prepare := range map[string]func(*program){"foreign": func(c *program) { c.foreign() }, "mixed": func(c *program) { c.mixed() }} {
		t.Run(name, func(t *testing.T) {
			a, b := twoHosts(t, prepare)
			// A message takes four threads in turn here. On a busy machine that may exceed the usual limits of peers
			// and memory.
			for _, q := range []*testQP{a, b} {
				q.timeout = 19
				q.c.e.Do(func() { q.c.e.only().Config.Patience = 60_000_000_000 })
			}
			connect(a, b)
			exchange(t, a, b)
			pipelined(t, a, b)
			atomics(t, a, b)
		})
	}
}

// TestForeignResend: while a requester reads foreign memory for a retransmission, its retry timer does not run.
func TestForeignResend(t *testing.T) {
	var f *far
	a, b := twoHosts(t, func(c *program) {
		if f == nil {
			f = c.foreign()
		}
	})
	a.timeout = 8 // a millisecond
	a.to(b)       // which hears nothing
	f.free.Store(1)
	release := f.hold()
	a.post(wr{op: opSend, flags: signal, n: 64})
	eventually(t, "a thread that fetches it again", func() bool { return f.stuck.Load() > 0 })
	sent := func() (n uint64) {
		a.c.e.Do(func() { n = a.task().q.Transport().Counters().Retransmitted })
		return n
	}
	for begin := time.Now(); time.Since(begin) < 20*time.Millisecond; { // all of its retries
		if w, ok := a.try(); ok {
			t.Fatalf("%+v although it was sent again %d times only", w, sent())
		}
		sent()
	}
	release()
	if w := a.wait(); w.status != uint32(transport.RetryExcErr) {
		t.Errorf("%+v, want status %d", w, transport.RetryExcErr)
	}
	if n := sent(); n != 7 {
		t.Errorf("sent again %d times, want 7", n)
	}
}

// exchange writes, sends and reads messages of many sizes.
func exchange(t *testing.T, a, b *testQP) {
	t.Helper()
	for _, n := range []uint32{0, 1, 64, 4096, 4097, 300000, 1 << 20} {
		pattern(a.c.mem[:n], byte(n))
		clear(b.c.mem[:3<<20])
		a.post(wr{op: opWrite, flags: signal, n: n, remote: b.c.base + 100, rkey: b.mr.RKey, id: uint64(n)})
		if w := a.wait(); w.status != 0 || w.id != uint64(n) {
			t.Fatalf("write of %d: %+v", n, w)
		}
		if !bytes.Equal(b.c.mem[100:100+n], a.c.mem[:n]) {
			t.Fatalf("write of %d: bytes differ", n)
		}
		b.recv(2<<20+1, max(n, 1))
		a.post(wr{op: opSend, flags: signal, n: n})
		if w := a.wait(); w.status != 0 {
			t.Fatalf("send of %d: %+v", n, w)
		}
		if w := b.wait(); w.status != 0 || w.length != n || w.opcode != 128 {
			t.Fatalf("receive of %d: %+v", n, w)
		}
		if !bytes.Equal(b.c.mem[2<<20+1:2<<20+1+n], a.c.mem[:n]) {
			t.Fatalf("send of %d: bytes differ", n)
		}
		a.post(wr{op: opRead, flags: signal, off: 4 << 20, n: n, remote: b.c.base + 100, rkey: b.mr.RKey})
		if w := a.wait(); w.status != 0 {
			t.Fatalf("read of %d: %+v", n, w)
		}
		if !bytes.Equal(a.c.mem[4<<20:4<<20+n], a.c.mem[:n]) {
			t.Fatalf("read of %d: bytes differ", n)
		}
	}
}

// pipelined has many operations under way in both directions: they keep their order.
func pipelined(t *testing.T, a, b *testQP) {
	t.Helper()
	const messages, size = 100, 3000
	for _, q := range []*testQP{a, b} {
		pattern(q.c.mem[:messages], 7)
		for i := range uint32(messages) {
			binary.NativeEndian.PutUint32(q.c.mem[i*size:], i)
			q.recv(4<<20+i*size, size)
		}
	}
	for i := range uint32(messages) {
		a.write(wr{op: opSend, flags: signal, off: i * size, n: size, id: uint64(i)})
		b.write(wr{op: opSend, flags: signal, off: i * size, n: size, id: uint64(i)})
		a.write(wr{op: opWrite, off: i * size, n: size, remote: b.c.base + 2<<20, rkey: b.mr.RKey})
		b.write(wr{op: opRead, off: 3 << 20, n: size, remote: a.c.base + uint64(i*size), rkey: a.mr.RKey})
	}
	a.ring()
	b.ring()
	for _, q := range []*testQP{a, b} {
		sent := uint64(0)
		for range 2 * messages {
			w := q.wait()
			if w.status != 0 {
				t.Fatalf("%+v", w)
			}
			if w.opcode == 0 {
				if w.id != sent {
					t.Fatalf("send %d completed, want %d", w.id, sent)
				}
				sent++
			}
		}
		for i := range uint32(messages) {
			if got := binary.NativeEndian.Uint32(q.c.mem[4<<20+i*size:]); got != i {
				t.Fatalf("message %d lies where %d belongs", got, i)
			}
		}
	}
}

// atomics counts from both sides at once.
func atomics(t *testing.T, a, b *testQP) {
	t.Helper()
	const adds = 100
	binary.NativeEndian.PutUint64(b.c.mem[4096:], 0)
	binary.NativeEndian.PutUint64(a.c.mem[4096:], 0)
	for range adds {
		a.writeAtomic(wr{op: uint32(transport.WRFetchAdd), flags: signal, off: 128, n: 8, remote: b.c.base + 4096, rkey: b.mr.RKey}, 1, 0)
		b.writeAtomic(wr{op: uint32(transport.WRFetchAdd), flags: signal, off: 128, n: 8, remote: a.c.base + 4096, rkey: a.mr.RKey}, 2, 0)
	}
	a.ring()
	b.ring()
	for i := range adds {
		for k, q := range []*testQP{a, b} {
			if w := q.wait(); w.status != 0 {
				t.Fatalf("atomic %d of %d: %+v", i, k, w)
			}
		}
	}
	if v := binary.NativeEndian.Uint64(b.c.mem[4096:]); v != adds {
		t.Errorf("counted to %d, want %d", v, adds)
	}
	if v := binary.NativeEndian.Uint64(a.c.mem[4096:]); v != 2*adds {
		t.Errorf("counted to %d, want %d", v, 2*adds)
	}
	if v := binary.NativeEndian.Uint64(a.c.mem[128:]); v != adds-1 {
		t.Errorf("the last add found %d, want %d", v, adds-1)
	}
	a.writeAtomic(wr{op: uint32(transport.WRCmpSwap), flags: signal, off: 128, n: 8, remote: b.c.base + 4096, rkey: b.mr.RKey}, adds, 7)
	a.ring()
	if w := a.wait(); w.status != 0 {
		t.Fatalf("%+v", w)
	}
	if v := binary.NativeEndian.Uint64(b.c.mem[4096:]); v != 7 {
		t.Errorf("swapped to %d, want 7", v)
	}
}

// bounce is a victim whose messages must continue.
func bounce(t *testing.T, a, b *testQP, rounds int) {
	t.Helper()
	for range rounds {
		b.recv(0, 64)
		a.post(wr{op: opSend, flags: signal, n: 64})
		if w := a.wait(); w.status != 0 { // it completes in any case
			t.Fatalf("send: %+v", w)
		}
		if w := b.wait(); w.status != 0 {
			t.Fatalf("receive: %+v", w)
		}
	}
}

// TestForeignHang: foreign memory that blocks delays only the queue pairs that use it, which fail. The
// number of stuck jobs stays within the user's limit.
func TestForeignHang(t *testing.T) {
	e := foreignEngine(t, 200_000_000)
	va, vb := newClientOf(t, e, 1).newQP(rc), newClientOf(t, e, 1).newQP(rc)
	connect(va, vb)
	ops := map[string]struct {
		w    wr
		who  int // whose memory is stuck: 0 the sender's, 1 the peer's
		want transport.Status
	}{
		"gather":  {wr{op: opWrite, flags: signal, n: 64}, 0, transport.LocProtErr},
		"scatter": {wr{op: opRead, flags: signal, n: 64}, 0, transport.LocProtErr},
		"write":   {wr{op: opWrite, flags: signal, n: 64}, 1, transport.RemOpErr},
		"read":    {wr{op: opRead, flags: signal, n: 64}, 1, transport.RemOpErr},
		"send":    {wr{op: opSend, flags: signal, n: 64}, 1, transport.RemOpErr},
	}
	for name, o := range ops {
		t.Run(name, func(t *testing.T) {
			c := []*program{newClientOf(t, e, 2), newClientOf(t, e, 2)}
			f := c[o.who].foreign()
			a, b := c[0].newQP(rc), c[1].newQP(rc)
			a.timeout = 8 // all its retries take less time than the memory has
			connect(a, b)
			b.recv(0, 64)
			release := f.hold()
			defer release()
			o.w.remote, o.w.rkey = b.c.base, b.mr.RKey
			a.post(o.w)
			eventually(t, "a thread in the client's memory", func() bool { return f.stuck.Load() > 0 })
			bounce(t, va, vb, 100)
			if w := a.wait(); w.status != uint32(o.want) {
				t.Errorf("%+v, want status %d", w, o.want)
			}
			if e.Aside().Busy() == 0 {
				t.Error("the thread that is stuck does not count")
			}
		})
	}
	eventually(t, "the threads' return", func() bool { return e.Aside().Busy() == 0 })
	bounce(t, va, vb, 10)
}

// TestForeignBounds: a user with many stuck queue pairs has a few threads, all of the queue pairs fail, and another
// user's foreign memory stays fast.
func TestForeignBounds(t *testing.T) {
	e := foreignEngine(t, 200_000_000)
	stuck := e.only()
	// The other user's memory does not fail of a machine that is busy with other things.
	gid := ib.GID{10: 0xff, 11: 0xff, 12: 127, 15: 2}
	calm := foreignNIC(gid, 60_000_000_000)
	e.Do(func() {
		e.first.opts.Resolver.(*flatNetwork).Add(calm)
		if err := e.Add(calm, nil); err != nil {
			t.Error(err)
		}
	})
	other, peer := newProgram(t, e, calm, gid, 1), newProgram(t, e, calm, gid, 1)
	other.foreign()
	peer.foreign()
	va, vb := other.newQP(rc), peer.newQP(rc)
	connect(va, vb)
	c, d := newProgram(t, e, stuck, testGID, 2), newProgram(t, e, stuck, testGID, 2)
	f := c.foreign()
	var qs []*testQP
	for range 100 {
		a, b := c.newQP(rc), d.newQP(rc)
		connect(a, b)
		qs = append(qs, a)
		a.write(wr{op: opWrite, flags: signal, n: 64, remote: b.c.base, rkey: b.mr.RKey})
	}
	release := f.hold()
	defer release()
	for _, q := range qs {
		q.ring()
	}
	eventually(t, "threads in the client's memory", func() bool { return f.stuck.Load() == 4 })
	bounce(t, va, vb, 100)
	for _, q := range qs {
		if w := q.wait(); w.status != uint32(transport.LocProtErr) {
			t.Fatalf("%+v, want status %d", w, transport.LocProtErr)
		}
	}
	if n := f.stuck.Load(); n != 4 {
		t.Errorf("%d threads are stuck, want 4", n)
	}
}

// TestForeignClose: a session ends although a thread is in its memory. When the thread returns, it writes no more than
// the piece that it was stuck in.
func TestForeignClose(t *testing.T) {
	e := newEngine(t)
	c, d := newClientOf(t, e, 2), newClientOf(t, e, 2)
	f := d.foreign()
	a, b := c.newQP(rc), d.newQP(rc)
	connect(a, b)
	release := f.hold()
	a.post(wr{op: opWrite, flags: signal, n: 256 << 10, remote: b.c.base, rkey: b.mr.RKey})
	eventually(t, "a thread in the client's memory", func() bool { return f.stuck.Load() > 0 })
	d.do(func() error {
		d.s.Close()
		return nil
	})
	release()
	eventually(t, "the thread's return", func() bool { return e.Aside().Busy() == 0 })
	if n := f.late.Load(); n != 1 {
		t.Errorf("%d pieces were written late, want 1", n)
	}
	e.Do(func() {
		if n := len(e.first.local.inboxes.of); n != 0 {
			t.Errorf("%d inboxes are left", n)
		}
	})
}

// TestForeignSenderWaits: a sender of this host fills a part of its peer's inbox and then waits.
func TestForeignSenderWaits(t *testing.T) {
	e := newEngine(t)
	c, d := newClient(t, e), newClient(t, e)
	f := d.foreign()
	a, b := c.newQP(rc), d.newQP(rc)
	connect(a, b)
	release := f.hold()
	const messages = 500
	for i := range uint32(messages) {
		binary.NativeEndian.PutUint32(c.mem[i*8:], i)
		b.recv(i*8, 8)
		a.write(wr{op: opSend, flags: signal, off: i * 8, n: 8})
	}
	a.ring()
	eventually(t, "a thread in the client's memory", func() bool { return f.stuck.Load() > 0 })
	e.Do(func() {
		for _, in := range e.first.local.inboxes.of {
			if in.kept.Len() > aheadBursts {
				t.Errorf("%d bursts in the inbox though the sender is on this host, want it to wait at %d", in.kept.Len(), aheadBursts)
			}
		}
	})
	release()
	for range messages {
		if w := a.wait(); w.status != 0 {
			t.Fatalf("%+v", w)
		}
	}
	for i := range uint32(messages) {
		b.wait()
		if got := binary.NativeEndian.Uint32(d.mem[i*8:]); got != i {
			t.Fatalf("message %d holds %d", i, got)
		}
	}
}

// TestForeignDoesNotAllocate: jobs, inboxes and their buffers are used again.
func TestForeignDoesNotAllocate(t *testing.T) {
	e := newEngine(t)
	c, d := newClient(t, e), newClient(t, e)
	c.foreign()
	d.foreign()
	a, b := c.newQP(rc), d.newQP(rc)
	connect(a, b)
	bounce(t, a, b, 100)
	// (The race detector makes the runtime allocate where goroutines wait for each other.)
	if n := testing.AllocsPerRun(20, func() { bounce(t, a, b, 10) }); n > 1 && !raceEnabled {
		t.Errorf("%v allocations for 10 messages, want none", n)
	}
	stream := func() {
		for i := range uint32(16) {
			a.write(wr{op: opWrite, flags: signal, off: i << 16, n: 64 << 10, remote: b.c.base + uint64(i<<16), rkey: b.mr.RKey})
		}
		a.ring()
		for range 16 {
			if w := a.wait(); w.status != 0 {
				t.Fatalf("%+v", w)
			}
		}
	}
	for range 20 {
		stream()
	}
	if n := testing.AllocsPerRun(20, stream); n > 1 && !raceEnabled {
		t.Errorf("%v allocations for 16 long messages, want none", n)
	}
}

// TestForeignFence: a fenced request sends the data that the READ before it brought, although the data of requests is
// read ahead.
func TestForeignFence(t *testing.T) {
	e := newEngine(t)
	c, d := newClient(t, e), newClient(t, e)
	c.foreign()
	d.foreign()
	a, b := c.newQP(rc), d.newQP(rc)
	connect(a, b)
	const brought, sent, other = 1 << 20, 2 << 20, 3 << 20
	for i := range uint64(50) {
		binary.NativeEndian.PutUint64(d.mem[other:], i+1)
		b.recv(sent, 64)
		a.write(wr{op: opRead, off: brought, n: 64, remote: d.base + other, rkey: b.mr.RKey})
		a.write(wr{op: opWrite, n: 100_000, remote: d.base, rkey: b.mr.RKey})
		a.write(wr{op: opSend, flags: signal | uint32(transport.FlagFence), off: brought, n: 64})
		a.ring()
		if w := a.wait(); w.status != 0 {
			t.Fatalf("%+v", w)
		}
		if w := b.wait(); w.status != 0 {
			t.Fatalf("%+v", w)
		}
		if got := binary.NativeEndian.Uint64(d.mem[sent:]); got != i+1 {
			t.Fatalf("round %d: the fenced request sent %d, want %d", i, got, i+1)
		}
	}
}

// TestForeignRewritten: a request sends what its buffer holds when it is posted, also if requests
// before it used the same buffer and were read ahead.
func TestForeignRewritten(t *testing.T) {
	e := newEngine(t)
	c, d := newClient(t, e), newClient(t, e)
	c.foreign()
	a, b := c.newQP(rc), d.newQP(rc)
	connect(a, b)
	for i := range uint64(200) {
		binary.NativeEndian.PutUint64(c.mem, i)
		for k := range uint64(3) {
			a.write(wr{op: opWrite, flags: signal, n: 8, remote: d.base + 8*k, rkey: b.mr.RKey})
		}
		a.ring()
		for range 3 {
			if w := a.wait(); w.status != 0 {
				t.Fatalf("%+v", w)
			}
		}
		for k := range 3 {
			if got := binary.NativeEndian.Uint64(d.mem[8*k:]); got != i {
				t.Fatalf("write %d of round %d brought %d", k, i, got)
			}
		}
	}
}

// faultAt is a fault as the runtime reports it.
type faultAt uintptr

func (f faultAt) Addr() uintptr { return uintptr(f) }
func (f faultAt) Error() string { return "fault" }
func (f faultAt) RuntimeError() {}

// writeAtomic is write for an atomic operation.
func (q *testQP) writeAtomic(w wr, compareAdd, swap uint64) {
	b := q.sq.slot(q.posted)
	q.write(w)
	le := binary.NativeEndian
	le.PutUint64(b[32:], compareAdd)
	le.PutUint64(b[40:], swap)
	le.PutUint32(b[48:], w.rkey)
}

// eventually waits for cond, a minute at most.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !cond(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
