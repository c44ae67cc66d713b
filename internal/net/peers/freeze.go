package peers

import (
	"bytes"
	"fmt"
	"slices"

	"vrdma.dev/vrdma/internal/net/wire"
)

// A TableState is the state of a Table, in the format of package state. Points in time are relative to that of Freeze.
type TableState struct {
	Instance uint64      `cbor:"1,keyasint,omitempty"`
	TID      uint64      `cbor:"2,keyasint,omitempty"`
	Features uint32      `cbor:"3,keyasint,omitempty"` // that the table announced
	Count    Counters    `cbor:"4,keyasint,omitzero"`
	Hosts    []HostState `cbor:"5,keyasint,omitempty"` // those that were only named in the order of their names
}

// HostState is the state of one host.
type HostState struct {
	GID       GID      `cbor:"1,keyasint,omitzero"`
	Local     GID      `cbor:"2,keyasint,omitzero"`
	Kind      Kind     `cbor:"3,keyasint,omitempty"`
	Asking    bool     `cbor:"4,keyasint,omitempty"`
	Doubted   bool     `cbor:"5,keyasint,omitempty"`
	Waiting   bool     `cbor:"6,keyasint,omitempty"`
	Tries     uint8    `cbor:"7,keyasint,omitempty"`
	Rounds    uint8    `cbor:"8,keyasint,omitempty"`
	Nonce     uint64   `cbor:"9,keyasint,omitempty"`
	Spent     uint64   `cbor:"10,keyasint,omitempty"`
	Asked     Time     `cbor:"11,keyasint,omitempty"`
	Heard     Time     `cbor:"12,keyasint,omitempty"`
	DoubtedAt Time     `cbor:"13,keyasint,omitempty"`
	Due       Time     `cbor:"14,keyasint,omitempty"`
	Features  uint32   `cbor:"15,keyasint,omitempty"`
	Instance  uint64   `cbor:"16,keyasint,omitempty"`
	Version   string   `cbor:"17,keyasint,omitempty"`
	Ports     []uint16 `cbor:"18,keyasint,omitempty"`
}

// Freeze returns the state of t, which it does not change.
func (t *Table) Freeze(now Time) *TableState {
	st := &TableState{Instance: t.instance, TID: t.tid, Features: t.conf.Features, Count: t.count}
	var named, heard []HostState
	for p := t.named.oldest; p != nil; p = p.newer {
		named = append(named, p.freeze(now))
	}
	for _, p := range t.peers {
		if p.heard != 0 {
			heard = append(heard, p.freeze(now))
		}
	}
	slices.SortFunc(heard, func(a, b HostState) int { return bytes.Compare(a.GID[:], b.GID[:]) })
	st.Hosts = append(heard, named...)
	return st
}

func (p *peer) freeze(now Time) HostState {
	return HostState{
		GID: p.gid, Local: p.local, Kind: p.kind, Asking: p.asking, Doubted: p.doubted, Waiting: p.waiting, Tries: p.tries, Rounds: p.rounds,
		Nonce: p.nonce, Spent: p.spent, Asked: p.asked.Freeze(now), Heard: p.heard.Freeze(now), DoubtedAt: p.doubtedAt.Freeze(now),
		Due: p.due.Freeze(now), Features: p.features, Instance: p.instance, Version: p.version,
		Ports: slices.Clone(p.ports),
	}
}

// Thaw makes t, which is new, continue with the state of another table, and reports the vrdma hosts to Env.Judged.
//
// Other hosts take t for the table that it continues, because its instance is the same. If t announces other features,
// it gets another instance, and asks every host at once: they learn its features from the question.
func (t *Table) Thaw(st *TableState, now Time) error {
	if len(st.Hosts) > maxNamed+maxAnswered {
		return fmt.Errorf("restore the table of hosts: it has %d", len(st.Hosts))
	}
	for i := range st.Hosts {
		if h := &st.Hosts[i]; h.Kind > Foreign || t.peers[h.GID] != nil || h.Kind == Own && h.Heard == 0 || h.Rounds > 8 || len(h.Ports) > wire.MaxHelloPorts {
			return fmt.Errorf("restore the table of hosts: %v of kind %d, heard of at %d, %d rounds, known %v", h.GID.Addr(), h.Kind, h.Heard, h.Rounds, t.peers[h.GID] != nil)
		}
		t.thaw(&st.Hosts[i], now)
	}
	t.tid, t.count = st.TID, st.Count
	same := st.Features == t.conf.Features
	if same {
		t.instance = st.Instance
	}
	for i := range st.Hosts {
		gid := st.Hosts[i].GID
		p := t.peers[gid]
		if !same && p.kind == Own && !p.asking {
			t.ask(now, gid, p)
		}
		if p.kind == Own {
			t.conf.Env.Judged(gid)
		}
	}
	return nil
}

func (t *Table) thaw(h *HostState, now Time) {
	p := &peer{
		gid: h.GID, local: h.Local, kind: h.Kind, asking: h.Asking, doubted: h.Doubted, waiting: h.Waiting, tries: min(h.Tries, knownTries), rounds: h.Rounds,
		nonce: h.Nonce, spent: h.Spent, asked: h.Asked.Thaw(now), heard: h.Heard.Thaw(now), doubtedAt: h.DoubtedAt.Thaw(now),
		features: h.Features, instance: h.Instance, version: h.Version, ports: slices.Clone(h.Ports),
	}
	t.peers[h.GID] = p
	if p.heard == 0 {
		t.named.add(p)
	}
	t.later(p, max(h.Due.Thaw(now), now))
}
