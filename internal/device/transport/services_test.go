package transport_test

import (
	"bytes"
	"fmt"
	"testing"

	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/testkit/simnet"
)

// TestUC checks which UC messages are lost when single packets are lost.
func TestUC(t *testing.T) {
	for _, c := range []struct {
		name string
		lose []int // packets of 0…8: three messages of three packets
		want []uint64
		drop uint64
	}{
		{"nothing lost", nil, []uint64{0, 1, 2}, 0},
		{"first", []int{3}, []uint64{0, 2}, 2},
		{"middle", []int{4}, []uint64{0, 2}, 1},
		{"last", []int{5}, []uint64{0, 2}, 0},
		{"last and first", []int{2, 3}, []uint64{2}, 2},
		{"a whole message", []int{3, 4, 5}, []uint64{0, 2}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, ib.UC, onWire, config(func(c *Config) { c.MaxBurst = 1024 }))
			for i := range 3 {
				w.recv(uint64(i), 4096, uint32(i)*4096)
			}
			n := -1
			w.Tap = func(*simnet.Endpoint, *Burst) bool {
				n++
				for _, l := range c.lose {
					if l == n {
						return true
					}
				}
				return false
			}
			var rs []SendWQE
			for i := range 3 {
				r := w.req(WRSendImm, 3000, 0)
				r.Imm = uint32(i)
				rs = append(rs, r)
			}
			w.post(rs...)
			w.run()
			w.wantSent(Success, Success, Success)
			var got []uint64
			for i, d := range w.b.Rcvd {
				// The next message uses the receive that a lost message had taken.
				if d.WRID != uint64(i) || d.Status != Success || d.ByteLen != 3000 {
					t.Errorf("receive %+v", d)
				}
				if !bytes.Equal(w.b.Node.Mem[d.WRID*4096:][:3000], w.a.Node.Mem[:3000]) {
					t.Errorf("receive %d: wrong data", d.WRID)
				}
				got = append(got, uint64(d.Imm))
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("received %v, want %v", got, c.want)
			}
			if d := w.b.QP.Counters().Dropped; d != c.drop {
				t.Errorf("%d dropped, want %d", d, c.drop)
			}
			w.wantStates(ib.StateRTS, ib.StateRTS)
		})
	}
}

// TestUCSilence checks that UC drops what RC would refuse, and continues.
func TestUCSilence(t *testing.T) {
	cases := map[string]func(*world) SendWQE{
		"no receive":      func(w *world) SendWQE { return w.req(WRSend, 8, 0) },
		"unknown key":     func(w *world) SendWQE { r := w.req(WRWrite, 3000, 0); r.RKey++; return r },
		"out of bounds":   func(w *world) SendWQE { return w.req(WRWrite, 3000, memSize-2999) },
		"immediate, none": func(w *world) SendWQE { return w.req(WRWriteImm, 8, 0) },
	}
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ib.UC, onWire)
			before := bytes.Clone(w.b.Node.Mem)
			w.post(f(w))
			w.run()
			w.wantSent(Success)
			w.wantStates(ib.StateRTS, ib.StateRTS)
			if !bytes.Equal(before, w.b.Node.Mem) {
				t.Errorf("memory was written")
			}
			w.recv(1, 100, 0)
			w.a.Post(w.req(WRSend, 200, 0)) // too long: the receive stays
			w.a.Post(w.req(WRSend, 100, 0))
			w.run()
			w.wantRcvd(Success)
		})
	}
}

