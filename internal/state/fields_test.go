package state

import (
	"slices"
	"testing"
)

func TestFields(t *testing.T) {
	got, err := Fields(sample{})
	if want := "state.sample 2 List []uint32"; err != nil || !slices.Contains(got, want) {
		t.Errorf("fields of a sample: %q, %v, want %q among them", got, err, want)
	}
	for name, v := range map[string]any{
		"no tag": struct{ A int }{},
		"twice": struct {
			A int `cbor:"1,keyasint"`
			B int `cbor:"1,keyasint"`
		}{},
		"a name": struct {
			A int `cbor:"a"`
		}{},
		"inner": struct {
			A []struct{ B int } `cbor:"1,keyasint"`
		}{},
		"a function": struct {
			A func() `cbor:"1,keyasint"`
		}{},
	} {
		if _, err := Fields(v); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
