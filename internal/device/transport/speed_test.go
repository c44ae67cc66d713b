package transport

import (
	"fmt"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
)

// fastHost is a minimal NIC for two connected queue pairs, so that the benchmark measures the transport.
type fastHost struct {
	q        QP
	peer     *fastHost
	env      Env
	w        SendWQE
	r        RecvWQE
	posted   uint32
	mem      []byte
	acks     [4096]Burst
	nacks    int
	done     int
	received int
	failed   int
	loseEach int // lose every n-th request burst that does not end a message
	sent     int
	late     ib.Time // total time spent waiting for timers
}

func (h *fastHost) FetchSend(pos uint32, w *SendWQE) bool {
	if int32(pos-h.posted) >= 0 {
		return false
	}
	s := &h.w
	w.Pos, w.WRID, w.Op, w.Flags, w.Length, w.NumSGE = pos, s.WRID, s.Op, s.Flags, s.Length, s.NumSGE
	w.RemoteAddr, w.RKey, w.CompareAdd, w.Swap, w.Bad = s.RemoteAddr, s.RKey, s.CompareAdd, s.Swap, s.Bad
	w.RemoteQPN, w.RemoteQKey, w.AH = s.RemoteQPN, s.RemoteQKey, s.AH
	w.SGE[0] = s.SGE[0]
	return true
}
func (h *fastHost) CompleteSend(w *SendWQE, st Status, bytes uint32) {
	h.done++
	if st != Success {
		h.failed++
	}
}
func (h *fastHost) TakeRecv(w *RecvWQE) bool {
	w.WRID, w.Length, w.NumSGE, w.Bad = h.r.WRID, h.r.Length, h.r.NumSGE, h.r.Bad
	w.SGE[0] = h.r.SGE[0]
	return true
}
func (h *fastHost) CompleteRecv(w *RecvWQE, r *RecvResult) { h.received++ }
func (h *fastHost) Gather(w *SendWQE, off, n uint32, s *memory.Span) Status {
	s.Add(h.mem[off : off+n])
	return Success
}
func (h *fastHost) in(off uint64, s *memory.Span) Status {
	for i := range s.Pieces() {
		off += uint64(copy(h.mem[off:], s.Pieces()[i].Mem))
	}
	return Success
}
func (h *fastHost) ScatterSend(w *SendWQE, off uint32, s *memory.Span) Status {
	return h.in(uint64(off), s)
}
func (h *fastHost) ScatterRecv(w *RecvWQE, off uint32, s *memory.Span) Status {
	return h.in(uint64(off), s)
}
func (h *fastHost) CheckRemote(rkey uint32, va uint64, n uint32, a ib.Access) Status { return Success }
func (h *fastHost) CheckKey(rkey uint32, a ib.Access) Status                         { return Success }
func (h *fastHost) WriteRemote(rkey uint32, va uint64, s *memory.Span) Status        { return h.in(va, s) }
func (h *fastHost) ReadRemote(rkey uint32, va uint64, n uint32, s *memory.Span) Status {
	s.Add(h.mem[va : va+uint64(n)])
	return Success
}
func (h *fastHost) Atomic(k Kind, rkey uint32, va, compare, swap uint64) (uint64, Status) {
	return 7, Success
}
func (h *fastHost) InvalidateRemote(rkey uint32) Status { return Success }
func (h *fastHost) LocalOp(w *SendWQE) Status           { return Success }
func (h *fastHost) ResolveAH(ah uint32) (sgid, dgid ib.GID, ok bool) {
	return ib.GID{}, ib.GID{}, true
}
func (h *fastHost) GRH(b *Burst, out *[40]byte) {}
func (h *fastHost) Event(e Event)               {}
func (h *fastHost) Send(b *Burst) {
	if b.Kind == KindAck || b.Kind == KindAtomicResp {
		h.peer.acks[h.peer.nacks] = *b
		h.peer.nacks++
		return
	}
	if h.loseEach != 0 && !b.Last {
		if h.sent++; h.sent%h.loseEach == 0 {
			return
		}
	}
	h.peer.q.Receive(1+h.late, b, &h.peer.env)
}

// newFastPair connects two queue pairs.
func newFastPair(t ib.Service) (a, b *fastHost) {
	sc := new(Scratch)
	a, b = &fastHost{mem: make([]byte, 1<<20)}, &fastHost{mem: make([]byte, 1<<20)}
	a.peer, b.peer = b, a
	for i, h := range []*fastHost{a, b} {
		h.env = NewEnv(h, h, sc)
		h.r = RecvWQE{Length: 1 << 20, NumSGE: 1}
		h.q.Init(Config{Type: t, Num: uint32(100 + i)})
		at := Attr{
			State: ib.StateRTS, MTU: 4096, DestQPN: uint32(101 - i), PKey: 0xffff, MaxRDAtomic: 16, MaxDestRDAtomic: 16, Timeout: 14, RetryCount: 7,
			Access: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic,
		}
		h.q.Modify(&at, ib.MaskState|ib.MaskAccess|ib.MaskPKey|ib.MaskAV|ib.MaskMTU|ib.MaskDestQPN|ib.MaskRQPSN|ib.MaskSQPSN|ib.MaskMaxRDAtomic|
			ib.MaskMaxDestRDAtomic|ib.MaskTimeout|ib.MaskRetryCount, 1, &h.env)
	}
	return a, b
}