// TestUD checks datagrams: header, keys, and which are dropped.
func TestUD(t *testing.T) {
	qkey := func(k uint32) option {
		f := func(a *Attr) { a.QKey = k }
		return func(_ *simnet.Config, _ *Config, a, b *Attr) { f(a); f(b) }
	}
	for _, c := range []struct {
		name string
		opts []option
		n    uint32
		qkey uint32
		recv uint32 // 0: none posted
		want uint32 // bytes received, 0: dropped
	}{
		{"empty", nil, 0, 0x1234, 40, 40},
		{"fits", nil, 100, 0x1234, 140, 140},
		{"MTU", nil, 4096, 0x1234, 5000, 4136},
		{"longer than the MTU is not sent", nil, 4097, 0x1234, 5000, 0},
		{"wrong Q_Key", nil, 8, 0x1235, 100, 0},
		{"controlled Q_Key is the sender's own", nil, 8, 0x80001235, 100, 48},
		{"receive too short", nil, 100, 0x1234, 139, 0},
		{"no receive", nil, 8, 0x1234, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, ib.UD, append(c.opts, qkey(0x1234))...)
			if c.recv > 0 {
				w.recv(3, c.recv, 0)
			}
			r := w.req(WRSendImm, c.n, 0)
			r.RemoteQKey, r.Imm = c.qkey, 77
			w.post(r)
			w.run()
			w.wantSent(Success)
			w.wantStates(ib.StateRTS, ib.StateRTS)
			if c.want == 0 {
				w.wantRcvd()
				return
			}
			if len(w.b.Rcvd) != 1 {
				t.Fatalf("received %v, want one message", w.b.Rcvd)
			}
			d := w.b.Rcvd[0]
			if d.WRID != 3 || d.Status != Success || d.ByteLen != c.want || !d.HasGRH || d.SrcQP != w.a.Num || !d.HasImm || d.Imm != 77 {
				t.Errorf("received %+v", d)
			}
			if !bytes.Equal(w.b.Node.Mem[8:24], w.a.GID[:]) || !bytes.Equal(w.b.Node.Mem[40:c.want], w.a.Node.Mem[:c.n]) {
				t.Errorf("wrong header or data")
			}
		})
	}
}

// TestMulticast checks that every member of a group gets the message.
func TestMulticast(t *testing.T) {
	w := newWorld(t, ib.UD)
	g := ib.GID{0: 0xff, 15: 9}
	c := w.Add(w.b.Node, Config{Type: ib.UD, Num: 0x13})
	w.Datagram(c, simnet.Defaults())
	c.ShareRecvs(w.b)
	w.Join(g, w.b)
	w.Join(g, c)
	w.a.AHs = []ib.GID{g}
	w.recv(1, 100, 0)
	w.recv(2, 100, 256)
	r := w.req(WRSend, 8, 0)
	r.RemoteQPN = 0xffffff
	w.post(r)
	w.run()
	if len(w.b.Rcvd) != 1 || len(c.Rcvd) != 1 {
		t.Errorf("received %v and %v, want one each", w.b.Rcvd, c.Rcvd)
	}
}

// TestSendQueueError checks that a failed UD send stops only the send queue, and that Modify starts it again.
func TestSendQueueError(t *testing.T) {
	w := newWorld(t, ib.UD)
	bad := w.req(WRSend, 8, 0)
	bad.SGE[0].LKey = 1
	w.post(w.req(WRSend, 8, 0), bad, w.req(WRSend, 8, 0))
	w.run()
	w.wantSent(Success, LocProtErr, WRFlushErr)
	w.wantStates(ib.StateSQE, ib.StateRTS)
	// It still receives.
	ra := RecvWQE{NumSGE: 1}
	ra.SGE[0] = SGE{Addr: simnet.Base, Length: 100, LKey: w.aKey}
	w.a.PostRecv(ra)
	rb := w.req(WRSend, 8, 0)
	rb.RemoteQPN, rb.SGE[0].LKey = w.a.Num, w.bKey
	w.b.Post(rb)
	w.run()
	if len(w.a.Rcvd) != 1 {
		t.Errorf("received %v in SQE, want one message", w.a.Rcvd)
	}
	w.Modify(w.a, ib.StateRTS)
	w.recv(1, 100, 0)
	r := w.req(WRSend, 8, 0)
	r.WRID = 4
	w.a.Post(r)
	w.run()
	w.wantSent(Success, LocProtErr, WRFlushErr, Success)
	w.wantRcvd(Success)
}

// TestDrain checks SQD: started requests complete, others wait for RTS, and the event comes if requested when the queue is drained.
func TestDrain(t *testing.T) {
	for _, notify := range []bool{false, true} {
		w := newWorld(t, ib.RC, onWire, config(func(c *Config) { c.Window, c.MaxBurst = 4, 1024 }))
		w.post(w.req(WRWrite, 10000, 0), w.req(WRWrite, 8, 0))
		w.Run(w.Now+500, 10)
		w.a.QP.Modify(&Attr{State: ib.StateSQD, SQDAsyncNotify: notify}, ib.MaskState|ib.MaskSQDAsyncNotify, w.Now, w.a.Env())
		if s := w.a.QP.Snapshot(); !s.SQDraining {
			t.Errorf("not draining with %d packets in flight", s.Outstanding)
		}
		if len(w.a.Events) != 0 {
			t.Errorf("drained before the message ended")
		}
		w.run()
		w.wantSent(Success)
		want := []Event(nil)
		if notify {
			want = []Event{EventSQDrained}
		}
		if fmt.Sprint(w.a.Events) != fmt.Sprint(want) {
			t.Errorf("events %v, want %v", w.a.Events, want)
		}
		if s := w.a.QP.Snapshot(); s.SQDraining {
			t.Errorf("still draining")
		}
		w.Modify(w.a, ib.StateRTS)
		w.run()
		w.wantSent(Success, Success)
	}
}

