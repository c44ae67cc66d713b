package transport_test

import (
	"bytes"
	"fmt"
	"testing"

	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/testkit/simnet"
)

// world has two connected queue pairs, a and b, each with a megabyte of memory behind one key with all rights.
type world struct {
	*simnet.Net
	t          *testing.T
	a, b       *simnet.Endpoint
	aKey, bKey uint32
}

const memSize = 1 << 20

// pattern is the initial content of a's memory.
var pattern = func() (p [memSize]byte) {
	for i := range p {
		p[i] = byte(i*7 + i>>8)
	}
	return p
}()

type option func(*simnet.Config, *Config, *Attr, *Attr)

func onWire(c *simnet.Config, _ *Config, _, _ *Attr) {
	c.Local, c.Delay, c.Chunk = false, 1000, 1
}

func aAttr(f func(*Attr)) option { return func(_ *simnet.Config, _ *Config, a, _ *Attr) { f(a) } }
func bAttr(f func(*Attr)) option { return func(_ *simnet.Config, _ *Config, _, b *Attr) { f(b) } }
func config(f func(*Config)) option {
	return func(_ *simnet.Config, c *Config, _, _ *Attr) { f(c) }
}

func newWorld(t *testing.T, typ ib.Service, opts ...option) *world {
	return newSizedWorld(t, typ, memSize, opts...)
}

func newSizedWorld(t *testing.T, typ ib.Service, size uint64, opts ...option) *world {
	sc, tc := simnet.Config{Seed: 1, Local: true}, Config{Type: typ}
	aa, ba := simnet.Defaults(), simnet.Defaults()
	for _, o := range opts {
		o(&sc, &tc, &aa, &ba)
	}
	w := &world{Net: simnet.New(sc), t: t}
	tc.Num = 0x11
	w.a = w.Add(simnet.NewNode(int(size)), tc)
	tc.Num = 0x12
	w.b = w.Add(simnet.NewNode(int(size)), tc)
	w.aKey = w.a.Node.Register(simnet.Base, size, simnet.AllAccess)
	w.bKey = w.b.Node.Register(simnet.Base, size, simnet.AllAccess)
	copy(w.a.Node.Mem, pattern[:])
	w.a.SignalAll()
	w.b.SignalAll()
	if typ == ib.UD {
		w.a.AHs = []ib.GID{w.b.GID}
		w.b.AHs = []ib.GID{w.a.GID}
		w.Datagram(w.a, aa)
		w.Datagram(w.b, ba)
	} else {
		w.Connect(w.a, w.b, aa, ba)
	}
	return w
}

// req returns a request for n bytes from the start of a's memory to offset off of b's.
func (w *world) req(op WROp, n, off uint32) SendWQE {
	r := SendWQE{Op: op, RKey: w.bKey, RemoteAddr: simnet.Base + uint64(off), MWLength: 1, RemoteQPN: w.b.Num}
	r.WRID = 1
	r.NumSGE = 1
	r.SGE[0] = SGE{Addr: simnet.Base, Length: n, LKey: w.aKey}
	return r
}

// post posts requests on a, numbered in order.
func (w *world) post(rs ...SendWQE) {
	for i, r := range rs {
		r.WRID = uint64(i + 1)
		w.a.Post(r)
	}
}

// recv posts a receive of n bytes at offset off of b's memory.
func (w *world) recv(id uint64, n, off uint32) {
	r := RecvWQE{WRID: id, NumSGE: 1}
	r.SGE[0] = SGE{Addr: simnet.Base + uint64(off), Length: n, LKey: w.bKey}
	w.b.PostRecv(r)
}

// run advances the time by a minute.
func (w *world) run() {
	w.t.Helper()
	if !w.Run(w.Now+60e9, 1_000_000) {
		w.t.Fatalf("no rest after a minute")
	}
}

// wantSent compares the statuses of a's send completions, in order of posting.
func (w *world) wantSent(want ...Status) {
	w.t.Helper()
	var got []Status
	for i, d := range w.a.Sent {
		if d.WRID != uint64(i+1) {
			w.t.Errorf("completion %d is of request %d", i+1, d.WRID)
		}
		got = append(got, d.Status)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("send completions %v, want %v", got, want)
	}
}

// wantRcvd compares the statuses of b's receive completions.
func (w *world) wantRcvd(want ...Status) {
	w.t.Helper()
	var got []Status
	for _, d := range w.b.Rcvd {
		got = append(got, d.Status)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("receive completions %v, want %v", got, want)
	}
}

