package memory

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/budget"
)

// charged is a space whose user may have limit.
func charged(t *testing.T, limit budget.Bill) (*Space, *budget.Account) {
	t.Helper()
	s, err := NewSpace(0)
	if err != nil {
		t.Fatal(err)
	}
	more := limit
	for k := range more {
		more[k] = more[k]*4 + 1<<40
	}
	a := budget.New(budget.Limits{All: more, Others: more, User: limit}).User(1000)
	s.SetAccount(a)
	t.Cleanup(func() {
		s.Close()
		for deadline := time.Now().Add(time.Minute); a.Used() != (budget.Bill{}); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("after the end the user still has %v", a.Used())
			}
		}
	})
	return s, a
}

func plenty() budget.Bill {
	return budget.Bill{budget.Mappings: 1000, budget.State: 1 << 30, budget.Memory: 1 << 40, budget.Holes: 1 << 40}
}

func shared(start, length uint64) []Extent {
	return []Extent{{Start: start, Offset: start, Length: length, Kind: Own, Prot: ProtRead | ProtWrite}}
}

// met reports if err is not the limit of kind.
func met(t *testing.T, err error, kind budget.Kind) {
	t.Helper()
	var e *budget.Error
	if !errors.As(err, &e) || e.Kind != kind || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v, want the limit of %v, ENOMEM", err, kind)
	}
}

// TestChargeWindows: a process that registers a page of every gibibyte reaches the limit of its user's mappings.
func TestChargeWindows(t *testing.T) {
	limit := plenty()
	limit[budget.Mappings] = 10
	s, _ := charged(t, limit)
	var regions []*Region
	var err error
	for n := uint64(1); err == nil; n++ {
		var r *Region
		if r, err = s.Map(n<<windowBits, pageSize, shared(n<<windowBits, pageSize)); err == nil {
			regions = append(regions, r)
		}
	}
	met(t, err, budget.Mappings)
	if len(regions) != 10 {
		t.Errorf("%d windows, want 10", len(regions))
	}
	for _, r := range regions {
		r.Release()
	}
}

// TestChargeHoles: memory that the process has touched is not charged as Holes; untouched memory is, with a low limit.
func TestChargeHoles(t *testing.T) {
	limit := plenty()
	limit[budget.Holes] = 8 << 20
	s, a := charged(t, limit)
	const base, size = 1 << 36, 32 << 20
	_, err := s.Map(base, size, shared(base, size))
	met(t, err, budget.Holes)
	fill(t, s, base, make([]byte, size))
	r, err := s.Map(base, size, shared(base, size))
	if err != nil {
		t.Fatal(err)
	}
	if n := a.Used()[budget.Holes]; n != 0 {
		t.Errorf("%d bytes of holes in memory that is there", n)
	}
	part, err := s.Map(base+size, 4<<20, shared(base+size, 4<<20))
	if err != nil {
		t.Fatal(err)
	}
	if n := a.Used()[budget.Holes]; n != 4<<20 {
		t.Errorf("%d bytes of holes, want 4 MiB", n)
	}
	part.Release()
	r.Release()
}

// TestChargePages: pages are charged as long as they are in the memfd, with or without regions. So creating them, one
// region after the other, ends at the limit.
func TestChargePages(t *testing.T) {
	limit := plenty()
	limit[budget.Memory] = 64 << 20
	s, _ := charged(t, limit)
	const size = 8 << 20
	var err error
	rounds := 0
	for at := uint64(1 << 36); err == nil && rounds < 100; at += size {
		var r *Region
		if r, err = s.Map(at, size, shared(at, size)); err != nil {
			break
		}
		rounds++
		// The daemon's copy creates a page where the process has none.
		for _, p := range r.pieces {
			for i := 0; i < len(p.mem); i += pageSize {
				p.mem[i] = 1
			}
		}
		r.Release()
	}
	met(t, err, budget.Memory)
	// The pages of the last one were made after it was charged.
	if rounds > 9 {
		t.Errorf("%d rounds of 8 MiB, want those that 64 MiB allow, and one more", rounds)
	}
}

// TestChargeAfterRelease: pages that the daemon has made count when the region is gone, even if
// the process never registers again. It could be one of many that leave some.
func TestChargeAfterRelease(t *testing.T) {
	s, a := charged(t, plenty())
	const at, size = 1 << 36, 8 << 20
	r, err := s.Map(at, size, shared(at, size))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < size; i += pageSize {
		r.pieces[0].mem[i] = 1
	}
	r.Release()
	if got := a.Used()[budget.Memory]; got != size {
		t.Errorf("%d bytes are charged, want the %d that are in the memfd", got, size)
	}
}

// TestChargePieces: a region in many pieces is charged for the heap of each.
func TestChargePieces(t *testing.T) {
	limit := plenty()
	limit[budget.State] = 100 * pieceState
	s, _ := charged(t, limit)
	var many []Extent
	for i := range uint64(200) {
		many = append(many, Extent{Start: 1<<36 + i*pageSize, Length: pageSize, Kind: Foreign, Prot: 3})
	}
	_, err := s.Map(1<<36, 200*pageSize, many)
	met(t, err, budget.State)
}

// TestRoom: what Map would refuse is known before there is a region, at no cost.
func TestRoom(t *testing.T) {
	limit := plenty()
	limit[budget.Memory] = 8 << 20
	s, a := charged(t, limit)
	s.quota = 16 << 20
	r, err := s.Map(1<<30, 4<<20, shared(1<<30, 4<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	before := a.Used()
	if err := s.Room(4 << 20); err != nil {
		t.Errorf("as much as may be: %v", err)
	}
	met(t, s.Room(4<<20+1), budget.Memory)
	for _, n := range []uint64{12<<20 + 1, 8 << 40, 1<<64 - 1} {
		if err := s.Room(n); err != syscall.ENOMEM {
			t.Errorf("%#x bytes, above the quota: %v, want ENOMEM", n, err)
		}
	}
	if used := a.Used(); used != before {
		t.Errorf("asking has changed what the user has: %v, want %v", used, before)
	}
}
