package store

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
)

// Schema is that of the values that this version writes, and the highest that it reads.
const Schema = 1

// KeyMeta is the key of Meta.
const KeyMeta = "meta"

// Meta says which store it is. A store that has another ID than before is another store, or
// lost everything, and must not be believed to be the same one with everything deleted.
type Meta struct {
	Schema int    `json:"schema"`
	ID     string `json:"id"`
	// Daemon is the least version that writes here.
	Daemon string `json:"daemon,omitempty"`
}

// Identify reads who a store is; there is false for one that nobody has written to yet.
func Identify(s Store) (m Meta, there bool, err error) {
	list, _, err := s.List(KeyMeta)
	if err != nil || len(list) == 0 || list[0].Key != KeyMeta {
		return m, false, err
	}
	if err := json.Unmarshal(list[0].Value, &m); err != nil || m.ID == "" {
		return m, true, fmt.Errorf("the entry %q of the store does not say which store it is: %.80q", KeyMeta, list[0].Value)
	}
	if m.Schema > Schema {
		return m, true, fmt.Errorf("the store has schema %d, this version reads %d: use the newer vrdma that wrote it", m.Schema, Schema)
	}
	return m, true, nil
}

// Name is what whoever writes to a store first does besides: it says who the store is, on the
// condition that nobody has.
func Name(daemon string) (Meta, Condition, Write) {
	m := Meta{Schema: Schema, ID: rand.Text(), Daemon: daemon}
	value, _ := json.Marshal(m) // a number and two strings: it cannot fail
	return m, Condition{Key: KeyMeta}, Write{Key: KeyMeta, Value: value}
}
