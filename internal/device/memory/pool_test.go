package memory

import (
	"bytes"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"
)

// gated is the memory of a process whose reads and writes block on gate.
type gated struct {
	mem  []byte
	gate chan struct{}
	mu   sync.Mutex
}

func (g *gated) ReadAt(b []byte, at int64) (int, error) {
	<-g.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	return copy(b, g.mem[at:]), nil
}

func (g *gated) WriteAt(b []byte, at int64) (int, error) {
	<-g.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	return copy(g.mem[at:], b), nil
}

func (g *gated) Close() error { return nil }

// await collects n jobs.
func await(t *testing.T, p *Pool, woken chan struct{}, n int) (list []*Job) {
	t.Helper()
	limit := time.After(time.Minute)
	for len(list) < n {
		select {
		case <-woken:
			list = p.Collect(list)
		case <-limit:
			t.Fatalf("%d of %d jobs are done after a minute", len(list), n)
		}
	}
	return list
}

// TestPool: a user has a few threads, stuck ones count, other users are not affected, and an abandoned job ends after
// its current piece.
func TestPool(t *testing.T) {
	woken := make(chan struct{}, 100)
	p := NewPool(func() { woken <- struct{}{} })
	defer p.Close()
	s := newSpace(t, 0)
	g := &gated{mem: make([]byte, 1<<20), gate: make(chan struct{})}
	s.SetForeign(g)
	write := func(n int) *Job {
		var dst, src Span
		dst.AddForeign(s, 0, n)
		src.Add(bytes.Repeat([]byte{7}, n))
		j := &Job{}
		j.Write(&dst, &src)
		return j
	}
	var stuck []*Job
	for range userJobs {
		j := write(4 * pieceMost)
		stuck = append(stuck, j)
		if !p.Start(1, j) {
			t.Fatal("a job was refused")
		}
	}
	if p.Free(1) || p.Start(1, write(1)) {
		t.Error("a user has more threads than it may")
	}
	if !p.Free(2) {
		t.Error("another user has no thread")
	}
	if err := p.Do(1, 10*time.Millisecond, func() error { return nil }); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("Do of a user without threads: %v, want ETIMEDOUT", err)
	}
	if err := p.Do(2, time.Minute, func() error { return syscall.EPERM }); !errors.Is(err, syscall.EPERM) {
		t.Errorf("Do: %v, want what it ran answers", err)
	}
	hang := make(chan struct{})
	if err := p.Do(2, 10*time.Millisecond, func() error { <-hang; return nil }); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("Do of what hangs: %v, want ETIMEDOUT", err)
	}
	if n := p.Busy(); n != userJobs+1 {
		t.Errorf("%d threads are busy, want %d: those that are stuck count", n, userJobs+1)
	}
	close(hang)
	s.Quiesce(time.Millisecond) // gives up
	for _, j := range stuck {
		j.Mute()
	}
	close(g.gate)
	for _, j := range await(t, p, woken, userJobs) {
		if j.Err() == nil {
			t.Error("a job that was given up wrote everything")
		}
	}
	s.Quiesce(time.Minute)
	if g.mem[pieceMost-1] != 7 || g.mem[pieceMost] != 0 {
		t.Error("a job that was given up wrote more than the piece it was at")
	}
}

// TestJob: a job's result is matched by what was read or written, and by nothing else.
func TestJob(t *testing.T) {
	woken := make(chan struct{}, 100)
	p := NewPool(func() { woken <- struct{}{} })
	defer p.Close()
	s := newSpace(t, 0)
	g := &gated{mem: pattern(1 << 16), gate: make(chan struct{})}
	close(g.gate)
	s.SetForeign(g)
	span := func(at uint64) (sp Span, mem []byte) { // foreign, mapped, foreign
		mem = make([]byte, 100)
		sp.AddForeign(s, at, 5000)
		sp.Add(mem)
		sp.AddForeign(s, at+8192, 300)
		return sp, mem
	}
	run := func(j *Job) {
		t.Helper()
		if !p.Start(1, j) {
			t.Fatal("a job was refused")
		}
		if err := await(t, p, woken, 1)[0].Err(); err != nil {
			t.Fatal(err)
		}
	}

	var j Job
	from, _ := span(100)
	j.Read()
	j.ReadMore(&from, 1)
	j.Fetch()
	run(&j)
	other, _ := span(101)
	if ok, _ := j.Stage(&other, 1); ok {
		t.Error("data is taken for that of another place")
	}
	other, _ = span(100)
	if ok, _ := j.Stage(&other, 2); ok {
		t.Error("data is taken for that of another message")
	}
	if ok, err := j.Stage(&from, 1); !ok || err != nil || from.Foreign() || from.Len() != 5400 || !j.Spent() {
		t.Fatal("the data is not there")
	}
	if !bytes.Equal(from.Pieces()[0].Mem, g.mem[100:5100]) || !bytes.Equal(from.Pieces()[2].Mem, g.mem[8292:8592]) {
		t.Error("the data differs")
	}

	var src Span
	data := pattern(5400)
	src.Add(data[:10])
	src.Add(data[10:])
	to, mem := span(20000)
	j.Write(&to, &src)
	run(&j)
	if ok, err := j.Wrote(&to, &src); !ok || err != nil || !j.Spent() {
		t.Error("what was written is not known again")
	}
	j.Write(&to, &src)
	run(&j)
	CopyMapped(&to, &src)
	if !bytes.Equal(g.mem[20000:25000], data[:5000]) || !bytes.Equal(mem, data[5000:5100]) || !bytes.Equal(g.mem[28192:28492], data[5100:]) {
		t.Error("what was written differs")
	}
	data[5399]++
	if ok, _ := j.Wrote(&to, &src); ok {
		t.Error("other bytes are taken for those that were written")
	}

	var word Span
	word.AddForeign(s, 64, 8)
	for i := range uint64(3) {
		j.Store(&word, 10*i)
		run(&j)
		if !j.DidStore(&word, 10*i) || j.DidStore(&word, 10*i+1) {
			t.Error("a store is not known again, or another is taken for it")
		}
		j.Atomic(&word, false, 0, 5)
		run(&j)
		if old, ok := j.DidAtomic(&word, false, 0, 5); !ok || old != 10*i {
			t.Errorf("add found %d, %v; want %d", old, ok, 10*i)
		}
		if _, ok := j.DidAtomic(&word, true, 0, 5); ok {
			t.Error("a swap is taken for an add")
		}
	}
}