func (w *world) wantStates(a, b ib.State) {
	w.t.Helper()
	if w.a.QP.State() != a || w.b.QP.State() != b {
		w.t.Errorf("states %d and %d, want %d and %d", w.a.QP.State(), w.b.QP.State(), a, b)
	}
}

// TestFaults checks invalid requests: the statuses of both sides, the states afterwards, and that nothing was written.
func TestFaults(t *testing.T) {
	noRight := func(drop ib.Access) option { return bAttr(func(a *Attr) { a.Access &^= drop }) }
	cases := []struct {
		name   string
		typ    ib.Service
		opts   []option
		make   func(*world) SendWQE
		sent   Status
		rcvd   Status // status of the posted receive; Success: untouched
		bState ib.State
		event  Event // at b
	}{
		{name: "write, unknown key", make: func(w *world) SendWQE { r := w.req(WRWrite, 8, 0); r.RKey++; return r },
			sent: RemAccessErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventAccessErr},
		{name: "write, one byte past the end, many packets", make: func(w *world) SendWQE { return w.req(WRWrite, 8192, memSize-8191) },
			sent: RemAccessErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventAccessErr},
		{name: "write, address wraps", make: func(w *world) SendWQE { r := w.req(WRWrite, 8192, 0); r.RemoteAddr = 1<<64 - 100; return r },
			sent: RemAccessErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventAccessErr},
		{name: "write, region not writable", make: func(w *world) SendWQE {
			r := w.req(WRWrite, 8, 0)
			r.RKey = w.b.Node.Register(simnet.Base, 4096, ib.AccessRemoteRead)
			return r
		}, sent: RemAccessErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventAccessErr},
		{name: "write, queue pair without the right", opts: []option{noRight(ib.AccessRemoteWrite)},
			make: func(w *world) SendWQE { return w.req(WRWrite, 8, 0) },
			sent: RemInvReqErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventReqErr},
		{name: "read, unknown key", make: func(w *world) SendWQE { r := w.req(WRRead, 8, 0); r.RKey++; return r },
			sent: RemAccessErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventAccessErr},
		{name: "read, queue pair without the right", opts: []option{noRight(ib.AccessRemoteRead)},
			make: func(w *world) SendWQE { return w.req(WRRead, 8, 0) },
			sent: RemInvReqErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventReqErr},
		{name: "read, no responder resources", opts: []option{bAttr(func(a *Attr) { a.MaxDestRDAtomic = 0 })},
			make: func(w *world) SendWQE { return w.req(WRRead, 8, 0) },
			sent: RemInvReqErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventReqErr},
		{name: "read into memory without the right", make: func(w *world) SendWQE {
			r := w.req(WRRead, 8, 0)
			r.SGE[0].LKey = w.a.Node.Register(simnet.Base, 4096, 0)
			return r
		}, sent: LocProtErr, bState: ib.StateRTS},
		{name: "atomic, misaligned", make: func(w *world) SendWQE { return w.req(WRFetchAdd, 8, 4) },
			sent: RemInvReqErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventReqErr},
		{name: "atomic, queue pair without the right", opts: []option{noRight(ib.AccessRemoteAtomic)},
			make: func(w *world) SendWQE { return w.req(WRCmpSwap, 8, 0) },
			sent: RemInvReqErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventReqErr},
		{name: "atomic, bounds", make: func(w *world) SendWQE { return w.req(WRFetchAdd, 8, memSize) },
			sent: RemAccessErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventAccessErr},
		{name: "atomic, short buffer", make: func(w *world) SendWQE { return w.req(WRFetchAdd, 4, 0) }, sent: LocLenErr, bState: ib.StateRTS},
		{name: "flush, queue pair without the right", opts: []option{noRight(ib.AccessFlushGlobal)},
			make: func(w *world) SendWQE { return w.req(WRFlush, 8, 0) },
			sent: RemInvReqErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventReqErr},
		{name: "flush, a kind that the queue pair does not allow", make: func(w *world) SendWQE {
			r := w.req(WRFlush, 8, 0)
			r.Imm = 2 // persistent
			return r
		}, sent: RemInvReqErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventReqErr},
		{name: "flush, bounds", make: func(w *world) SendWQE {
			r := w.req(WRFlush, 8, memSize)
			r.Imm = 1 // global
			return r
		}, sent: RemAccessErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventAccessErr},
		{name: "flush of nothing, key", make: func(w *world) SendWQE {
			r := w.req(WRFlush, 0, 0)
			r.Imm = 1 // global
			r.RKey++
			return r
		}, sent: RemAccessErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventAccessErr},
		{name: "flush of a region, key", make: func(w *world) SendWQE {
			r := w.req(WRFlush, 0, 0)
			r.Imm = 1 | 1<<4 // global, the whole region
			r.RKey++
			return r
		}, sent: RemAccessErr, rcvd: WRFlushErr, bState: ib.StateError, event: EventAccessErr},
		{name: "send, longer than the receive", make: func(w *world) SendWQE { return w.req(WRSend, 4097, 0) },
			sent: RemInvReqErr, rcvd: LocLenErr, bState: ib.StateError},
		{name: "send, key of the receive unknown", make: func(w *world) SendWQE {
			w.b.Node.Deregister(w.bKey)
			return w.req(WRSend, 8, 0)
		}, sent: RemOpErr, rcvd: LocProtErr, bState: ib.StateError},
		{name: "send, own key unknown", make: func(w *world) SendWQE { r := w.req(WRSend, 8, 0); r.SGE[0].LKey++; return r },
			sent: LocProtErr, bState: ib.StateRTS},
		{name: "send and invalidate an unknown key", make: func(w *world) SendWQE { r := w.req(WRSendInv, 8, 0); r.Imm = 1; return r },
			sent: Success, rcvd: RemInvReqErr, bState: ib.StateError},
		{name: "bind refused", make: func(w *world) SendWQE { r := w.req(WRBindMW, 0, 0); r.MWLength = 0; return r },
			sent: MWBindErr, bState: ib.StateRTS},
		{name: "request found malformed", make: func(w *world) SendWQE { r := w.req(WRSend, 8, 0); r.Bad = LocQPOpErr; return r },
			sent: LocQPOpErr, bState: ib.StateRTS},
		{name: "read, depth 0", opts: []option{aAttr(func(a *Attr) { a.MaxRDAtomic = 0 })},
			make: func(w *world) SendWQE { return w.req(WRRead, 8, 0) }, sent: LocQPOpErr, bState: ib.StateRTS},
		{name: "UC has no read", typ: ib.UC, make: func(w *world) SendWQE { return w.req(WRRead, 8, 0) }, sent: LocQPOpErr, bState: ib.StateRTS},
		{name: "UD has no write", typ: ib.UD, make: func(w *world) SendWQE { return w.req(WRWrite, 8, 0) }, sent: LocQPOpErr, bState: ib.StateRTS},
		{name: "UD, unknown address handle", typ: ib.UD, make: func(w *world) SendWQE { r := w.req(WRSend, 8, 0); r.AH = 9; return r },
			sent: LocQPOpErr, bState: ib.StateRTS},
	}
	for _, wire := range []bool{false, true} {
		for _, c := range cases {
			name := c.name
			if wire {
				name += ", packets"
				c.opts = append(c.opts, onWire)
			}
			t.Run(name, func(t *testing.T) {
				if c.typ == 0 {
					c.typ = ib.RC
				}
				w := newWorld(t, c.typ, c.opts...)
				before := bytes.Clone(w.b.Node.Mem)
				w.recv(7, 4096, 0x8000)
				w.post(c.make(w))
				w.run()
				// The queue is in error, or still works.
				w.a.Post(func() SendWQE { r := w.req(WRSend, 8, 0); r.WRID = 2; return r }())
				w.run()
				switch {
				case c.sent == Success:
					w.wantSent(Success, RetryExcErr)
				default:
					w.wantSent(c.sent, WRFlushErr)
				}
				if c.rcvd != Success {
					w.wantRcvd(c.rcvd)
				} else {
					w.wantRcvd()
				}
				want := ib.StateError
				if c.typ != ib.RC {
					want = ib.StateSQE
				}
				w.wantStates(want, c.bState)
				var events []Event
				for _, e := range w.b.Events {
					if e != EventCommEst {
						events = append(events, e)
					}
				}
				if c.event != 0 && fmt.Sprint(events) != fmt.Sprint([]Event{c.event}) || c.event == 0 && len(events) > 0 {
					t.Errorf("events %v, want %d", events, c.event)
				}
				if c.rcvd != RemInvReqErr && c.rcvd != LocLenErr && !bytes.Equal(before, w.b.Node.Mem) {
					t.Errorf("memory was written")
				}
			})
		}
	}
}

