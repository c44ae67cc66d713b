package nic

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/state/statetest"
)

var update = flag.Bool("update", false, "write the golden files of the current format")

// TestFormat checks that every number of format 1 still has its meaning.
func TestFormat(t *testing.T) {
	statetest.Numbers(t, "testdata/format1.fields", []string{"transport"}, SessionState{}, NICState{}, LoopState{})
}

const frozenBase = 1 << 32 // where a sample's memory is

// sample is a session with objects of every kind.
func (r *rig) sample() *Session {
	t := r.t
	rng := rand.New(rand.NewPCG(1, 1))
	r.nic.Random = rng.Uint32
	s := r.open()
	pd := must(s.AllocPD())(t)
	o := objects{s: s, pd: pd}
	mr := o.mr(t, frozenBase, 1<<20, uint32(ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessMWBind))
	channel, _, err := openChannel(t, s)
	if err != nil {
		t.Fatal(err)
	}
	cq := must(s.CreateCQ(CQParams{UserHandle: 11, CQE: 100, Channel: int32(channel)}))(t)
	srq := must(s.CreateSRQ(SRQParams{UserHandle: 12, PD: pd, MaxWR: 10, MaxSGE: 2}))(t)
	rc := must(s.CreateQP(QPParams{UserHandle: 13, PD: pd, SendCQ: cq.Handle, RecvCQ: cq.Handle, Type: 2, HasSRQ: true, SRQ: srq.Handle, Cap: QPCap{SendWR: 4, SendSGE: 2}}))(t)
	ud := must(s.CreateQP(QPParams{UserHandle: 14, PD: pd, SendCQ: cq.Handle, RecvCQ: cq.Handle, Type: 4, Cap: QPCap{SendWR: 4, RecvWR: 4, SendSGE: 2, RecvSGE: 2}}))(t)
	if err := s.AttachMcast(ud.Handle, ib.GID{0: 0xff, 15: 1}, 0); err != nil {
		t.Fatal(err)
	}
	addr := AHAttr{DGID: r.nic.GIDs[0].GID, IsGlobal: true, PortNum: 1}
	if _, _, err := s.CreateAH(pd, addr); err != nil {
		t.Fatal(err)
	}
	if err := s.ModifyQP(rc.Handle, ib.MaskState|ib.MaskPKey|ib.MaskPort|ib.MaskAccess, &QPAttr{State: uint8(ib.StateInit), PortNum: 1}); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []uint8{abi.MWType1, abi.MWType2} {
		h := must(s.AllocMW(pd, typ))(t).Handle
		w, _ := s.mws.get(h)
		w.bindTo(s.nic.keys[mr.LKey>>8].(*MR), s.QP(rc.Handle), frozenBase, 100, ib.AccessRemoteWrite)
	}
	must(s.ResizeCQ(cq.Handle, 200))(t) // leaves a released ring
	s.async.waiting = append(s.async.waiting, asyncEvent(13, abi.EventCommEst))
	s.Account.Charge(eventBill)
	s.trouble.stall(s.async)
	return s
}

// A restorer restores a session in the same process.
type restorer struct {
	t     testing.TB
	space *memory.Space
	ends  []*os.File
}

func (r *restorer) Region(id uint64) (*memory.Region, error) {
	if g := r.space.Region(id); g != nil {
		return g, nil
	}
	return nil, fmt.Errorf("no region %d", id)
}

func (r *restorer) Sink(uint32) (EventSink, error) {
	var end *os.File
	s, err := socket(&end)()
	r.ends = append(r.ends, end)
	return s, err
}

func (r *restorer) AsyncSink() (EventSink, error) { return r.Sink(0) }