// TestDepth checks that the initiator depth is respected, and that a fence waits.
func TestDepth(t *testing.T) {
	w := newWorld(t, ib.RC, onWire, aAttr(func(a *Attr) { a.MaxRDAtomic = 2 }))
	out, most := 0, 0
	w.Tap = func(from *simnet.Endpoint, b *Burst) bool {
		switch b.Kind {
		case KindReadReq, KindFetchAdd:
			out++
			most = max(most, out)
		case KindWrite:
			if out != 0 {
				t.Errorf("fenced write with %d READs outstanding", out)
			}
		case KindAtomicResp:
			out--
		case KindReadResp:
			if b.Last {
				out--
			}
		}
		return false
	}
	r, f, wr := w.req(WRRead, 3000, 0), w.req(WRFetchAdd, 8, 0), w.req(WRWrite, 8, 0)
	wr.Flags = FlagFence
	w.post(r, f, r, f, r, wr, r, r, r)
	w.run()
	w.wantSent(Success, Success, Success, Success, Success, Success, Success, Success, Success)
	if most != 2 {
		t.Errorf("at most %d READs and atomics at once, want 2", most)
	}
}

// TestLocalOperations checks that LOCAL_INV runs once, after everything before it.
func TestLocalOperations(t *testing.T) {
	w := newWorld(t, ib.RC, onWire)
	inv := w.req(WRLocalInv, 0, 0)
	lost := false
	w.Tap = func(from *simnet.Endpoint, b *Burst) bool {
		if from == w.a && len(w.a.LocalOps) > 1 && w.a.LocalOps[1] == 4 && b.PSN < 3 {
			t.Errorf("LOCAL_INV before the end of PSN %d", b.PSN)
		}
		if b.Kind == KindAck && !lost {
			lost = true
			return true
		}
		return false
	}
	w.post(w.req(WRWrite, 3000, 0), w.req(WRBindMW, 0, 0), w.req(WRRead, 8, 0), inv, w.req(WRWrite, 8, 0))
	w.run()
	w.wantSent(Success, Success, Success, Success, Success)
	if fmt.Sprint(w.a.LocalOps) != "[2 4]" {
		t.Errorf("local operations %v, want 2 and 4, once each", w.a.LocalOps)
	}
}

// TestSelf connects a queue pair to itself.
func TestSelf(t *testing.T) {
	w := newWorld(t, ib.RC)
	e := w.a
	w.Connect(e, e, simnet.Defaults(), simnet.Defaults())
	r := RecvWQE{NumSGE: 1}
	r.SGE[0] = SGE{Addr: simnet.Base + 0x8000, Length: 5000, LKey: w.aKey}
	e.PostRecv(r)
	req := func(op WROp, n uint32) SendWQE {
		r := w.req(op, n, 0x4000)
		r.RKey = w.aKey
		return r
	}
	w.post(req(WRSend, 5000), req(WRWrite, 3000), req(WRRead, 3000), req(WRFetchAdd, 8))
	w.run()
	w.wantSent(Success, Success, Success, Success)
	// The atomic's answer went into the first eight bytes of the source.
	if !bytes.Equal(e.Node.Mem[0x8008:][:4992], e.Node.Mem[8:5000]) {
		t.Errorf("wrong data")
	}
	// The answer to a bad request finds the queue pair in the error state that the request caused.
	bad := req(WRWrite, 8)
	bad.RKey, bad.WRID = 1, 5
	e.Post(bad)
	w.run()
	w.wantSent(Success, Success, Success, Success, WRFlushErr)
}