// TestFlushRegion flushes a whole region: the request's range is ignored.
func TestFlushRegion(t *testing.T) {
	for _, opts := range [][]option{nil, {onWire}} {
		w := newWorld(t, ib.RC, opts...)
		var all []SendWQE
		for _, n := range []uint32{0, 8, MaxMessage} {
			r := w.req(WRFlush, 0, 0)
			r.RemoteAddr, r.Length = 1<<63, n
			r.Imm = 1 | 1<<4 // global, the whole region
			all = append(all, r)
		}
		w.post(all...)
		w.run()
		w.wantSent(Success, Success, Success)
		w.wantStates(ib.StateRTS, ib.StateRTS)
	}
}

// TestFlushOrder checks that requests after a failure are flushed in order on both queues of both sides, and that earlier ones are not.
func TestFlushOrder(t *testing.T) {
	w := newWorld(t, ib.RC)
	for i := range 3 {
		w.recv(uint64(i), 64, 0)
	}
	bad := w.req(WRWrite, 8, 0)
	bad.RKey = 1
	w.post(w.req(WRRead, 5000, 0), w.req(WRSend, 8, 0), bad, w.req(WRSend, 8, 0), w.req(WRRead, 8, 0))
	w.run()
	w.wantSent(Success, Success, RemAccessErr, WRFlushErr, WRFlushErr)
	w.wantRcvd(Success, WRFlushErr, WRFlushErr)
	w.wantStates(ib.StateError, ib.StateError)
	// Requests posted in the error state are flushed by Flush.
	w.a.Post(SendWQE{WRID: 6, Op: WRSend})
	w.a.QP.Flush(w.Now, w.a.Env())
	w.recv(9, 8, 0)
	w.b.QP.Flush(w.Now, w.b.Env())
	w.wantSent(Success, Success, RemAccessErr, WRFlushErr, WRFlushErr, WRFlushErr)
	w.wantRcvd(Success, WRFlushErr, WRFlushErr, WRFlushErr)
}

