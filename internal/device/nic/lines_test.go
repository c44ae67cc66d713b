package nic

import (
	"reflect"
	"testing"
)

// TestObjectsFillLines: objects that a loop writes on the data path share no cache line with objects of the same kind, which may be
// those of other loops. Go allocates objects of a kind side by side.
func TestObjectsFillLines(t *testing.T) {
	for _, p := range []any{QP{}, CQ{}, SRQ{}, Session{}, Part{}, Loop{}} {
		kind := reflect.TypeOf(p)
		of := make(map[uintptr]int)
		var keep []reflect.Value
		for i := range 100 {
			v := reflect.New(kind)
			keep = append(keep, v)
			for at, end := v.Pointer()/64, (v.Pointer()+kind.Size()-1)/64; at <= end; at++ {
				if o, ok := of[at]; ok {
					t.Fatalf("%v, %d bytes: objects %d and %d are in one cache line", kind, kind.Size(), o, i)
				}
				of[at] = i
			}
		}
		clear(keep)
	}
}
