package meter

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
)

var epoch = time.Unix(1_700_000_000-1_700_000_000%86400, 0)

// sums are totals and records by tenant.
func sums(m *Meter) (totals, records map[string]Usage) {
	totals, records = map[string]Usage{}, map[string]Usage{}
	for _, t := range m.Totals() {
		u := totals[t.Tenant]
		u.add(&t.Usage)
		totals[t.Tenant] = u
	}
	for _, r := range m.Records(time.Time{}, "") {
		u := records[r.Tenant]
		u.add(&r.Usage)
		records[r.Tenant] = u
	}
	return totals, records
}

func wantEqual(t *testing.T, what string, got, want map[string]Usage) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: tenants %d, want %d", what, len(got), len(want))
	}
	for k, u := range want {
		if got[k] != u {
			t.Fatalf("%s: tenant %s has %v, want %v", what, k, got[k], u)
		}
	}
}

// A world of NICs that are added, count, restart and are removed. The test knows what each counted for its tenant.
type world struct {
	rnd   *rand.Rand
	nics  map[string]*fakeNIC
	truth map[string]Usage // by tenant
	next  int
}

type fakeNIC struct {
	key     Key
	counted Usage
}

func newWorld(seed uint64) *world {
	return &world{rnd: rand.New(rand.NewPCG(seed, 1)), nics: map[string]*fakeNIC{}, truth: map[string]Usage{}}
}

// step makes a random change and returns what a reader sees then.
func (w *world) step() []Reading {
	var out []Reading
	if len(w.nics) < 8 && w.rnd.IntN(3) == 0 {
		n := &fakeNIC{key: Key{fmt.Sprint("t", w.rnd.IntN(3)), "net", fmt.Sprint("n", w.rnd.IntN(12))}}
		free := true
		for _, o := range w.nics {
			free = free && o.key != n.key
		}
		if free {
			w.next++
			w.nics[fmt.Sprint(w.next)] = n
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.nics)) { // a seed is one course of events
		n := w.nics[id]
		if w.rnd.IntN(4) != 0 {
			u := w.truth[n.key.Tenant]
			for range 1 + w.rnd.IntN(4) {
				c, v := Column(w.rnd.IntN(int(NumColumns))), uint64(w.rnd.IntN(1<<20))
				if c == MemoryTime {
					continue // the meter makes it
				}
				n.counted[c] += v
				u[c] += v
			}
			w.truth[n.key.Tenant] = u
		}
		r := Reading{ID: id, Key: n.key, Counted: n.counted}
		if r.Gone = w.rnd.IntN(20) == 0; r.Gone {
			delete(w.nics, id)
		}
		out = append(out, r)
	}
	return out
}

// nonzero drops tenants without any counts, which the meter may list or not.
func nonzero(in map[string]Usage) map[string]Usage {
	out := map[string]Usage{}
	for k, u := range in {
		if u != (Usage{}) {
			out[k] = u
		}
	}
	return out
}

// memoryDir returns a directory in memory, if there is one: thousands of flushes wait for a disk.
func memoryDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "vrdma-meter")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestSums: over restarts and roll-ups, a tenant's totals and the sum of its records equal the counts of its NICs.
func TestSums(t *testing.T) {
	old := mostRecords
	mostRecords = 300
	t.Cleanup(func() { mostRecords = old })
	dir := memoryDir(t)
	for seed := range uint64(24) {
		w, now := newWorld(seed), epoch
		path := filepath.Join(dir, fmt.Sprint("usage", seed))
		m, _, err := Open(path, false, now)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1500 {
			now = now.Add(time.Duration(w.rnd.IntN(300)) * time.Second)
			if w.rnd.IntN(50) == 0 {
				now = now.Add(-time.Hour) // somebody sets the clock
			}
			m.Sample(now, w.step())
			if w.rnd.IntN(3) == 0 {
				if err := m.Flush(); err != nil {
					t.Fatal(err)
				}
			}
			if i%100 == 99 { // a restart: all NICs start again
				if err := m.Close(); err != nil {
					t.Fatal(err)
				}
				w.nics = map[string]*fakeNIC{}
				var damage error
				if m, damage, err = Open(path, false, now); err != nil || damage != nil {
					t.Fatal(err, damage)
				}
			}
		}
		totals, records := sums(m)
		wantEqual(t, "totals", nonzero(totals), nonzero(w.truth))
		wantEqual(t, "records", nonzero(records), nonzero(w.truth))
		if n := len(m.records); n > mostRecords*5/4+50 {
			t.Errorf("%d records, of at most about %d", n, mostRecords)
		}
		if info, err := os.Stat(path); err != nil || info.Size() > leastGrowth+1<<20 {
			t.Errorf("the file has %d bytes (%v)", info.Size(), err)
		}
		m.Close()
	}
}

