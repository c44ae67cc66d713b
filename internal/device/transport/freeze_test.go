package transport

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

// scramble sets every field below v to a random value, and fails for kinds that are not plain data.
func scramble(t *testing.T, v reflect.Value, rng *rand.Rand) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			scramble(t, v.Field(i), rng)
		}
	case reflect.Array:
		for i := range v.Len() {
			scramble(t, v.Index(i), rng)
		}
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rng.Uint64() >> (64 - v.Type().Bits()))
	case reflect.Int64:
		v.SetInt(rng.Int64())
	default:
		t.Fatalf("%s in the state of a queue pair", v.Kind())
	}
}

// TestFreezeKeepsEverything sets every field and checks that it survives Freeze and Thaw.
func TestFreezeKeepsEverything(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		var q QP
		for _, p := range q.parts() {
			scramble(t, reflect.ValueOf(p).Elem(), rng)
		}
		if n, want := len(q.parts()), reflect.TypeOf(q).NumField(); n != want {
			t.Fatalf("%d parts of %d fields are frozen", n, want)
		}
		b := q.Freeze(5)
		// Make the state valid again.
		c, r, rs := &q.common, &q.req, &q.resp
		c.Conf.Type, c.State, c.Failed = ib.RC, ib.StateRTS, false
		c.Conf.Window, c.Attr.MTU, c.Attr.MaxDestRDAtomic = 8, 1024, 4
		r.CC.Window, c.Burst, r.Chunk = 8, 4096, 16
		rs.Res.Pending, rs.Res.Next, rs.Res.Head = 1, 2, 3
		r.W.NumSGE, rs.R.NumSGE, r.Repair.Gaps.Num = 32, 32, 16
		r.Reads.Holes.Num, r.Reads.NumSeen = 8, 2048
		for _, p := range []*uint32{&r.TailPSN, &r.Una, &r.PSN, &r.Max, &rs.PSN, &rs.AckPSN, &rs.Msg.PSN,
			&r.Repair.Resume.PSN, &r.Repair.Arrived, &r.Reads.SeenEnd, &rs.Newest} {
			*p &= ib.PSNMask
		}
		for _, l := range []*gapList{&r.Repair.Gaps, &r.Reads.Holes} {
			for i := range l.List {
				l.List[i].From &= ib.PSNMask
				l.List[i].To &= ib.PSNMask
			}
		}
		if _, err := Thaw(b, 5); err == nil {
			t.Errorf("thawed nonsense")
		}
		got, err := Thaw(q.Freeze(1234), 1234)
		if err != nil {
			t.Fatal(err)
		}
		q.resp.Episode = 0 // the stash is not frozen
		if got != q {
			t.Errorf("thawed differs from frozen")
		}
	}
}

func TestThawRefuses(t *testing.T) {
	var q QP
	q.Init(Config{Type: ib.RC})
	b := q.Freeze(1)
	if _, err := Thaw(b, 1); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "short": b[:len(b)-1], "long": append(b[:len(b):len(b)], 0), "other": append([]byte("x"), b[1:]...),
	} {
		if _, err := Thaw(b, 1); err == nil {
			t.Errorf("%s: thawed", name)
		}
	}
	// The error about another version names both.
	old := bytes.Clone(b)
	old[len(frozenMagic)] = frozenVersion - 1
	_, err := Thaw(old, 1)
	if err == nil {
		t.Fatal("another version: thawed")
	}
	for _, v := range []int{frozenVersion - 1, frozenVersion} {
		if want := fmt.Sprintf("version %d", v); !strings.Contains(err.Error(), want) {
			t.Errorf("another version: %q does not say %q", err, want)
		}
	}
}

// times calls f with every ib.Time below v and the name of its field.
func times(v reflect.Value, f func(name string, t *ib.Time)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if t, ok := v.Field(i).Addr().Interface().(*ib.Time); ok {
				f(name, t)
			} else {
				times(v.Field(i), f)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			times(v.Index(i), f)
		}
	}
}

// durations are the fields that are durations, not points in time.
var durations = []string{"SRTT", "Var", "NakTrip"}

// TestThawRebases freezes a queue pair on one clock and thaws it on another. Every point in time keeps its distance from now,
// never stays never, and durations do not change.
func TestThawRebases(t *testing.T) {
	for _, clock := range []struct{ frozen, thawed ib.Time }{{5e12, 7}, {7, 5e12}, {3e9, 3e9}, {1000, 100}} {
		for _, d := range []ib.Time{-100, -1, 0, 1, 4_000_000} {
			var q QP
			q.Init(Config{Type: ib.RC})
			found := 0
			for _, p := range q.parts() {
				times(reflect.ValueOf(p).Elem(), func(name string, at *ib.Time) {
					found++
					if *at = clock.frozen + d; slices.Contains(durations, name) {
						*at = 1234
					} else if found%2 == 0 {
						*at = 0
					}
				})
			}
			if want := len(q.moments()) + len(durations); found != want {
				t.Fatalf("%d times in the state of a queue pair, %d moments and durations are known", found, want)
			}
			got, err := Thaw(q.Freeze(clock.frozen), clock.thawed)
			if err != nil {
				t.Fatal(err)
			}
			want := clock.thawed + d
			if want == 0 {
				want = -1
			}
			n := 0
			for _, p := range got.parts() {
				times(reflect.ValueOf(p).Elem(), func(name string, at *ib.Time) {
					n++
					switch {
					case slices.Contains(durations, name):
						if *at != 1234 {
							t.Errorf("%s is %d, was 1234", name, *at)
						}
					case n%2 == 0:
						if *at != 0 {
							t.Errorf("%s is %d, was never", name, *at)
						}
					case *at != want:
						t.Errorf("%s is %d from now, was %d: frozen at %d, thawed at %d", name, *at-clock.thawed, d, clock.frozen, clock.thawed)
					}
				})
			}
		}
	}
}

// TestSize limits the size of a queue pair: there may be many thousands.
func TestSize(t *testing.T) {
	if n := reflect.TypeOf(QP{}).Size(); n > 8<<10 {
		t.Errorf("a queue pair takes %d bytes, want at most 8 KiB", n)
	}
}
