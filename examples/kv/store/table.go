package store

import (
	"fmt"
	"sync"
)

// A table is the server's memory with a slot for every key.
type table struct {
	mem      []byte // registered, so that clients can read it
	keys     int
	maxValue int
	stride   int
	// locks serialize readers and writers of a slot in this process: slot k has lock k % len(locks). One-sided readers take no
	// lock.
	locks   [256]sync.Mutex
	halfway func() // for tests: called halfway through a write, with the lock held
}

// tableSize returns the size of a table in bytes.
func tableSize(keys, maxValue int) int { return keys * slotSize(maxValue) }

// newTable makes a table in mem. Every key has an empty value.
func newTable(mem []byte, keys, maxValue int) *table {
	t := &table{mem: mem, keys: keys, maxValue: maxValue, stride: slotSize(maxValue)}
	for k := range keys {
		writeSlot(t.slot(uint64(k)), uint64(k), 0, nil, nil)
	}
	return t
}

func (t *table) slot(key uint64) []byte {
	at := int(key) * t.stride
	return t.mem[at : at+t.stride]
}

func (t *table) lock(key uint64) *sync.Mutex { return &t.locks[key%uint64(len(t.locks))] }

// get copies a value to dst, which must be large enough, and returns its length and version.
func (t *table) get(key uint64, dst []byte) (n int, version uint64, err error) {
	if key >= uint64(t.keys) {
		return 0, 0, fmt.Errorf("%w %d: the keys are 0 to %d", ErrNoKey, key, t.keys-1)
	}
	l := t.lock(key)
	l.Lock()
	defer l.Unlock()
	slot := t.slot(key)
	n = int(order.Uint64(slot[lengthAt:]))
	return copy(dst, slot[valueAt:valueAt+n]), order.Uint64(slot[versionAt:]), nil
}

// put sets the value of a key and returns its version.
func (t *table) put(key uint64, value []byte) (version uint64, err error) {
	if key >= uint64(t.keys) {
		return 0, fmt.Errorf("%w %d: the keys are 0 to %d", ErrNoKey, key, t.keys-1)
	}
	if len(value) > t.maxValue {
		return 0, fmt.Errorf("%w: %d bytes, and this store takes %d", ErrTooLong, len(value), t.maxValue)
	}
	l := t.lock(key)
	l.Lock()
	defer l.Unlock()
	slot := t.slot(key)
	version = order.Uint64(slot[versionAt:]) + 1
	writeSlot(slot, key, version, value, t.halfway)
	return version, nil
}