// TestMinutes: records are of a minute, later of an hour, later of a day and without NIC.
func TestMinutes(t *testing.T) {
	m, now := New(), epoch
	k, r := Key{"red", "train", "web"}, Reading{}
	for range 3 * 3600 / 10 {
		r.Counted[TransmitBytes] += 7
		r.ID, r.Key = 1, k
		m.Sample(now, []Reading{r})
		now = now.Add(10 * time.Second)
	}
	m.Flush()
	spans := func() map[time.Duration]int {
		n := map[time.Duration]int{}
		for _, r := range m.Records(time.Time{}, "red") {
			n[r.To.Sub(r.From).Round(time.Minute)]++
		}
		return n
	}
	if n := spans(); n[time.Minute] != 121 || n[time.Hour] != 1 {
		t.Errorf("after three hours: %v", n)
	}
	if got := m.Records(now.Add(-90*time.Second), ""); len(got) != 2 || got[1].Usage[TransmitBytes] != 42 || !got[1].From.Equal(now.Add(-time.Minute)) {
		t.Errorf("the last two minutes: %+v", got)
	}
	if got := m.Records(time.Time{}, "blue"); got != nil {
		t.Errorf("of another tenant: %+v", got)
	}
	r.Gone = true
	m.Sample(now, []Reading{r})
	m.Sample(now.Add(72*time.Hour), nil)
	m.Flush()
	got := m.Records(time.Time{}, "")
	if len(got) != 1 || got[0].Key != (Key{Tenant: "red"}) || got[0].Usage[TransmitBytes] != 3*360*7 {
		t.Errorf("after three days: %+v", got)
	}
	if got := m.Totals(); len(got) != 1 || got[0].Key != (Key{Tenant: "red"}) || got[0].Usage[TransmitBytes] != 3*360*7 {
		t.Errorf("after three days the totals are %+v", got)
	}
}

// TestMemoryTime: registered memory is counted in bytes times seconds.
func TestMemoryTime(t *testing.T) {
	m := New()
	k := Key{"red", "train", "web"}
	for i, held := range []uint64{1 << 30, 1 << 30, 1, 1, 1, 0} {
		m.Sample(epoch.Add(time.Duration(i)*500*time.Millisecond), []Reading{{ID: 1, Key: k, Now: nic.Holdings{Registered: held}}})
	}
	if got := m.Totals()[0].Usage[MemoryTime]; got != 1<<29+1 {
		t.Errorf("%d byte seconds, want %d", got, 1<<29+1)
	}
}

func TestOf(t *testing.T) {
	var c nic.Counters
	c.SentBytes, c.SentMessages[transport.OpUD], c.Drops[nic.DropStale], c.Refusals[nic.RefusedQuota] = 1, 2, 3, 4
	u := Of(&c)
	if u[TransmitBytes] != 1 || u[Sent(transport.OpUD)] != 2 || u[Drops(nic.DropStale)] != 3 || u[Refusals(nic.RefusedQuota)] != 4 {
		t.Errorf("%v", u)
	}
	got, err := json.Marshal(u)
	if want := `{"transmit_bytes":1,"sent_ud":2,"dropped_stale":3,"denied_quota":4}`; string(got) != want || err != nil {
		t.Errorf("%s, want %s (%v)", got, want, err)
	}
}

// written is a file with some frames, and the tenants' totals after each.
func written(t testing.TB, seed uint64) (data []byte, ends []int, states []map[string]Usage) {
	t.Helper()
	w, now := newWorld(seed), epoch
	path := filepath.Join(t.TempDir(), "usage")
	m, _, err := Open(path, false, now)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for range 12 {
		now = now.Add(20 * time.Second)
		m.Sample(now, w.step())
		if err := m.Flush(); err != nil {
			t.Fatal(err)
		}
		totals, _ := sums(m)
		ends, states = append(ends, int(m.book.size)), append(states, nonzero(totals))
	}
	if data, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return data, ends, states
}

// TestTorn: a file that is cut anywhere holds what had been flushed before, in records and totals.
func TestTorn(t *testing.T) {
	data, ends, states := written(t, 3)
	for cut := range len(data) + 1 {
		m := New()
		good, torn := m.load(data[:cut])
		if good != cut && !torn {
			t.Fatalf("cut at %d of %d: taken for damaged at %d", cut, len(data), good)
		}
		want := map[string]Usage{}
		for i, end := range ends {
			if end <= cut {
				want = states[i]
			}
		}
		totals, records := sums(m)
		wantEqual(t, fmt.Sprint("totals, cut at ", cut), nonzero(totals), want)
		wantEqual(t, fmt.Sprint("records, cut at ", cut), nonzero(records), want)
	}
}

