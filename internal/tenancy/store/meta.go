package store

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
)

// Schema is that of the values that this version writes, and the highest that it reads. A daemon that is
// older than another one leaves out what it cannot read, and what it had of that stays; who adds what
// must not be overlooked raises it. Fields that may be overlooked are added without: readers pass over
// those that they do not know.
const Schema = 1

// KeyMeta is the key of Meta.
const KeyMeta = "meta"

// Meta says which store it is. A store that has another ID than before is another store, or
// lost everything, and must not be believed to be the same one with everything deleted.
type Meta struct {
	Schema int    `json:"schema"`
	ID     string `json:"id"`
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
func Name() (Meta, Condition, Write) {
	m := Meta{Schema: Schema, ID: rand.Text()}
	value, _ := json.Marshal(m) // a number and a string: it cannot fail
	return m, Condition{Key: KeyMeta}, Write{Key: KeyMeta, Value: value}
}
