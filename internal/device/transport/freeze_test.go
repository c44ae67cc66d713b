package transport

import (
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/state"
)

// scramble sets every field below v to a random value, and fails for kinds that are not plain data.
func scramble(t testing.TB, v reflect.Value, rng *rand.Rand) {
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

// parts returns the parts of a queue pair.
func (q *QP) parts() []any { return []any{&q.common, &q.req, &q.resp, &q.cnp} }

// frozen returns the encoded state of q.
func (q *QP) frozen(t testing.TB, now ib.Time) []byte {
	var st QPState
	q.Freeze(&st, now)
	b, err := state.Marshal(&st)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// thaw decodes what frozen has encoded.
func thaw(b []byte, now ib.Time) (QP, error) {
	var st QPState
	if err := state.Unmarshal(b, &st); err != nil {
		return QP{}, err
	}
	return Thaw(&st, now)
}

// settle clears what is not part of q's state: entries of rings that are not in use.
func (q *QP) settle() {
	r, rs := &q.req, &q.resp
	rs.Episode = 0
	if !r.Loaded {
		r.W = SendWQE{}
	}
	if !rs.HaveRecv {
		rs.R = RecvWQE{}
	}
	clear(r.W.SGE[r.W.NumSGE:])
	clear(rs.R.SGE[rs.R.NumSGE:])
	clear(r.Repair.Gaps.List[r.Repair.Gaps.Num:])
	clear(r.Reads.Holes.List[r.Reads.Holes.Num:])
	clear(rs.Res.Ring[q.common.Attr.MaxDestRDAtomic:])
	n := min(r.Started-r.Tail, uint32(len(r.Sent)))
	for i := range r.Sent {
		if e := &r.Sent[i]; r.Started-1-e.Pos >= n {
			*e = sentRequest{Pos: r.Started}
		}
	}
}

// makeValid makes the state of a queue pair with random fields valid.
func makeValid(q *QP) {
	c, r, rs := &q.common, &q.req, &q.resp
	c.Conf.Type, c.State, c.Failed = ib.RC, ib.StateRTS, false
	c.Conf.Window, c.Attr.MTU, c.Attr.MaxDestRDAtomic = 8, 1024, 4
	r.CC.Window, c.Burst, r.Chunk = 8, 4096, 16
	rs.Res.Pending, rs.Res.Next, rs.Res.Head = 1, 2, 3
	r.Loaded, rs.HaveRecv = true, true
	r.W.NumSGE, rs.R.NumSGE, r.Repair.Gaps.Num = 32, 32, 16
	r.Reads.Holes.Num = 8
	r.Reads.NumSeen = 0
	for _, w := range r.Reads.Seen {
		r.Reads.NumSeen += uint32(bits.OnesCount64(w))
	}
	r.Tail = r.Started - 40
	for i := range uint32(len(r.Sent)) {
		pos := r.Started - 1 - i
		r.Sent[pos%uint32(len(r.Sent))].Pos = pos
	}
	for i := range rs.Res.Ring {
		e := &rs.Res.Ring[i]
		e.Kind, e.Due, e.PSN = KindSend+e.Kind%KindFlush, dueNew, e.PSN&ib.PSNMask
	}
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
		makeValid(&q)
		before := q
		got, err := thaw(q.frozen(t, 1234), 1234)
		if err != nil {
			t.Fatal(err)
		}
		if q != before {
			t.Error("Freeze changed the queue pair")
		}
		if q.settle(); got != q {
			t.Errorf("thawed differs from frozen")
		}
	}
}

// TestThawRefuses changes one number of a valid state at a time.
func TestThawRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*QPState){
		"type":           func(s *QPState) { s.Common.Conf.Type = 9 },
		"state":          func(s *QPState) { s.Common.State = 99 },
		"MTU":            func(s *QPState) { s.Common.Attr.MTU = 0 },
		"burst":          func(s *QPState) { s.Common.Burst = 1 },
		"window":         func(s *QPState) { s.Req.CC.Window = 0 },
		"chunk":          func(s *QPState) { s.Req.Chunk = 0 },
		"resources":      func(s *QPState) { s.Common.Attr.MaxDestRDAtomic = 255 },
		"pending":        func(s *QPState) { s.Common.Attr.MaxDestRDAtomic, s.Resp.Res.Pending = 1, 1 },
		"next":           func(s *QPState) { s.Common.Attr.MaxDestRDAtomic, s.Resp.Res.Next = 4, 4 },
		"short list":     func(s *QPState) { s.Resources.Kind = []uint8{1} },
		"resource":       func(s *QPState) { s.Resources = (&resources{Ring: [MaxResources]resource{{Kind: 5}}}).freeze(1) },
		"PSN":            func(s *QPState) { s.Req.Una = 1 << 24 },
		"many gaps":      func(s *QPState) { s.Gaps = make([]uint32, 34) },
		"half a gap":     func(s *QPState) { s.Gaps = make([]uint32, 1) },
		"repair":         func(s *QPState) { s.Req.Repair.Active = true },
		"many holes":     func(s *QPState) { s.Holes = make([]uint32, 18) },
		"words seen":     func(s *QPState) { s.Seen = make([]uint64, 33) },
		"packets seen":   func(s *QPState) { s.Req.Reads.NumSeen = 1 },
		"list":           func(s *QPState) { s.Req.W.NumSGE = 33 },
		"long list":      func(s *QPState) { s.Resp.R.NumSGE, s.RecvList.Addr = 33, make([]uint64, 33) },
		"sent":           func(s *QPState) { s.Sent.Op = make([]uint8, 2) },
		"many sent":      func(s *QPState) { s.Sent.WRID = make([]uint64, 65) },
		"positions":      func(s *QPState) { s.Req.Tail = 1 },
		"within a call":  func(s *QPState) { s.Common.Failed = true },
		"remote nothing": func(s *QPState) { s.Common.Path.Remote = true },
		"spread nothing": func(s *QPState) { s.Req.CC.Spread, s.Req.CC.Cwnd = true, 0 },
	} {
		var q QP
		var st QPState
		q.Init(Config{Type: ib.RC})
		q.Freeze(&st, 1)
		if _, err := Thaw(&st, 1); err != nil {
			t.Fatal(err)
		}
		spoil(&st)
		if _, err := Thaw(&st, 1); err == nil {
			t.Errorf("%s: thawed", name)
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
			if want := len(moments(&q.common, &q.req, &q.resp, &q.cnp)) + len(durations); found != want {
				t.Fatalf("%d times in the state of a queue pair, %d moments and durations are known", found, want)
			}
			got, err := thaw(q.frozen(t, clock.frozen), clock.thawed)
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