// TestDamaged: after a wrong byte in the middle, the rest of the file is lost. The damaged file is kept, and Open
// reports the damage.
func TestDamaged(t *testing.T) {
	data, _, _ := written(t, 4)
	path := filepath.Join(t.TempDir(), "usage")
	bad := bytes.Clone(data)
	bad[len(bad)/2] ^= 0x40
	if err := os.WriteFile(path, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	m, damage, err := Open(path, false, epoch)
	if err != nil || damage == nil {
		t.Fatalf("damage %v, error %v", damage, err)
	}
	totals, records := sums(m)
	wantEqual(t, "records", nonzero(records), nonzero(totals))
	m.Close()
	if kept, err := os.ReadFile(path + ".damaged"); err != nil || !bytes.Equal(kept, bad) {
		t.Errorf("the damaged file was not kept: %v", err)
	}
	if m, damage, err = Open(path, false, epoch); err != nil || damage != nil {
		t.Fatalf("once more: damage %v, error %v", damage, err)
	}
	defer m.Close()
	if _, _, err := Open(path, false, epoch); err == nil {
		t.Error("two daemons have the same file")
	}
}

// TestFull: data that cannot be written now is written later.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "usage")
	m, _, err := Open(path, false, epoch)
	if err != nil {
		t.Fatal(err)
	}
	r := Reading{ID: 1, Key: Key{"red", "train", "web"}}
	r.Counted[TransmitBytes] = 5
	m.Sample(epoch, []Reading{r})
	m.book.f.Close() // every write fails
	if m.Flush() == nil {
		t.Fatal("flushed to a closed file")
	}
	r.Counted[TransmitBytes] = 7
	m.Sample(epoch, []Reading{r})
	if err := m.Flush(); err != nil {
		t.Fatal(err)
	}
	m.Close()
	if m, _, err = Open(path, false, epoch); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	totals, records := sums(m)
	if totals["red"][TransmitBytes] != 7 || records["red"][TransmitBytes] != 7 {
		t.Errorf("totals %v, records %v", totals, records)
	}
}

// TestUnwritable: a meter whose file cannot be written counts in memory, and writes later.
func TestUnwritable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "usage")
	r := Reading{ID: 1, Key: Key{"red", "train", "web"}}
	r.Counted[TransmitBytes] = 5
	m, _, err := Open(path, false, epoch)
	if err != nil {
		t.Fatal(err)
	}
	m.Sample(epoch, []Reading{r})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	inTheWay := filepath.Join(path+".new", "x") // replace cannot remove it
	if err := os.MkdirAll(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	if m, _, err = Open(path, false, epoch); err != nil {
		t.Fatalf("a file that cannot be written is an error: %v", err)
	}
	if m.Unwritten().IsZero() || m.Flush() == nil {
		t.Errorf("unwritten since %v, want a time, and a Flush that fails", m.Unwritten())
	}
	r.ID = 2
	m.Sample(epoch, []Reading{r})
	if err := os.RemoveAll(filepath.Dir(path)); err != nil { // the directory vanishes, and the obstacle with it
		t.Fatal(err)
	}
	if err := m.Flush(); err != nil || !m.Unwritten().IsZero() {
		t.Errorf("Flush: %v, unwritten since %v; want none", err, m.Unwritten())
	}
	m.Close()
	if m, _, err = Open(path, false, epoch); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if totals, _ := sums(m); totals["red"][TransmitBytes] != 10 {
		t.Errorf("totals %v, want 10", totals)
	}
}

