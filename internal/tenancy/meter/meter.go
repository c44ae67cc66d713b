package meter

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
)

// A Reading is the state of a NIC.
type Reading struct {
	ID      any // identifies the NIC; another one for a NIC that was created again
	Key     Key
	Counted Usage // since the NIC was created
	Now     nic.Holdings
	Delays  nic.Delays
	At      time.Time // when it was read, on the loop
	Gone    bool      // the last reading of this NIC
}

// A Meter holds totals and records. Any goroutine may use it.
type Meter struct {
	path string // of the usage file; "": nothing is stored
	// file is held while the usage file is written; before mu.
	file sync.Mutex
	book *book // guarded by file; nil: nothing is stored
	lent *book // guarded by file; while the next daemon has it, see Release

	mu      sync.Mutex    // guards the fields below
	base    map[Key]Usage // counted by the last daemon, of NICs that were not read yet
	seen    map[any]*seen
	totals  map[Key]*total
	records map[recordKey]*Usage
	current time.Time // the current minute
	latest  time.Time // of the samples
	dirty   bool      // there are changes since the last flush
	fresh   []int64   // the minutes that were counted since then
	rolled  time.Time // when records were rolled up

	unwritten time.Time // since when the file cannot be written; zero: it can
}

// seen is the last reading of a NIC.
type seen struct {
	key     Key
	counted Usage
	at      time.Time
	rest    uint64 // of MemoryTime: byte-milliseconds below a second
}

type total struct {
	usage   Usage
	now     nic.Holdings
	delays  nic.Delays
	at      time.Time
	live    int  // NICs with this key: two for a moment, when one is created again
	changed bool // since the last flush
}

// A recordKey identifies a record: its NIC, its begin and its length in seconds.
type recordKey struct {
	Key
	from int64
	span uint32
}

const minute = 60

// New makes a meter without a file.
func New() *Meter {
	return &Meter{seen: make(map[any]*seen), totals: make(map[Key]*total), records: make(map[recordKey]*Usage)}
}

// Sample adds readings.
func (m *Meter) Sample(now time.Time, readings []Reading) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Before(m.latest) { // the clock was set back: continue from the last time
		now = m.latest
	}
	m.latest = now
	m.current = now.Truncate(time.Minute)
	for i := range readings {
		m.take(now, &readings[i])
	}
}

// take adds the difference between a reading and the last one.
func (m *Meter) take(now time.Time, r *Reading) {
	t := m.totals[r.Key]
	if t == nil {
		t = &total{}
		m.totals[r.Key] = t
	}
	s := m.seen[r.ID]
	if s == nil {
		s = &seen{at: now, key: r.Key, counted: m.base[r.Key]}
		delete(m.base, r.Key)
		m.seen[r.ID] = s
		t.live++
	}
	d := r.Counted.since(&s.counted)
	if r.Now.Registered > 0 {
		s.rest += r.Now.Registered * uint64(now.Sub(s.at)/time.Millisecond)
		d[MemoryTime] += s.rest / 1000
		s.rest %= 1000
	}
	s.counted, s.at = r.Counted, now
	t.now, t.delays, t.at = r.Now, r.Delays, r.At
	if r.Gone {
		delete(m.seen, r.ID)
		if t.live--; t.live == 0 {
			t.now = nic.Holdings{}
		}
	}
	if d == (Usage{}) {
		return
	}
	t.usage.add(&d)
	t.changed, m.dirty = true, true
	at := recordKey{r.Key, m.current.Unix(), minute}
	u := m.records[at]
	if u == nil {
		u = &Usage{}
		m.records[at] = u
	}
	u.add(&d)
	if !slices.Contains(m.fresh, at.from) {
		m.fresh = append(m.fresh, at.from)
	}
}

// Totals are all totals, by tenant, network and NIC.
func (m *Meter) Totals() []Total {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Total, 0, len(m.totals))
	for k, t := range m.totals {
		out = append(out, Total{Key: k, Usage: t.usage, Now: t.now, Live: t.live > 0, Delays: t.delays, At: t.at})
	}
	slices.SortFunc(out, func(a, b Total) int { return compareKeys(a.Key, b.Key) })
	return out
}

// Records are the records that overlap the time since then, of one tenant or, if that is empty, of all; oldest first.
func (m *Meter) Records(since time.Time, tenant string) []Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Record
	for at, u := range m.records {
		if tenant != "" && at.Tenant != tenant || at.from+int64(at.span) <= since.Unix() {
			continue
		}
		to := time.Unix(at.from+int64(at.span), 0)
		if to.After(m.latest) && !m.latest.IsZero() {
			to = m.latest
		}
		out = append(out, Record{Key: at.Key, From: time.Unix(at.from, 0), To: to, Usage: *u})
	}
	slices.SortFunc(out, func(a, b Record) int {
		return cmp.Or(a.From.Compare(b.From), compareKeys(a.Key, b.Key), a.To.Compare(b.To))
	})
	return out
}

// Sum adds records of the same tenant and NIC.
func Sum(records []Record) []Record {
	at := make(map[Key]int)
	var out []Record
	for _, r := range records {
		i, ok := at[r.Key]
		if !ok {
			at[r.Key] = len(out)
			out = append(out, r)
			continue
		}
		s := &out[i]
		s.Usage.add(&r.Usage)
		if r.From.Before(s.From) {
			s.From = r.From
		}
		if r.To.After(s.To) {
			s.To = r.To
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return compareKeys(a.Key, b.Key) })
	return out
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Network, b.Network), cmp.Compare(a.NIC, b.NIC))
}