// dup copies a descriptor.
func dup(t testing.TB, f *os.File) *os.File {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// thaw restores a session beside the one that it is the state of, and uses it a little. It fails the test only if
// something is left of a session that was refused.
func thaw(t testing.TB, of *Session, st *SessionState) (again *SessionState, err error) {
	n := New(Config{Name: "rxe1", GIDs: of.nic.GIDs})
	loop := newFakeLoop()
	space, files, err := of.Space.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := memory.Thaw(&space, files, memory.ThawOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	arena, err := NewArenaOf(dup(t, of.Arena.File()))
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	r := &restorer{t: t, space: memory}
	defer func() {
		for _, f := range r.ends {
			f.Close()
		}
		if len(n.sessions) != 0 || len(n.qps) != 0 || len(n.keys) != 0 || len(n.mcast) != 0 || n.tally.registered != 0 {
			t.Errorf("left of a session: %d queue pairs, %d keys, %d groups, %d bytes", len(n.qps), len(n.keys), len(n.mcast), n.tally.registered)
		}
	}()
	s, err := n.ThawSession(SessionOptions{Arena: arena, Space: memory, Pid: 1}, st, r, 1)
	if err != nil {
		return nil, err
	}
	s.SetOwner(loop)
	defer s.CloseLost()
	arena.lost = true // the other session's arena does not change
	if err := s.AdoptQPs(); err != nil {
		return nil, err
	}
	arena.lost = false
	if again, err = s.Freeze(); err != nil {
		t.Fatal(err)
	}
	arena.lost = true
	s.Status()
	s.qps.walk(func(h uint32, q *QP) {
		s.QueryQP(h)
		q.HasReceive()
		if q.tr.State() < ib.StateRTR { // else what is in the rings may be anything
			q.tr.Expire(2, &q.env)
			q.tr.Run(2, 1000, &q.env)
		}
	})
	return again, nil
}

// through encodes and decodes a state.
func through(t testing.TB, st *SessionState) (*SessionState, []byte) {
	b, err := state.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	out := &SessionState{}
	if err := state.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out, b
}

func TestThawSession(t *testing.T) {
	s := newRig(t, DefaultLimits).sample()
	st, err := s.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	read, b := through(t, st)
	again, err := thaw(t, s, read)
	if err != nil {
		t.Fatal(err)
	}
	if _, c := through(t, again); !bytes.Equal(b, c) {
		t.Errorf("the state of a session that was restored differs:\n%+v\n%+v", again, st)
	}
	if st2, _ := s.Freeze(); !reflect.DeepEqual(st, st2) {
		t.Error("Freeze has changed the session")
	}
}

// TestGolden reads a session of format 1.
func TestGolden(t *testing.T) {
	const golden = "testdata/format1.cbor"
	s := newRig(t, DefaultLimits).sample()
	if *update {
		st, _ := s.Freeze()
		st.Opened = 1e18
		_, b := through(t, st)
		os.WriteFile(golden, b, 0o644)
	}
	b, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	var st SessionState
	if err := state.Unmarshal(b, &st); err != nil {
		t.Fatal(err)
	}
	again, err := thaw(t, s, &st)
	if err != nil {
		t.Fatal(err)
	}
	if _, c := through(t, again); !bytes.Equal(b, c) {
		t.Errorf("the session of format 1 has changed: %+v", again)
	}
}

// numbers calls f for every number below v.
func numbers(v reflect.Value, path string, f func(path string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			numbers(v.Field(i), path+"."+v.Type().Field(i).Name, f)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			numbers(v.Elem(), path, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			numbers(v.Index(i), fmt.Sprintf("%s[%d]", path, i), f)
		}
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		f(path, v)
	}
}

// TestThawAnyNumber changes every number of a state, one at a time. A state that does not fit is refused, with nothing
// left of it; none makes the daemon panic.
func TestThawAnyNumber(t *testing.T) {
	s := newRig(t, DefaultLimits).sample()
	frozen, _ := s.Freeze()
	st, _ := through(t, frozen)
	refused, taken := 0, 0
	numbers(reflect.ValueOf(st).Elem(), "", func(path string, v reflect.Value) {
		if strings.Contains(path, ".Sent[") || strings.Contains(path, ".Ring[") || strings.Contains(path, ".SGE[") || strings.Contains(path, ".Seen[") || strings.Contains(path, ".List[") {
			return // not encoded
		}
		was := v.Uint()
		defer v.SetUint(was)
		for _, x := range []uint64{0, was + 1, was ^ 1<<12, 1<<v.Type().Bits() - 1} {
			v.SetUint(x)
			if v.Uint() == was {
				continue
			}
			if _, err := thaw(t, s, st); err != nil {
				refused++
			} else {
				taken++
			}
		}
		if t.Failed() {
			t.Fatalf("after a change of %s", path)
		}
	})
	if refused < 100 || taken < 100 {
		t.Errorf("%d states refused, %d taken", refused, taken)
	}
}

func FuzzThawSession(f *testing.F) {
	b, err := os.ReadFile("testdata/format1.cbor")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var st SessionState
		if state.Unmarshal(b, &st) != nil {
			return
		}
		thaw(t, newRig(t, DefaultLimits).sample(), &st)
	})
}

func TestThawNIC(t *testing.T) {
	r := newRig(t, DefaultLimits)
	n := r.nic
	n.Serial()
	n.Drop(DropSpoof, 3)
	n.Exceeded()
	n.Part().Waited(5000)
	n.Part().Spend(77)
	n.SetFace(Face{GIDs: []GIDEntry{{GID: ib.GID{15: 1}, NetDev: "a"}, {GID: ib.GID{15: 2}, NetDev: "b"}}, MTU: 3, Rows: []int{1, 4}})
	var st NICState
	b, err := state.Marshal(n.Freeze())
	if err == nil {
		err = state.Unmarshal(b, &st)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{Name: "rxe0"})
	if err := m.Thaw(&st); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(m.Face(), n.Face()) || m.Counters() != n.Counters() || m.Part().Waits() != n.Part().Waits() || m.serial != n.serial {
		t.Errorf("got %+v, %+v, want %+v, %+v", m.Face(), m.Counters(), n.Face(), n.Counters())
	}
	st.Face.MTU = 9
	if m.Thaw(&st) == nil {
		t.Error("an MTU that does not exist was restored")
	}
}