// TestVanished: somebody removes the directory of the usage file while the daemon writes to it. The next flush writes everything
// again, and the lock is there again.
func TestVanished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "usage")
	m, _, err := Open(path, false, epoch)
	if err != nil {
		t.Fatal(err)
	}
	r := Reading{ID: 1, Key: Key{"red", "train", "web"}}
	for i := range 3 {
		r.Counted[TransmitBytes] += 5
		m.Sample(epoch.Add(time.Duration(i)*time.Second), []Reading{r})
		if err := m.Flush(); err != nil {
			t.Fatal(err)
		}
		switch i {
		case 0:
			err = os.RemoveAll(filepath.Dir(path))
		case 1:
			err = os.Remove(path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := Open(path, false, epoch); err == nil {
		t.Error("a second daemon has the file, too")
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if m, _, err = Open(path, false, epoch); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if totals, _ := sums(m); totals["red"][TransmitBytes] != 15 {
		t.Errorf("totals %v, want 15", totals)
	}
}

// TestLazy: the file is created when there is a tenant other than the default one, with everything that was counted
// before.
func TestLazy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage")
	m, _, err := Open(path, true, epoch)
	if err != nil {
		t.Fatal(err)
	}
	mine := Reading{ID: 1, Key: Key{"default", "host", "default"}}
	mine.Counted[TransmitBytes] = 5
	m.Sample(epoch, []Reading{mine, {ID: 2, Key: Key{Tenant: System}}})
	m.Flush()
	if _, err := os.Stat(path); err == nil {
		t.Fatal("nothing was declared, and there is a file")
	}
	m.Sample(epoch, []Reading{{ID: 3, Key: Key{"red", "train", "web"}}})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if m, _, err = Open(path, true, epoch); err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	totals, records := sums(m)
	if totals["default"][TransmitBytes] != 5 || records["default"][TransmitBytes] != 5 {
		t.Errorf("totals %v, records %v", totals, records)
	}
}

// TestColumnsMove: a file with other columns is read by their names.
func TestColumnsMove(t *testing.T) {
	body := []byte{entryColumns, 3}
	for _, n := range []string{"received_ud", "of_the_future", "transmit_bytes"} {
		body = appendText(body, n)
	}
	body = append(body, entryTotal)
	body = appendText(appendText(appendText(body, "red"), "net"), "nic")
	body = append(body, 3, 0, 10, 1, 20, 2, 30)
	m := New()
	data := append([]byte(bookHead), frame(append(make([]byte, 8), body...))...)
	if good, _ := m.load(data); good != len(data) {
		t.Fatalf("read %d of %d", good, len(data))
	}
	want := Usage{TransmitBytes: 30}
	want[Rcvd(transport.OpUD)] = 10
	if got := m.Totals(); len(got) != 1 || got[0].Usage != want {
		t.Errorf("%+v", got)
	}
}

// FuzzLoad: any file is read without harm, and what was read can be written and read again.
func FuzzLoad(f *testing.F) {
	data, _, _ := written(f, 5)
	f.Add(data)
	f.Add([]byte(bookHead))
	f.Fuzz(func(t *testing.T, data []byte) {
		// Right checksums let the fuzzer reach more of the code.
		fixed := bytes.Clone(data)
		for at := len(bookHead); at+8 <= len(fixed); {
			n := int(fixed[at]) | int(fixed[at+1])<<8 | int(fixed[at+2])<<16 | int(fixed[at+3])<<24
			if n < 0 || n > len(fixed)-at-8 {
				break
			}
			frame(fixed[at : at+8+n])
			at += 8 + n
		}
		for _, d := range [][]byte{data, fixed} {
			m := New()
			m.load(d)
			var out []byte
			for _, b := range frames(true, m.all()) {
				out = append(out, b...)
			}
			again := New()
			if good, _ := again.load(append([]byte(bookHead), out...)); good != len(bookHead)+len(out) {
				t.Fatalf("of what was written %d bytes of %d were read", good, len(bookHead)+len(out))
			}
			if len(again.totals) != len(m.totals) || len(again.records) != len(m.records) {
				t.Fatalf("%d totals and %d records became %d and %d", len(m.totals), len(m.records), len(again.totals), len(again.records))
			}
			m.rollUp(epoch)
		}
	})
}

func BenchmarkSample1000(b *testing.B) {
	m, now := New(), epoch
	list := make([]Reading, 1000)
	for i := range list {
		list[i] = Reading{ID: i, Key: Key{fmt.Sprint("t", i%100), "net", fmt.Sprint(i)}}
	}
	for b.Loop() {
		now = now.Add(time.Second)
		for i := range list {
			list[i].Counted[TransmitBytes]++
		}
		m.Sample(now, list)
		m.Flush()
	}
}

// More records of one minute than are kept, with a clock that was set back: no old day is dropped for them.
func TestSetBack(t *testing.T) {
	old := mostRecords
	mostRecords = 300
	t.Cleanup(func() { mostRecords = old })
	path := filepath.Join(t.TempDir(), "usage")
	m, _, err := Open(path, false, epoch)
	if err != nil {
		t.Fatal(err)
	}
	one := Usage{TransmitBytes: 1}
	m.Sample(epoch, []Reading{{ID: "old", Key: Key{"t", "net", "old"}, Counted: one, Gone: true}})
	later := epoch.Add(20 * 24 * time.Hour)
	for i := range 280 {
		m.Sample(later.Add(time.Duration(i)*time.Minute), []Reading{{ID: i, Key: Key{"t", "net", "new"}, Counted: one, Gone: true}})
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m, _, err = Open(path, false, later.Add(-24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for i := range 400 {
		key := Key{"t", "net", fmt.Sprint("n", i)}
		m.Sample(later.Add(-24*time.Hour), []Reading{{ID: key, Key: key, Counted: one, Gone: true}})
	}
	if err := m.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, records := sums(m); records["t"][TransmitBytes] != 681 {
		t.Errorf("%d bytes are recorded, want 681", records["t"][TransmitBytes])
	}
}
