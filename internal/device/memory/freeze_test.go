package memory

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/state/statetest"
)

// TestFormat checks that every number of format 1 still has its meaning.
func TestFormat(t *testing.T) { statetest.Numbers(t, "testdata/format1.fields", nil, SpaceState{}) }

// frozen returns the state of a space, encoded and decoded, and its files.
func frozen(t testing.TB, s *Space) (*SpaceState, []*os.File) {
	t.Helper()
	st, files, err := s.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	b, err := state.Marshal(&st)
	if err != nil {
		t.Fatal(err)
	}
	out := &SpaceState{}
	if err := state.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out, files
}

// A selfSpace is a space of this process: foreign memory and mappings are its own.
func selfSpace(t *testing.T) *Space {
	s := newSpace(t, 1<<40)
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.SetForeign(mem)
	m, err := OpenMappings(os.Getpid(), os.Getuid())
	if err != nil {
		t.Fatal(err)
	}
	s.SetMappings(m)
	return s
}

// TestThawSpace restores a space with memory of all kinds: own, over several windows, shared and foreign.
func TestThawSpace(t *testing.T) {
	s := selfSpace(t)
	var used budget.Bill
	for k := range used {
		used[k] = 1 << 40
	}
	ledger := budget.New(budget.Limits{All: used, Others: used, User: used})
	s.SetAccount(ledger.User(1000))

	own := uint64(7)<<windowBits - 8192
	want := pattern(16384)
	fill(t, s, own, want)
	a, err := s.Map(own, 16384, []Extent{{Start: own, Offset: own, Length: 16384, Kind: Own, Prot: ProtRead | ProtWrite}})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("shared", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	unix.Ftruncate(fd, 8192)
	shared, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(shared)
	private, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(private)
	copy(shared, want)
	copy(private, want[5:])
	b, err := s.Map(addressOf(shared), 8192, []Extent{{Start: addressOf(shared), Length: 8192, Kind: Shared, Prot: 3, Descriptor: int32(fd) + 1}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Map(addressOf(private), 8192, []Extent{{Start: addressOf(private), Length: 8192, Kind: Foreign, Prot: 1, Why: whyFile}})
	if err != nil {
		t.Fatal(err)
	}
	if b.Usage().Shared != 8192 {
		t.Fatalf("shared memory is reached as %+v", b.Usage())
	}

	st, files := frozen(t, s)
	next := budget.New(budget.Limits{All: used, Others: used, User: used})
	r, err := Thaw(st, files, ThawOptions{Account: next.User(1000)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, want := next.User(1000).Used(), ledger.User(1000).Used(); got != want {
		t.Errorf("the next daemon charges %v, the last one %v", got, want)
	}
	for _, old := range []*Region{a, b, c} {
		g := r.Region(old.ID())
		if g == nil || g.Length() != old.Length() || g.Writable() != old.Writable() || g.Usage() != old.Usage() {
			t.Fatalf("region %d: got %+v, want %+v", old.ID(), g, old)
		}
	}
	r.Populate()
	if got := flat(t, r.Region(a.ID()), 0, 16384); !bytes.Equal(got, want) {
		t.Error("own memory differs")
	}
	if got := flat(t, r.Region(b.ID()), 0, 8192); !bytes.Equal(got, want[:8192]) {
		t.Error("shared memory differs")
	}
	buf := make([]byte, 100)
	if err := r.read(addressOf(private), buf); err != nil || !bytes.Equal(buf, want[5:105]) {
		t.Errorf("foreign memory differs: %v", err)
	}
	// A new region gets a number of its own.
	d, err := r.Map(own, 4096, []Extent{{Start: own, Offset: own, Length: 4096, Kind: Own, Prot: 3}})
	if err != nil || d.ID() != c.ID()+1 {
		t.Errorf("a new region: %v, number %d, want %d", err, d.ID(), c.ID()+1)
	}
	for _, id := range []uint64{a.ID(), b.ID(), c.ID(), d.ID()} {
		r.Region(id).Release()
	}
	if r.Mapped() != 0 || len(r.windows) != 0 || len(r.files) != 0 || len(r.regions) != 0 {
		t.Errorf("left: %d bytes, %d windows, %d files, %d regions", r.Mapped(), len(r.windows), len(r.files), len(r.regions))
	}
	// The old one is as it was.
	if got := flat(t, a, 0, 16384); !bytes.Equal(got, want) {
		t.Error("the old space has changed")
	}
	for _, g := range []*Region{a, b, c} {
		g.Release()
	}
}

// TestThawSpaceRefuses changes one thing of a valid state at a time.
func TestThawSpaceRefuses(t *testing.T) {
	s := selfSpace(t)
	own := uint64(1) << 32
	fill(t, s, own, pattern(8192))
	r, err := s.Map(own, 8192, []Extent{{Start: own, Offset: own, Length: 8192, Kind: Own, Prot: 3}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	for name, spoil := range map[string]func(*SpaceState){
		"no backing":      func(s *SpaceState) { s.Memfd = 0 },
		"no such file":    func(s *SpaceState) { s.Memfd = 9 },
		"a file twice":    func(s *SpaceState) { s.Foreign = s.Memfd },
		"another file":    func(s *SpaceState) { s.Memfd, s.Foreign = s.Foreign, s.Memfd },
		"no list":         func(s *SpaceState) { s.Mappings.List = 0 },
		"quota":           func(s *SpaceState) { s.Quota = 100 },
		"no number":       func(s *SpaceState) { s.Regions[0].ID = 0 },
		"number":          func(s *SpaceState) { s.Regions[0].ID = 99 },
		"twice":           func(s *SpaceState) { s.Regions = append(s.Regions, s.Regions[0]) },
		"address":         func(s *SpaceState) { s.Regions[0].Start = 1<<63 - 1 },
		"length":          func(s *SpaceState) { s.Regions[0].Length++ },
		"short":           func(s *SpaceState) { s.Regions[0].Length-- },
		"kind":            func(s *SpaceState) { s.Regions[0].Kind[0] = 0 },
		"unknown kind":    func(s *SpaceState) { s.Regions[0].Kind[0] = 77 },
		"no file":         func(s *SpaceState) { s.Regions[0].Kind[0] = byte(Shared) },
		"lists":           func(s *SpaceState) { s.Regions[0].At = nil },
		"behind the end":  func(s *SpaceState) { s.Regions[0].At[0] = 1 << spaceBits },
		"across a window": func(s *SpaceState) { s.Regions[0].At[0] = windowSize - 4096 },
		"unknown file": func(s *SpaceState) {
			g := &s.Regions[0]
			g.Kind[0], g.File, g.Low, g.High = byte(Shared), []uint32{7}, []uint64{0}, []uint64{8192}
		},
		"a file of disk": func(s *SpaceState) { s.Files = append(s.Files, SharedFileState{File: s.Foreign}); s.Foreign = 0 },
	} {
		st, files := frozen(t, s)
		spoil(st)
		if got, err := Thaw(st, files, ThawOptions{}); err == nil {
			t.Errorf("%s: restored", name)
			got.Close()
		}
		for i, f := range files {
			if f != nil && f.Close() == nil {
				t.Errorf("%s: file %d was left open", name, i)
			}
		}
	}
}

// FuzzThawSpace restores any state, with the files of a process.
func FuzzThawSpace(f *testing.F) {
	st := SpaceState{Quota: 1 << 40, Memfd: 1, Last: 3, Regions: []RegionState{{
		ID: 2, Start: 4096, Length: 8192, Own: 8192, Kind: []byte{1}, Size: []uint64{8192}, At: []uint64{1 << 30},
	}}}
	b, _ := state.Marshal(&st)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var st SpaceState
		if state.Unmarshal(b, &st) != nil {
			return
		}
		m, err := NewMemfd()
		if err != nil {
			t.Fatal(err)
		}
		s, err := Thaw(&st, []*os.File{m.file}, ThawOptions{})
		if err != nil {
			return
		}
		var span Span
		for _, r := range s.regions {
			span.Reset()
			if !r.Span(0, r.length, &span) {
				t.Error(fmt.Sprint("a region is not what it says: ", r))
			}
		}
		for _, r := range s.regions {
			r.Release()
		}
		s.Close()
	})
}
