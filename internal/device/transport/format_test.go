package transport

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/state/statetest"
)

var update = flag.Bool("update", false, "write the golden files of the current format")

// TestFormat checks that every number of format 1 still has its meaning.
func TestFormat(t *testing.T) { statetest.Numbers(t, "testdata/format1.fields", nil, QPState{}) }

// TestGolden reads a queue pair of format 1.
func TestGolden(t *testing.T) {
	const golden = "testdata/format1.cbor"
	if *update {
		q := busy(rand.New(rand.NewPCG(3, 4)), t)
		os.WriteFile(golden, q.frozen(t, 1e9), 0o644)
	}
	b, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	q, err := thaw(b, 5e9)
	if err != nil {
		t.Fatal(err)
	}
	// Fields that were added since are empty, so they are not encoded.
	if again := q.frozen(t, 5e9); !bytes.Equal(again, b) {
		t.Errorf("the queue pair of format 1 has changed")
	}
}

// busy returns a queue pair with a random value in every field, as far as it is valid.
func busy(rng *rand.Rand, t testing.TB) *QP {
	q := new(QP)
	for _, p := range q.parts() {
		scramble(t, reflect.ValueOf(p).Elem(), rng)
	}
	makeValid(q)
	return q
}

// used returns a queue pair as it is in use: connected, with requests and READs in flight.
func used() *QP {
	q := new(QP)
	q.Init(Config{Type: ib.RC, Num: 0x123456})
	q.apply(&Attr{MTU: 4096, DestQPN: 0x654321, RQPSN: 77, SQPSN: 99, MaxRDAtomic: 16, MaxDestRDAtomic: 16, SGID: ib.GID{1}, DGID: ib.GID{2}},
		ib.MaskMTU|ib.MaskDestQPN|ib.MaskRQPSN|ib.MaskSQPSN|ib.MaskMaxRDAtomic|ib.MaskMaxDestRDAtomic|ib.MaskAV)
	q.common.State, q.common.Count.SentPackets, q.common.Count.RcvdPackets = ib.StateRTS, 1e6, 1e6
	r := &q.req
	r.Tail, r.Started, r.Pos = 1000, 1016, 1016
	for pos := r.Tail; pos != r.Started; pos++ {
		r.Sent.note(pos, &SendWQE{WRID: uint64(pos), Length: 4096}, 1)
	}
	r.Loss.RetransAt = 1e9
	for i := range uint8(16) {
		q.resp.Res.put(&resource{Kind: KindReadReq, PSN: uint32(i), Value: 1 << 40, RKey: 77, Length: 4096}, 16)
	}
	return q
}

// BenchmarkFreeze encodes 1000 queue pairs, and BenchmarkThaw decodes them.
func BenchmarkFreeze(b *testing.B) {
	idle := new(QP)
	idle.Init(Config{Type: ib.RC, Num: 0x123456})
	for name, q := range map[string]*QP{"idle": idle, "used": used()} {
		st := make([]QPState, 1000)
		b.Run(name, func(b *testing.B) {
			size := 0
			for b.Loop() {
				for i := range st {
					q.Freeze(&st[i], 1)
				}
				out, err := state.Marshal(st)
				if err != nil {
					b.Fatal(err)
				}
				size = len(out)
			}
			b.ReportMetric(float64(size)/1000, "bytes/qp")
		})
	}
}

func BenchmarkThaw(b *testing.B) {
	idle := new(QP)
	idle.Init(Config{Type: ib.RC, Num: 0x123456})
	for name, q := range map[string]*QP{"idle": idle, "used": used()} {
		st := make([]QPState, 1000)
		for i := range st {
			q.Freeze(&st[i], 1)
		}
		in, err := state.Marshal(st)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var st []QPState
				if err := state.Unmarshal(in, &st); err != nil {
					b.Fatal(err)
				}
				for i := range st {
					if _, err := Thaw(&st[i], 1); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