// TestLocalFailureWaits checks that a request that cannot be sent fails after the requests before it have completed.
func TestLocalFailureWaits(t *testing.T) {
	for _, opts := range [][]option{nil, {onWire}} {
		w := newWorld(t, ib.RC, opts...)
		bad := w.req(WRSend, 8, 0)
		bad.SGE[0].LKey = 1
		w.post(w.req(WRWrite, 9000, 0), w.req(WRRead, 9000, 0), bad, w.req(WRWrite, 8, 0))
		w.run()
		w.wantSent(Success, Success, LocProtErr, WRFlushErr)
		w.wantStates(ib.StateError, ib.StateRTS)
	}
}

// TestModifyToError flushes both queues.
func TestModifyToError(t *testing.T) {
	w := newWorld(t, ib.RC)
	w.recv(1, 8, 0)
	w.recv(2, 8, 0)
	w.Modify(w.b, ib.StateError)
	w.wantRcvd(WRFlushErr, WRFlushErr)
	w.post(w.req(WRSend, 8, 0), w.req(WRSend, 8, 0))
	w.Modify(w.a, ib.StateError)
	w.wantSent(WRFlushErr, WRFlushErr)
	w.Modify(w.a, ib.StateReset)
	if w.a.QP.State() != ib.StateReset || w.a.QP.Deadline() != 0 {
		t.Errorf("state %d, deadline %d after RESET", w.a.QP.State(), w.a.QP.Deadline())
	}
}

// TestSharedReceives checks that an SRQ keeps its receives and that the event is raised.
func TestSharedReceives(t *testing.T) {
	w := newWorld(t, ib.RC, config(func(c *Config) { c.SRQ = true }))
	w.recv(1, 8, 0)
	w.Modify(w.b, ib.StateError)
	w.wantRcvd()
	if fmt.Sprint(w.b.Events) != fmt.Sprint([]Event{EventLastWQE}) {
		t.Errorf("events %v, want LastWQE", w.b.Events)
	}
}

// TestRetryExceeded checks the attempts and the time of a request to a dead peer.
func TestRetryExceeded(t *testing.T) {
	for _, retries := range []uint8{0, 1, 7} {
		t.Run(fmt.Sprint(retries), func(t *testing.T) {
			w := newWorld(t, ib.RC, aAttr(func(a *Attr) { a.RetryCount = retries }))
			w.b.Down()
			n := 0
			w.Tap = func(*simnet.Endpoint, *Burst) bool { n++; return false }
			w.post(w.req(WRSend, 8, 0), w.req(WRWrite, 8, 0))
			start := w.Now
			var end ib.Time
			w.a.OnSend = func(e *simnet.Endpoint, d simnet.SendDone) {
				e.Sent = append(e.Sent, d)
				end = w.Now
			}
			w.run()
			w.wantSent(RetryExcErr, WRFlushErr)
			if want := ib.Time(retries+1) * AckTimeout(14); end-start != want {
				t.Errorf("failed after %d ns, want %d", end-start, want)
			}
			if want := 2 * (int(retries) + 1); n != want {
				t.Errorf("%d bursts sent, want %d", n, want)
			}
			if c := w.a.QP.Counters(); c.RetryExceeded != 1 || c.Timeouts != uint64(retries)+1 {
				t.Errorf("counters %+v", *c)
			}
		})
	}
}

