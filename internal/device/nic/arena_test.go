package nic

import (
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// blocks is how much memory an arena holds, in bytes.
func (a *Arena) blocks(t *testing.T) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(a.File().Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestLargeRings: the loop neither fills a large ring nor releases its pages, however many were touched.
func TestLargeRings(t *testing.T) {
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	const entries, elem, touched = 1 << 20, 256, 4 << 20
	r, err := newRing(a, entries, elem)
	if err != nil {
		t.Fatal(err)
	}
	if got := a.blocks(t); r.mask < entries || got > 64<<10 {
		t.Errorf("a new ring of %d entries holds %d bytes, want a page or so", r.mask, got)
	}
	for i := 0; i < touched; i += pageSize {
		r.data[i] = 1
	}
	r.release()
	if got := a.blocks(t); got < touched {
		t.Errorf("released: %d bytes are held, want %d until they are reclaimed", got, touched)
	}
	// Before it is reclaimed it is not used again.
	s, err := newRing(a, entries, elem)
	if err != nil {
		t.Fatal(err)
	}
	if s.at.Offset == r.at.Offset || s.data[0] != 0 {
		t.Error("a ring got the pages of another")
	}
	a.Reclaim()
	if got := a.blocks(t); got > 64<<10 {
		t.Errorf("reclaimed: %d bytes are held, want a page or so", got)
	}
}

// TestMoveBound: the loop copies the entries of a resized queue, up to a bound.
func TestMoveBound(t *testing.T) {
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	const elem = 64
	from, err := newRing(a, 1<<20, elem)
	if err != nil {
		t.Fatal(err)
	}
	to, err := newRing(a, 1<<20, elem)
	if err != nil {
		t.Fatal(err)
	}
	from.slot(7)[0], from.slot(8)[0] = 1, 2
	if err := to.move(&from, 7, 2); err != nil || to.slot(0)[0] != 1 || to.slot(1)[0] != 2 || to.producer() != 2 {
		t.Errorf("two elements: %v, producer %d", err, to.producer())
	}
	if err := to.move(&from, 7, maxMove/elem+1); err != syscall.EBUSY {
		t.Errorf("%d elements: got %v, want %v", maxMove/elem+1, err, syscall.EBUSY)
	}
}

// punchingPages are pages that count how often some are given back.
type punchingPages struct {
	plainPages
	punched *int
}

func (p punchingPages) Punch(offset, size uint64) {
	*p.punched++
	clear(p.mem[offset : offset+size])
}

// TestShort: a ring that is refused while another waits to be reclaimed is not reclaimed on the loop, which would wait
// for the client. The goroutine of the command reclaims it and tries again.
func TestShort(t *testing.T) {
	punched := 0
	a := NewArenaIn(punchingPages{plainPages{make([]byte, protocol.SharedSize+4*pageSize)}, &punched})
	defer a.Close()
	small, _, err := a.alloc(pageSize)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.alloc(4 * pageSize); err != syscall.ENOMEM || a.Short() {
		t.Errorf("what is in use does not leave: %v, want ENOMEM for good", err)
	}
	a.release(small)
	if _, _, err := a.alloc(4 * pageSize); err != syscall.ENOMEM || punched != 0 {
		t.Errorf("%v, and %d rings were reclaimed; want ENOMEM and none", err, punched)
	}
	if !a.Short() || a.Short() {
		t.Error("that there may be room is not said once")
	}
	a.Reclaim()
	if _, _, err := a.alloc(4 * pageSize); err != nil || punched != 1 {
		t.Errorf("after reclaiming %d: %v", punched, err)
	}
}

// TestManyRings: a client with many small rings has pages in advance. When it releases all rings, their
// pages are reclaimed in a few steps.
func TestManyRings(t *testing.T) {
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var rings []ring
	held := a.blocks(t)
	for range 1000 {
		r, err := newRing(a, 1, 64)
		if err != nil {
			t.Fatal(err)
		}
		if n := uint64(len(rings)); a.blocks(t)-held > int64(a.inUse()+inAdvance) || n*pageSize < many/2 && a.blocks(t)-held > int64(a.inUse()) {
			t.Fatalf("%d bytes are held for %d rings", a.blocks(t)-held, n+1)
		}
		rings = append(rings, r)
	}
	reclaims := 0
	for i := range rings {
		if rings[i].release(); a.Due() {
			a.Reclaim()
			reclaims++
		}
	}
	if reclaims == 0 || reclaims > 10 || a.inUse() > mostLag {
		t.Errorf("%d times pages were given back, and %d bytes are in use; want a few times, and at most %d", reclaims, a.inUse(), mostLag)
	}
}

// fewPages are those of a file, of which there are few at first.
type fewPages struct {
	*ringFile
	ready, asked uint64
}

func (p *fewPages) Ready() uint64 { return p.ready }

func (p *fewPages) Grow(size uint64) error {
	p.asked += size
	p.ready += size
	return nil
}

// TestGrowForAccount: an arena grows for a ring without free pages, unless its account refuses.
func TestGrowForAccount(t *testing.T) {
	f, err := newRingFile()
	if err != nil {
		t.Fatal(err)
	}
	limit := budget.Bill{budget.Rings: 4 * pageSize}
	account := budget.New(budget.Limits{All: limit, Others: limit, User: limit}).User(1)
	defer account.Drop()
	p := &fewPages{ringFile: f, ready: protocol.SharedSize + pageSize}
	a := NewArenaIn(p)
	defer a.Close()
	a.SetAccount(account)
	if _, _, err := a.alloc(2 * pageSize); err != syscall.ENOMEM || !a.Short() {
		t.Fatalf("without pages: %v", err)
	}
	a.Reclaim()
	if _, _, err := a.alloc(2 * pageSize); err != nil || p.asked != 2*pageSize {
		t.Fatalf("with %d bytes more: %v", p.asked, err)
	}
	p.Grow(8 * pageSize)
	a.insert(MMap{Offset: p.ready - 8*pageSize, Size: 8 * pageSize})
	before := p.asked
	for range 3 {
		if _, _, err := a.alloc(3 * pageSize); err == nil || a.Short() {
			t.Fatalf("over the limit: %v", err)
		}
		if a.Reclaim(); p.asked != before {
			t.Fatalf("it has grown by %d bytes for a ring that is over the limit", p.asked-before)
		}
	}
}
