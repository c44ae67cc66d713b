package store

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
)

// Schema is the schema of the values that this version writes, and the highest that it reads. An older daemon leaves
// out entries that it cannot read, and keeps its last version of them. A change that readers must not ignore raises the
// schema. Fields that readers may ignore are added without raising it.
const Schema = 1

// KeyMeta is the key of Meta.
const KeyMeta = "meta"

// Meta identifies a store. A store with another ID is another store, or lost its contents, and must not be taken for
// the same store with everything deleted.
type Meta struct {
	Schema int    `json:"schema"`
	ID     string `json:"id"`
}

// Identify reads the identity of a store; there is false for a store without commits.
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

// Name is what the first commit to a store adds: the store's identity, on the condition that it has none.
func Name() (Meta, Condition, Write) {
	m := Meta{Schema: Schema, ID: rand.Text()}
	value, _ := json.Marshal(m) // a number and a string: it cannot fail
	return m, Condition{Key: KeyMeta}, Write{Key: KeyMeta, Value: value}
}