// TestImmediates checks the flags of receives: immediate, invalidation, solicited.
func TestImmediates(t *testing.T) {
	w := newWorld(t, ib.RC)
	for i := range 4 {
		w.recv(uint64(i), 64, 0)
	}
	key := w.b.Node.Register(simnet.Base, 64, simnet.AllAccess)
	imm, inv, wimm, plain := w.req(WRSendImm, 8, 0), w.req(WRSendInv, 8, 0), w.req(WRWriteImm, 3000, 64), w.req(WRSend, 0, 0)
	imm.Imm, inv.Imm, wimm.Imm = 5, key, 6
	imm.Flags, wimm.Flags = FlagSolicited, FlagSolicited
	w.post(imm, inv, wimm, plain)
	w.run()
	want := []RecvResult{
		{ByteLen: 8, HasImm: true, Imm: 5, Solicited: true},
		{ByteLen: 8, HasInv: true, Imm: key},
		{Op: RecvWriteImm, ByteLen: 3000, HasImm: true, Imm: 6, Solicited: true},
		{},
	}
	for i, d := range w.b.Rcvd {
		if d.RecvResult != want[i] {
			t.Errorf("receive %d: %+v, want %+v", i, d.RecvResult, want[i])
		}
	}
	if len(w.b.Rcvd) != 4 || fmt.Sprint(w.b.Invalidated) != fmt.Sprint([]uint32{key}) {
		t.Errorf("%d receives, invalidated %v", len(w.b.Rcvd), w.b.Invalidated)
	}
}

// TestDrainWhileBlocked enters SQD while the next request is fetched but blocked: it must not be sent before RTS.
func TestDrainWhileBlocked(t *testing.T) {
	w := newWorld(t, ib.RC, onWire)
	fenced := w.req(WRWrite, 8, 0)
	fenced.Flags = FlagFence
	w.post(w.req(WRRead, 3000, 0), fenced)
	w.Run(w.Now+500, 10)
	w.a.QP.Modify(&Attr{State: ib.StateSQD, SQDAsyncNotify: true}, ib.MaskState|ib.MaskSQDAsyncNotify, w.Now, w.a.Env())
	w.run()
	w.wantSent(Success)
	if s := w.a.QP.Snapshot(); s.SQDraining || fmt.Sprint(w.a.Events) != fmt.Sprint([]Event{EventSQDrained}) {
		t.Errorf("draining %v, events %v", s.SQDraining, w.a.Events)
	}
	w.Modify(w.a, ib.StateRTS)
	w.run()
	w.wantSent(Success, Success)
}

// TestReadyTooEarly announces a receive that another queue pair takes first: the shorter wait must not use up retries.
func TestReadyTooEarly(t *testing.T) {
	w := newWorld(t, ib.RC, aAttr(func(a *Attr) { a.RNRRetry = 1 }), bAttr(func(a *Attr) { a.MinRNRTimer = 16 }))
	w.post(w.req(WRSend, 8, 0))
	w.Run(w.Now, 100)
	for range 10 {
		if !w.a.QP.WaitsForReceiver() {
			t.Fatalf("does not wait: state %d, completions %v", w.a.QP.State(), w.a.Sent)
		}
		w.a.QP.ReceiverReady()
		w.Run(w.Now, 100)
	}
	w.recv(1, 8, 0)
	w.run()
	w.wantSent(Success)
}

// TestModifyWhileDrained sets attributes in SQD, as a program does after waiting for it: the event does not come again, and
// pending responses are still sent.
func TestModifyWhileDrained(t *testing.T) {
	w := newWorld(t, ib.RC, onWire)
	w.post(w.req(WRRead, 5000, 0))
	for range 100 {
		if w.b.QP.RespondPending() || !w.Step(w.Now+5000) {
			break
		}
	}
	n := simnet.Defaults().MaxDestRDAtomic
	a := Attr{State: ib.StateSQD, SQDAsyncNotify: true, MaxDestRDAtomic: n}
	w.b.QP.Modify(&a, ib.MaskState|ib.MaskSQDAsyncNotify, w.Now, w.b.Env())
	if !w.b.QP.RespondPending() {
		t.Fatalf("no response is owed")
	}
	w.b.QP.Modify(&a, ib.MaskState|ib.MaskMaxDestRDAtomic, w.Now, w.b.Env())
	w.run()
	w.wantSent(Success)
	if c := w.a.QP.Counters(); c.Timeouts != 0 {
		t.Errorf("%d timeouts", c.Timeouts)
	}
	if fmt.Sprint(w.b.Events) != fmt.Sprint([]Event{EventSQDrained}) {
		t.Errorf("events %v, want one", w.b.Events)
	}
}
