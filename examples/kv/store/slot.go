package store

import (
	"encoding/binary"
	"errors"
	"hash/crc64"
)

// Offsets in a slot.
const (
	versionAt  = 0
	checksumAt = 8
	lengthAt   = 16
	valueAt    = 24

	cacheLine = 64
)

// MaxValue is the largest value in bytes.
const MaxValue = 1 << 16

var crc = crc64.MakeTable(crc64.ECMA)

var order = binary.LittleEndian

// errTorn means that the bytes of a slot are not one record: it is being written.
var errTorn = errors.New("a torn record")

// errCut means that the record is longer than what was read of it.
var errCut = errors.New("a record that was not read to its end")

// slotSize returns the distance of slots for values of this size. No two slots share a cache line.
func slotSize(maxValue int) int {
	return (valueAt + maxValue + cacheLine - 1) / cacheLine * cacheLine
}

// checksum returns the checksum of a record.
func checksum(key, version uint64, value []byte) uint64 {
	var head [24]byte
	order.PutUint64(head[0:], key)
	order.PutUint64(head[8:], version)
	order.PutUint64(head[16:], uint64(len(value)))
	return crc64.Update(crc64.Checksum(head[:], crc), crc, value)
}

// writeSlot writes a record to a slot. halfway, if set, is called when half of it is written; for tests.
func writeSlot(slot []byte, key, version uint64, value []byte, halfway func()) {
	order.PutUint64(slot[versionAt:], version)
	order.PutUint64(slot[lengthAt:], uint64(len(value)))
	if halfway != nil {
		half := len(value) / 2
		copy(slot[valueAt:], value[:half])
		halfway()
	}
	copy(slot[valueAt:], value)
	order.PutUint64(slot[checksumAt:], checksum(key, version, value))
}

// readSlot returns the record of a key from bytes that were read while a writer may have changed them. The value is a part of slot.
// The error is errTorn or errCut.
func readSlot(slot []byte, key uint64) (value []byte, version uint64, err error) {
	if len(slot) < valueAt {
		return nil, 0, errCut
	}
	version = order.Uint64(slot[versionAt:])
	length := order.Uint64(slot[lengthAt:])
	if length > MaxValue {
		return nil, 0, errTorn // no record is that long
	}
	if length > uint64(len(slot)-valueAt) {
		return nil, 0, errCut
	}
	value = slot[valueAt : valueAt+length]
	if order.Uint64(slot[checksumAt:]) != checksum(key, version, value) {
		return nil, 0, errTorn
	}
	return value, version, nil
}
