package meter

// State is what a meter has counted, for the next daemon: package state has the rules for the structs. The file has the
// records of the past; those that the last daemon has not written are here, too.
type State struct {
	Totals  []EntryState `cbor:"1,keyasint,omitempty"`
	Records []EntryState `cbor:"2,keyasint,omitempty"`
	// Counted are the NICs' own counters as they were read last: they continue, too.
	Counted []EntryState `cbor:"3,keyasint,omitempty"`
}

// EntryState is a total, a record, or the counters of a NIC.
type EntryState struct {
	Tenant  string   `cbor:"1,keyasint,omitempty"`
	Network string   `cbor:"2,keyasint,omitempty"`
	NIC     string   `cbor:"3,keyasint,omitempty"`
	From    int64    `cbor:"4,keyasint,omitempty"` // of a record
	Span    uint32   `cbor:"5,keyasint,omitempty"`
	Usage   []uint64 `cbor:"6,keyasint,omitempty"` // by Column; columns are only added at the end
}

func entryState(k Key, u *Usage) EntryState {
	return EntryState{Tenant: k.Tenant, Network: k.Network, NIC: k.NIC, Usage: append([]uint64(nil), u[:]...)}
}

func (e *EntryState) key() Key { return Key{Tenant: e.Tenant, Network: e.Network, NIC: e.NIC} }

func (e *EntryState) usage() (u Usage) {
	copy(u[:], e.Usage)
	return u
}

// Freeze returns what was counted up to the last sample. It changes nothing.
func (m *Meter) Freeze() State {
	m.file.Lock()
	defer m.file.Unlock()
	stored := m.book != nil || m.lent != nil
	m.mu.Lock()
	defer m.mu.Unlock()
	var st State
	for k, t := range m.totals {
		st.Totals = append(st.Totals, entryState(k, &t.usage))
	}
	for at, u := range m.records {
		if !stored || m.current.Unix()-at.from <= 2*minute { // a minute may have ended since the last flush
			e := entryState(at.Key, u)
			e.From, e.Span = at.from, at.span
			st.Records = append(st.Records, e)
		}
	}
	for _, s := range m.seen {
		st.Counted = append(st.Counted, entryState(s.key, &s.counted))
	}
	return st
}

// Thaw continues from the state of another meter, which had the same file.
func (m *Meter) Thaw(st *State) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.base = make(map[Key]Usage)
	for i := range st.Totals {
		e := &st.Totals[i]
		t := m.totals[e.key()]
		if t == nil {
			t = &total{}
			m.totals[e.key()] = t
		}
		t.usage, t.changed = e.usage(), true
	}
	for i := range st.Records {
		e := &st.Records[i]
		u := e.usage()
		m.records[recordKey{e.key(), e.From, e.Span}] = &u
	}
	for i := range st.Counted {
		e := &st.Counted[i]
		m.base[e.key()] = e.usage()
	}
	m.dirty = true
}