// TestProbeAside: a registration that hangs returns an error in the end.
func TestProbeAside(t *testing.T) {
	s := newSpace(t, 0)
	p := NewPool(func() {})
	defer p.Close()
	g := &gated{mem: make([]byte, 4096), gate: make(chan struct{})}
	defer close(g.gate)
	s.SetForeign(g)
	s.Aside = func(f func() error) error { return p.Do(1, 10*time.Millisecond, f) }
	if _, err := s.Map(0, 4096, []Extent{{Start: 0, Offset: 0, Length: 4096, Kind: Foreign, Prot: ProtRead}}); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("got %v, want ETIMEDOUT", err)
	}
	if s.Mapped() != 0 {
		t.Errorf("%d bytes count as mapped, want 0", s.Mapped())
	}
}

// torn is the memory of a process that has lost everything from an address on.
type torn struct {
	gated
	end int64
}

func (g *torn) ReadAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) > g.end {
		return 0, syscall.EIO
	}
	return g.gated.ReadAt(b, at)
}

func (g *torn) WriteAt(b []byte, at int64) (int, error) {
	if at+int64(len(b)) > g.end {
		return 0, syscall.EIO
	}
	return g.gated.WriteAt(b, at)
}

// TestJobFailsFromAPartOn: a job for several messages fails only those that it could not move.
func TestJobFailsFromAPartOn(t *testing.T) {
	s := newSpace(t, 0)
	g := &torn{gated{mem: pattern(1 << 16), gate: make(chan struct{})}, 20000}
	close(g.gate)
	s.SetForeign(g)
	span := func(at uint64) (sp Span) {
		sp.AddForeign(s, at, 5000)
		return sp
	}
	good, bad := span(100), span(18000)
	var j Job
	j.Read()
	j.ReadMore(&good, 1)
	j.ReadMore(&bad, 2)
	j.Fetch()
	j.run(nil)
	if ok, err := j.Stage(&good, 1); !ok || err != nil || !bytes.Equal(good.Pieces()[0].Mem, g.mem[100:5100]) {
		t.Errorf("the first message: %v, %v", ok, err)
	}
	if ok, err := j.Stage(&bad, 2); !ok || err == nil || !j.Spent() {
		t.Errorf("the second message: %v, %v, want an error", ok, err)
	}

	first, second := span(6000), span(18000)
	var src Span
	src.Add(bytes.Repeat([]byte{7}, 5000))
	j.Write(&first, &src)
	j.WriteMore(&second, &src)
	j.run(nil)
	if ok, err := j.Wrote(&first, &src); !ok || err != nil || g.mem[10999] != 7 {
		t.Errorf("the first write: %v, %v", ok, err)
	}
	if ok, err := j.Wrote(&second, &src); !ok || err == nil {
		t.Errorf("the second write: %v, %v, want an error", ok, err)
	}
}

// TestPoolReplacesStuckThreads: jobs of a user go on while other jobs of the same user are stuck,
// as many as the user may have but one.
func TestPoolReplacesStuckThreads(t *testing.T) {
	woken := make(chan struct{}, 100)
	p := NewPool(func() { woken <- struct{}{} })
	defer p.Close()
	read := func(g *gated) *Job {
		s := newSpace(t, 0)
		s.SetForeign(g)
		var sp Span
		sp.AddForeign(s, 0, 64)
		j := &Job{}
		j.Read()
		j.ReadMore(&sp, 0)
		j.Fetch()
		return j
	}
	hung := &gated{mem: make([]byte, 64), gate: make(chan struct{})}
	well := &gated{mem: make([]byte, 64), gate: make(chan struct{})}
	close(well.gate)
	for range userJobs - 1 {
		if !p.Start(1, read(hung)) {
			t.Fatal("a job was refused")
		}
	}
	for range 20 {
		j := read(well)
		if !p.Start(1, j) {
			t.Fatal("a job was refused")
		}
		if done := await(t, p, woken, 1); done[0] != j {
			t.Fatal("a job that hangs is done")
		}
	}
	close(hung.gate)
	await(t, p, woken, userJobs-1)
	if n := p.Busy(); n != 0 {
		t.Errorf("%d jobs are busy, want none", n)
	}
}

// TestBuffers: a Buffer is reused when its last user has released it, and not before.
func TestBuffers(t *testing.T) {
	var l Buffers
	for _, n := range []int{1, 512, 513, 5000, 70000, 256 << 10} {
		b := l.Get(n)
		if len(b.Bytes()) < n {
			t.Fatalf("%d bytes, want %d", len(b.Bytes()), n)
		}
		b.Hold()
		b.Drop()
		if c := l.Get(n); c == b {
			t.Errorf("%d bytes: a Buffer that is in use", n)
		}
		b.Drop()
		if c := l.Get(n); c != b {
			t.Errorf("%d bytes: a Buffer that is free was not used again", n)
		}
	}
}
