package memory

import (
	"bytes"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"
)

// gated is the memory of a process that answers when it is told to.
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

// TestPool: a user has a few threads, stuck ones count, others are not concerned, and what
// is given up ends with the page that it was at.
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
	for range userThreads {
		j := write(10 * pageSize)
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
	if n := p.Busy(); n != userThreads+1 {
		t.Errorf("%d threads are busy, want %d: those that are stuck count", n, userThreads+1)
	}
	close(hang)
	s.Quiesce(time.Millisecond) // gives up
	for _, j := range stuck {
		j.Mute()
	}
	close(g.gate)
	for _, j := range await(t, p, woken, userThreads) {
		if j.Err() == nil {
			t.Error("a job that was given up wrote everything")
		}
	}
	s.Quiesce(time.Minute)
	if g.mem[pageSize-1] != 7 || g.mem[pageSize] != 0 {
		t.Error("a job that was given up wrote more than the page it was at")
	}
}

// TestJob: what was read or written is known again, and nothing else is taken for it.
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
	j.Read(&from)
	run(&j)
	other, _ := span(101)
	if j.Stage(&other) {
		t.Error("data is taken for that of another place")
	}
	if !j.Stage(&from) || from.Foreign() || from.Len() != 5400 {
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
	if !j.Wrote(&to, &src) {
		t.Error("what was written is not known again")
	}
	CopyMapped(&to, &src)
	if !bytes.Equal(g.mem[20000:25000], data[:5000]) || !bytes.Equal(mem, data[5000:5100]) || !bytes.Equal(g.mem[28192:28492], data[5100:]) {
		t.Error("what was written differs")
	}
	data[5399]++
	if j.Wrote(&to, &src) {
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

// TestProbeAside: registration that hangs answers in the end.
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
