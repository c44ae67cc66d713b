package transport_test

import (
	"math/rand/v2"
	"os"
	"reflect"
	"testing"

	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/testkit/simnet"
)

// hostile plays events with a queue pair that was thawed from any state. Nothing may panic or hang.
func hostile(t *testing.T, q QP, script []byte) {
	typ := q.Config().Type
	w := newSizedWorld(t, typ, 160<<10, config(func(c *Config) { c.MaxBurst = 2048 }))
	w.Tap = func(*simnet.Endpoint, *Burst) bool { return true }
	for i, op := range []WROp{WRWrite, WRRead, WRSend} {
		r := w.req(op, 3000, 0)
		r.WRID = uint64(i)
		w.b.Post(r)
	}
	w.b.QP = q
	for n := 0; len(script) >= eventSize && n < 16; n++ {
		play(w, script[:eventSize], typ, w.bKey)
		script = script[eventSize:]
	}
	q = w.b.QP
	if _, err := thaw(frozen(t, &q, w.Now), w.Now); err != nil {
		t.Errorf("what was thawed and used cannot be thawed again: %v", err)
	}
}

// numbers collects the numbers below v that are encoded.
func numbers(v reflect.Value, list []reflect.Value) []reflect.Value {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("cbor") != "-" {
				list = numbers(v.Field(i), list)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			list = numbers(v.Index(i), list)
		}
	case reflect.Bool, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Int64:
		list = append(list, v)
	}
	return list
}

// TestThawAnyNumber changes a few numbers of states of queue pairs in use.
func TestThawAnyNumber(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	rounds := 1500
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		rounds = 50_000
	}
	w := newSizedWorld(t, ib.RC, 160<<10)
	w.post(w.req(WRWrite, 9000, 0), w.req(WRRead, 12000, 0), w.req(WRFetchAdd, 8, 64), w.req(WRSend, 100, 0))
	w.a.QP.Run(w.Now, 4096, w.a.Env())
	thawed := 0
	for range rounds {
		var st QPState
		e := []*simnet.Endpoint{w.a, w.b}[rng.IntN(2)]
		e.QP.Freeze(&st, w.Now)
		list := numbers(reflect.ValueOf(&st).Elem(), nil)
		for range 1 + rng.IntN(3) {
			switch v := list[rng.IntN(len(list))]; v.Kind() {
			case reflect.Bool:
				v.SetBool(!v.Bool())
			case reflect.Int64:
				v.SetInt(rng.Int64() >> rng.IntN(64))
			default:
				v.SetUint(rng.Uint64() >> rng.IntN(64))
			}
		}
		b, err := state.Marshal(&st)
		if err != nil {
			t.Fatal(err)
		}
		q, err := thaw(b, w.Now)
		if err != nil {
			continue
		}
		thawed++
		script := make([]byte, 8*eventSize)
		for i := range script {
			script[i] = byte(rng.Uint32())
		}
		hostile(t, q, script)
		if t.Failed() {
			t.Fatalf("state %+v", st)
		}
	}
	if thawed < rounds/4 {
		t.Errorf("only %d of %d states were thawed", thawed, rounds)
	}
}

func FuzzThaw(f *testing.F) {
	b, err := os.ReadFile("testdata/format1.cbor")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, make([]byte, 4*eventSize))
	f.Fuzz(func(t *testing.T, b, script []byte) {
		if q, err := thaw(b, 1e9); err == nil {
			hostile(t, q, script)
		}
	})
}
