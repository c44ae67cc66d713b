package statetest

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

type good struct {
	A uint32  `cbor:"1,keyasint,omitempty"`
	B []inner `cbor:"2,keyasint,omitempty"`
}

type inner struct {
	A []byte `cbor:"1,keyasint,omitempty"`
	B bool   `cbor:"2,keyasint,omitempty"`
}

type bad struct {
	A uint32 `cbor:"1,keyasint,omitempty"`
	B uint32 `cbor:"1,keyasint,omitempty"`
	C uint32 `cbor:"3,keyasint"`
	D uint32
	e uint32 `cbor:"5,keyasint,omitempty"`
	F func() `cbor:"6,keyasint,omitempty"`
}

func TestTags(t *testing.T) {
	if got := tags(reflect.TypeFor[good](), map[reflect.Type]bool{}); got != nil {
		t.Errorf("good struct: %q", got)
	}
	got := strings.Join(tags(reflect.TypeFor[[]*bad](), map[reflect.Type]bool{}), "\n")
	for _, want := range []string{"bad.B and statetest.bad.A", "bad.C has", "bad.D has", "bad.e is not exported", "has a func()"} {
		if !strings.Contains(got, want) {
			t.Errorf("bad struct: %s\nwant %q", got, want)
		}
	}
	_ = bad{}.e
}

func TestComplete(t *testing.T) {
	set := map[string]bool{}
	fields(reflect.ValueOf(&good{B: []inner{{A: []byte{1}}, {}}}), set)
	want := map[string]bool{"statetest.good.A": false, "statetest.good.B": true, "statetest.inner.A": true, "statetest.inner.B": false}
	if !reflect.DeepEqual(set, want) {
		t.Errorf("fields %v, want %v", set, want)
	}
}

func TestText(t *testing.T) {
	const want = ".A = 7\n.B[0]\n.B[0].A = 0102\n.B[1]\n.B[1].B = true\n"
	if got := Text(&good{A: 7, B: []inner{{A: []byte{1, 2}}, {B: true}}}); got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}

func TestFilled(t *testing.T) {
	type all struct {
		Good  good
		Names map[uint64]string
		List  []*inner
		Addr  netip.Addr
		F     float64
		I     int8
		Pair  [3]uint16
	}
	v := Filled[all]()
	set := map[string]bool{}
	fields(reflect.ValueOf(v), set)
	for name, done := range set {
		if !done && strings.HasPrefix(name, "statetest.") {
			t.Errorf("%s is not set", name)
		}
	}
	if !v.Addr.IsValid() || len(v.Names) != 1 || v.Pair[1] == 0 || Text(v) != Text(Filled[all]()) {
		t.Errorf("filled: %s", Text(v))
	}
}
