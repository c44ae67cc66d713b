// Package state is the format of a daemon's state: what the next daemon, another loop or another host needs in
// order to continue a client's session.
//
//	nic, transport, memory, rdmacm, server …    declare plain structs, and convert their objects from and to them
//	state                                       encodes the structs: CBOR (RFC 8949) behind a header
//
// The packages that own objects own the structs, too. This package knows none of them.
//
// Rules for the structs, which keep formats N and N-1 readable for each other:
//
//   - Every field has a tag `cbor:"NUMBER,keyasint,omitempty"`. A number is never used for another meaning.
//   - A new field is optional: its zero value means what the older format meant. A reader ignores fields that it does
//     not know.
//   - A change that an older reader would misunderstand increases Format, and Oldest if that reader must refuse.
//   - Points in time are relative to the moment of the snapshot, because the reader has another clock.
//   - A struct has no pointer to an object. Objects are named by handles, numbers and keys.
//
// A reader trusts nothing: it checks every number before it is used as an index, a size or a handle.
package state

import (
	"bytes"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

const (
	// Format is the number of the format that this build writes.
	Format = 1
	// Oldest is the number of the oldest format whose readers understand what this build writes.
	Oldest = 1
	// OldestRead is the number of the oldest format that this build reads.
	OldestRead = 1
)

// magic is at the beginning of every encoded state.
const magic = "vrdma-state\n"

// A Header says what is needed to read the state behind it.
type Header struct {
	Format  uint32 `cbor:"1,keyasint"`
	Oldest  uint32 `cbor:"2,keyasint"`           // the oldest format whose readers understand it
	Version string `cbor:"3,keyasint,omitempty"` // of the program that wrote it
}

// Own is the header of what this build writes. version is the program's.
func Own(version string) Header { return Header{Format: Format, Oldest: Oldest, Version: version} }

// Check returns why this build cannot read a state with header h; nil: it can.
func (h Header) Check() error {
	switch {
	case h.Format < OldestRead:
		return fmt.Errorf("the state has format %d, of vrdma %s, and this vrdma reads formats from %d on: upgrade in smaller steps", h.Format, h.Version, OldestRead)
	case h.Oldest > Format:
		return fmt.Errorf("the state has format %d, of vrdma %s, which needs a vrdma that reads format %d, and this vrdma reads up to %d: use a newer vrdma", h.Format, h.Version, h.Oldest, Format)
	}
	return nil
}

// Limits of the decoder. They bound what damaged or hostile input can allocate; the largest array is the list of a
// virtual machine's pages in a region.
const (
	mostElements = 1 << 24
	mostLevels   = 24
)

var (
	encoding = must(cbor.EncOptions{Sort: cbor.SortNone}.EncMode())
	decoding = must(cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
		MaxArrayElements: mostElements, MaxMapPairs: mostElements, MaxNestedLevels: mostLevels,
	}.DecMode())
)

func must[T any](mode T, err error) T {
	if err != nil {
		panic(err) // the options are constants
	}
	return mode
}

// Marshal encodes a struct without a header.
func Marshal(v any) ([]byte, error) { return encoding.Marshal(v) }

// Unmarshal decodes what Marshal has encoded. Bytes that are left over are an error.
func Unmarshal(b []byte, v any) error { return decoding.Unmarshal(b, v) }

// Write encodes v behind a header.
func Write(h Header, v any) ([]byte, error) {
	head, err := Marshal(h)
	if err != nil {
		return nil, err
	}
	body, err := Marshal(v)
	if err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{[]byte(magic), head, body}, nil), nil
}

// Read decodes what Write has encoded, if this build can read it.
func Read(b []byte, v any) (Header, error) {
	var h Header
	rest, ok := bytes.CutPrefix(b, []byte(magic))
	if !ok {
		return h, fmt.Errorf("%d bytes are not the state of a vrdma daemon", len(b))
	}
	rest, err := decoding.UnmarshalFirst(rest, &h)
	if err != nil {
		return h, fmt.Errorf("the header of a state: %w", err)
	}
	if err := h.Check(); err != nil {
		return h, err
	}
	if err := Unmarshal(rest, v); err != nil {
		return h, fmt.Errorf("the state in format %d of vrdma %s: %w", h.Format, h.Version, err)
	}
	return h, nil
}