// turn posts n copies of h's request and drives both sides until they complete.
func (h *fastHost) turn(n uint32) {
	h.posted += n
	for range 100000 {
		now := 1 + h.late
		more := h.q.Run(now, 1<<20, &h.env)
		for h.peer.q.RespondPending() {
			h.peer.q.Respond(now, 1<<20, &h.peer.env)
		}
		for i := range h.nacks {
			h.q.Receive(now, &h.acks[i], &h.env)
		}
		h.nacks = 0
		if more || h.q.RunPending() {
			continue
		}
		d := h.q.Deadline()
		if d == 0 {
			return
		}
		h.late = d
		h.q.Expire(1+h.late, &h.env)
	}
	panic("no end")
}

var fastCases = []struct {
	name string
	t    ib.Service
	w    SendWQE
}{
	{"RC/send8", ib.RC, SendWQE{Op: WRSend, Length: 8, NumSGE: 1}},
	{"RC/write8", ib.RC, SendWQE{Op: WRWrite, Length: 8, NumSGE: 1}},
	{"RC/read8", ib.RC, SendWQE{Op: WRRead, Length: 8, NumSGE: 1}},
	{"RC/fetchadd", ib.RC, SendWQE{Op: WRFetchAdd, Length: 8, NumSGE: 1}},
	{"RC/write64K", ib.RC, SendWQE{Op: WRWrite, Length: 64 << 10, NumSGE: 1}},
	{"UC/send8", ib.UC, SendWQE{Op: WRSend, Length: 8, NumSGE: 1}},
	{"UD/send8", ib.UD, SendWQE{Op: WRSend, Length: 8, NumSGE: 1}},
}

// TestNoAllocation checks that the data path allocates nothing, on every kind of path.
func TestNoAllocation(t *testing.T) {
	for _, p := range []Path{{}, {Remote: true}, {Remote: true, Own: true}, {Remote: true, Own: true, MaxBurst: 4096}} {
		testNoAllocation(t, p)
	}
}

func testNoAllocation(t *testing.T, p Path) {
	for _, c := range fastCases {
		if p.Remote && c.t != ib.RC {
			continue // paced, and there is no clock here
		}
		t.Run(fmt.Sprintf("%s/%+v", c.name, p), func(t *testing.T) {
			a, b := newFastPair(c.t)
			a.q.SetPath(p)
			b.q.SetPath(p)
			if p.MaxBurst != 0 {
				a.loseEach = 7
			}
			a.w = c.w
			a.turn(1000)
			if n := testing.AllocsPerRun(100, func() { a.turn(10) }); n != 0 {
				t.Errorf("%v allocations for 10 messages, want none", n)
			}
			if want := 1000 + 101*10; a.done != want || a.failed != 0 {
				t.Errorf("%d requests completed, %d failed, want %d and 0", a.done, a.failed, want)
			}
			if c.w.Op == WRSend && b.received != a.done {
				t.Errorf("%d received, want %d", b.received, a.done)
			}
			if n := b.q.common.Count.Stashed; (n > 0) != (a.loseEach > 0 && c.w.Length > 4096) {
				t.Errorf("%d packets stashed", n)
			}
		})
	}
}

// BenchmarkMessage measures one message through both queue pairs, 32 at a time.
func BenchmarkMessage(b *testing.B) {
	for _, c := range fastCases {
		b.Run(c.name, func(b *testing.B) {
			x, _ := newFastPair(c.t)
			x.w = c.w
			b.SetBytes(int64(c.w.Length))
			for i := 0; i < b.N; i += 32 {
				x.turn(32)
			}
		})
	}
}

// BenchmarkRemote is BenchmarkMessage on a path between vrdma hosts.
func BenchmarkRemote(b *testing.B) {
	for _, c := range fastCases {
		if c.t != ib.RC {
			continue
		}
		b.Run(c.name, func(b *testing.B) {
			x, y := newFastPair(c.t)
			x.q.SetPath(Path{Remote: true, Own: true})
			y.q.SetPath(Path{Remote: true, Own: true})
			x.w = c.w
			b.SetBytes(int64(c.w.Length))
			for i := 0; i < b.N; i += 32 {
				x.turn(32)
			}
		})
	}
}