// TestNoTimeout checks that timeout code 0 waits for ever.
func TestNoTimeout(t *testing.T) {
	w := newWorld(t, ib.RC, aAttr(func(a *Attr) { a.Timeout = 0 }))
	w.b.Down()
	w.post(w.req(WRSend, 8, 0))
	w.run()
	w.wantSent()
	if w.a.QP.Deadline() != 0 {
		t.Errorf("deadline %d, want none", w.a.QP.Deadline())
	}
}

// TestRNR checks retry count, timer and recovery of receiver-not-ready.
func TestRNR(t *testing.T) {
	for _, c := range []struct {
		name     string
		retry    uint8
		timer    uint8
		postAt   ib.Time // when a receive appears; 0 never
		want     Status
		attempts int
	}{
		{"none allowed", 0, 1, 0, RNRRetryExcErr, 1},
		{"two allowed", 2, 1, 0, RNRRetryExcErr, 3},
		{"in time", 2, 16, 5_000_000, Success, 3},
		{"for ever", 7, 0, 3_000_000_000, Success, 6},
	} {
		for _, op := range []WROp{WRSend, WRWriteImm} {
			t.Run(c.name, func(t *testing.T) {
				w := newWorld(t, ib.RC, aAttr(func(a *Attr) { a.RNRRetry = c.retry }), bAttr(func(a *Attr) { a.MinRNRTimer = c.timer }))
				n := 0
				w.Tap = func(from *simnet.Endpoint, b *Burst) bool {
					if from == w.a {
						n++
					} else if b.Kind == KindAck && b.Syndrome != AckUnlimited && b.Syndrome != RNRNak|c.timer {
						t.Errorf("syndrome %#x, want an RNR NAK with timer %d", b.Syndrome, c.timer)
					}
					return false
				}
				w.post(w.req(op, 8, 0))
				if c.postAt != 0 {
					w.Run(w.Now+c.postAt, 1000)
					w.recv(1, 64, 0)
				}
				w.run()
				w.wantSent(c.want)
				if n != c.attempts {
					t.Errorf("%d attempts, want %d", n, c.attempts)
				}
				if c.want == Success {
					w.wantRcvd(Success)
				} else if got := w.a.QP.Counters().RNRExceeded; got != 1 {
					t.Errorf("RNRExceeded %d, want 1", got)
				}
			})
		}
	}
}

// TestRNRDelays compares the timer table with the specification's.
func TestRNRDelays(t *testing.T) {
	want := []float64{
		655.36, .01, .02, .03, .04, .06, .08, .12, .16, .24, .32, .48, .64, .96, 1.28, 1.92, 2.56, 3.84, 5.12, 7.68,
		10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
	}
	for i, ms := range want {
		if got := RNRDelay(uint8(i)); got != ib.Time(ms*1e6+.5) {
			t.Errorf("code %d: %d ns, want %v ms", i, got, ms)
		}
	}
	if AckTimeout(0) != 0 || AckTimeout(14) != 67_108_864 || AckTimeout(31) != 4096<<31 {
		t.Errorf("ACK timeouts %d %d %d", AckTimeout(0), AckTimeout(14), AckTimeout(31))
	}
}

// TestRNRForgivesLosses loses the message between any two RNR NAKs, more often than consecutive losses are allowed. An RNR NAK
// shows that the message arrived, so these losses are not consecutive.
func TestRNRForgivesLosses(t *testing.T) {
	w := newWorld(t, ib.RC, onWire, aAttr(func(a *Attr) { a.RetryCount, a.RNRRetry = 1, 7 }))
	sends := 0
	w.Tap = func(from *simnet.Endpoint, b *Burst) bool {
		if b.Kind != KindSend {
			return false
		}
		sends++
		if sends == 12 {
			w.recv(1, 100, 0)
		}
		return sends%2 == 1
	}
	w.post(w.req(WRSend, 100, 0))
	w.run()
	w.wantSent(Success)
	if c := w.a.QP.Counters(); c.RcvdRNR != 5 || c.Timeouts != 6 {
		t.Errorf("%d RNR NAKs, %d timeouts, want 5 and 6", c.RcvdRNR, c.Timeouts)
	}
}
