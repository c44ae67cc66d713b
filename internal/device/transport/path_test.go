package transport_test

import (
	"bytes"
	"fmt"
	"testing"

	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/testkit/simnet"
)

var (
	ownPath   = Path{Remote: true, Own: true}
	otherPath = Path{Remote: true}
)

// remote puts w's queue pairs on different hosts.
func (w *world) remote(p Path) *world {
	w.a.QP.SetPath(p)
	w.b.QP.SetPath(p)
	return w
}

// loseOnce loses the first packet for which cond is true.
func (w *world) loseOnce(cond func(*Burst) bool) {
	lost := false
	w.Lose = func(b *Burst) bool {
		if lost || !cond(b) {
			return false
		}
		lost = true
		return true
	}
}

// TestProbe loses the last packet, or its answer, when nothing follows. The requester must detect it long before the timeout of
// 67 ms, without using a retry.
func TestProbe(t *testing.T) {
	for name, p := range map[string]Path{"own": ownPath, "other": otherPath} {
		for what, c := range map[string]struct {
			lose  func(*Burst) bool
			op    WROp
			again uint64 // packets
		}{
			"last packet": {func(b *Burst) bool { return b.Kind == KindWrite && b.Last }, WRWrite, 1},
			"only packet": {func(b *Burst) bool { return b.Kind == KindFetchAdd }, WRFetchAdd, 1},
			"ACK":         {func(b *Burst) bool { return b.Kind == KindAck }, WRWrite, 1},
			"response":    {func(b *Burst) bool { return b.Kind == KindReadResp && b.Last }, WRRead, 1},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				w := newWorld(t, ib.RC, onWire).remote(p)
				w.loseOnce(c.lose)
				n := uint32(5000)
				if c.op == WRFetchAdd {
					n = 8
				}
				w.post(w.req(c.op, n, 0))
				w.Run(w.Now+20_000_000, 10_000)
				w.wantSent(Success)
				got := w.a.QP.Counters()
				if got.Probes != 1 || got.Timeouts != 0 || got.Retransmitted < c.again || got.Retransmitted > c.again+1 || w.a.QP.Snapshot().RetriesLeft != 7 {
					t.Errorf("%d probes, %d timeouts, %d packets again, %d retries left; want 1, 0, %d, 7",
						got.Probes, got.Timeouts, got.Retransmitted, w.a.QP.Snapshot().RetriesLeft, c.again)
				}
			})
		}
	}
}

// TestProbesEnd checks that probes are few, and do not delay the end of a connection to a dead peer.
func TestProbesEnd(t *testing.T) {
	for name, p := range map[string]Path{"own": ownPath, "other": otherPath} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ib.RC, onWire).remote(p)
			w.b.Down()
			w.post(w.req(WRWrite, 100_000, 0))
			from := w.Now
			w.run()
			w.wantSent(RetryExcErr)
			c := w.a.QP.Counters()
			if took, want := w.a.QP.Snapshot(), AckTimeout(14)*8; c.Timeouts != 8 || w.Now-from < want {
				t.Errorf("ended after %d timeouts, want 8: %+v", c.Timeouts, took)
			}
			if c.Probes == 0 || c.Probes > 60 || c.SentPackets > 1000 {
				t.Errorf("%d probes, %d packets to nobody", c.Probes, c.SentPackets)
			}
		})
	}
}

// TestBusyPeer checks a peer that is silent for a second because its processors are busy. perftest's timeout of 67 ms would have
// used up all retries after half of that.
func TestBusyPeer(t *testing.T) {
	for name, p := range map[string]Path{"own": ownPath, "other": otherPath} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ib.RC, onWire).remote(p)
			until := w.Now + 1_000_000_000
			w.Lose = func(*Burst) bool { return w.Now < until }
			w.post(w.req(WRWrite, 100_000, 0), w.req(WRWrite, 100_000, 0))
			w.run()
			w.wantSent(Success, Success)
		})
	}
}

// TestTimeoutsEnd checks how long it takes to give up a dead peer. A timeout is between one and four times its nominal value; a
// long one is not extended.
func TestTimeoutsEnd(t *testing.T) {
	for _, c := range []struct {
		code, retries uint8
		path          Path
		want          ib.Time // in timeouts
	}{
		{14, 7, ownPath, 1 + 2 + 6*4}, {14, 7, otherPath, 1 + 2 + 6*4}, {14, 7, Path{}, 8}, {8, 7, ownPath, 1 + 2 + 6*4}, {14, 1, ownPath, 1 + 2}, {14, 0, ownPath, 1},
		{15, 7, ownPath, 1 + 7*2}, {16, 7, ownPath, 8}, {20, 7, ownPath, 8},
	} {
		w := newWorld(t, ib.RC, onWire, aAttr(func(a *Attr) { a.Timeout, a.RetryCount = c.code, c.retries }))
		if c.path.Remote {
			w.remote(c.path)
		}
		w.b.Down()
		w.post(w.req(WRWrite, 1000, 0))
		from, d := w.Now, AckTimeout(c.code)
		w.Run(from+c.want*d-1, 10_000)
		early := len(w.a.Sent)
		w.Run(from+c.want*d+d/2, 10_000)
		if early != 0 || len(w.a.Sent) != 1 || w.a.Sent[0].Status != RetryExcErr {
			t.Errorf("timeout %d, %d retries, %+v: %d completions before %d timeouts and %+v after, want 0 and one error", c.code, c.retries, c.path, early, c.want, w.a.Sent)
		}
	}
}

// TestRepair loses several packets of a long message. vrdma hosts resend only those; for other hosts the requester goes back.
func TestRepair(t *testing.T) {
	for _, c := range []struct {
		name string
		path Path
		lose []uint32
		want uint64
	}{
		{"one", ownPath, []uint32{5}, 1},
		{"first", ownPath, []uint32{0}, 1},
		{"two", ownPath, []uint32{5, 30}, 2},
		{"a run", ownPath, []uint32{5, 6, 7}, 3},
		{"many", ownPath, []uint32{1, 3, 5, 7, 9, 20, 40, 41}, 8},
		{"other", otherPath, []uint32{5}, 30},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, ib.RC, onWire, aAttr(func(a *Attr) { a.SQPSN = 1<<24 - 10 })).remote(c.path)
			lost := map[uint32]bool{}
			for _, i := range c.lose {
				lost[(1<<24-10+i)&0xffffff] = true
			}
			w.Lose = func(b *Burst) bool {
				gone := b.Kind == KindWrite && lost[b.PSN]
				if gone {
					delete(lost, b.PSN)
				}
				return gone
			}
			w.post(w.req(WRWrite, 60<<10, 0), w.req(WRWrite, 60<<10, 100_000))
			w.Run(w.Now+10_000_000, 100_000)
			w.wantSent(Success, Success)
			got := w.a.QP.Counters()
			if c.path.Own && (got.Retransmitted != c.want || got.Retries != 0 || got.Timeouts != 0) || !c.path.Own && got.Retransmitted < c.want {
				t.Errorf("%d packets sent again, went back %d times, %d timeouts; want %d packets", got.Retransmitted, got.Retries, got.Timeouts, c.want)
			}
			if !bytes.Equal(w.b.Node.Mem[:60<<10], w.a.Node.Mem[:60<<10]) || !bytes.Equal(w.b.Node.Mem[100_000:][:60<<10], w.a.Node.Mem[:60<<10]) {
				t.Errorf("wrong data")
			}
		})
	}
}

// TestPieces checks a long READ on a remote path: it is requested in pieces, in order, within the depth and the window, and in
// the same pieces again.
func TestPieces(t *testing.T) {
	for _, depth := range []uint8{1, 2, 16} {
		for _, lossy := range []bool{false, true} {
			t.Run(fmt.Sprintf("depth %d lossy %v", depth, lossy), func(t *testing.T) {
				deep := func(a *Attr) { a.MaxRDAtomic, a.MaxDestRDAtomic = depth, depth }
				w := newWorld(t, ib.RC, onWire, aAttr(deep), bAttr(deep)).remote(Path{Remote: true, Window: 64 << 10})
				copy(w.b.Node.Mem, pattern[:])
				if lossy {
					w.Drop = 0.02
				}
				ends := map[uint32]uint64{}
				w.Tap = func(from *simnet.Endpoint, b *Burst) bool {
					if b.Kind != KindReadReq {
						return false
					}
					if s := w.a.QP.Snapshot(); s.RDOut > uint32(depth) || (b.PSN-s.OldestPSN)&0xffffff > 64 {
						t.Errorf("%d READs outstanding, PSN %d, oldest %d", s.RDOut, b.PSN, s.OldestPSN)
					}
					end := b.VA + uint64(b.Length)
					if old, ok := ends[b.PSN]; ok && old != end {
						t.Errorf("PSN %d asked for up to %#x, then up to %#x", b.PSN, old, end)
					}
					ends[b.PSN] = end
					return false
				}
				r := w.req(WRRead, 500_000, 0)
				r.SGE[0].Addr += 500_000
				w.post(r, w.req(WRWrite, 100, 600_000))
				w.run()
				w.wantSent(Success, Success)
				if !bytes.Equal(w.a.Node.Mem[500_000:1_000_000], pattern[:500_000]) {
					t.Errorf("wrong data")
				}
				if len(ends) < 500_000/(64<<10) {
					t.Errorf("%d pieces", len(ends))
				}
			})
		}
	}
}

// marked returns a burst of s with the Congestion Experienced mark.
func (s *script) marked(k Kind, psn uint32) Burst {
	b := s.burst(k, psn, 1, 8)
	b.CE = true
	return b
}

// TestNotify checks when marked packets are answered with a CNP: on remote paths, at a limited rate.
func TestNotify(t *testing.T) {
	for _, typ := range []ib.Service{ib.RC, ib.UC, ib.UD} {
		s := newScript(t, typ)
		count := func() (n int) {
			for _, a := range s.answers {
				if a.Kind == KindCNP {
					if a.Dst != s.a.Num || a.DGID != s.a.GID || a.Src != s.b.Num || a.Packets != 1 {
						t.Errorf("CNP %+v", a)
					}
					n++
				}
			}
			return n
		}
		s.give(s.marked(KindSend, 0))
		if n := count(); n != 0 {
			t.Errorf("type %d: %d CNPs within a host", typ, n)
		}
		s.remote(otherPath)
		total := 0
		for i := range uint32(100) {
			s.give(s.marked(KindSend, 1+i))
			total += count()
			s.Now += 1000
		}
		if total != 2 {
			t.Errorf("type %d: %d CNPs in 100 us, want 2", typ, total)
		}
	}
}

// TestCongested checks that only a CNP of the peer reduces the window, and that the window recovers.
func TestCongested(t *testing.T) {
	w := newWorld(t, ib.RC, onWire).remote(Path{Remote: true, Own: true, Window: 64 << 10})
	before := w.a.QP.Snapshot().Window
	w.a.QP.Congested(w.Now, w.a.GID)
	if got := w.a.QP.Snapshot().Window; got != before {
		t.Errorf("a stranger's CNP: window %d, was %d", got, before)
	}
	cnp := Burst{Type: ib.RC, Kind: KindCNP, Src: w.b.Num, Dst: w.a.Num, SGID: w.b.GID, DGID: w.a.GID, PKey: 0xffff, Packets: 1}
	w.a.QP.Receive(w.Now, &cnp, w.a.Env())
	cut := w.a.QP.Snapshot().Window
	if cut != before*3/4 {
		t.Errorf("window %d after a CNP, was %d", cut, before)
	}
	w.a.QP.Receive(w.Now, &cnp, w.a.Env())
	if got := w.a.QP.Snapshot().Window; got != cut {
		t.Errorf("window %d after a second CNP in the same round trip, was %d", got, cut)
	}
	for range 400 {
		w.post(w.req(WRWrite, 100_000, 0))
		w.run()
	}
	if got := w.a.QP.Snapshot().Window; got != before {
		t.Errorf("window %d long after, want %d", got, before)
	}
	// Within a host there is no congestion control.
	w = newWorld(t, ib.RC)
	w.a.QP.Congested(w.Now, w.b.GID)
	if n := w.a.QP.Counters().Dropped; n != 1 {
		t.Errorf("a CNP within a host: %d dropped, want 1", n)
	}
}

// TestPaced checks that unacknowledged traffic keeps to a rate, which CNPs reduce.
func TestPaced(t *testing.T) {
	for _, typ := range []ib.Service{ib.UC, ib.UD} {
		w := newWorld(t, typ, onWire).remote(otherPath)
		n := uint32(60_000)
		if typ == ib.UD {
			n = 1000
		}
		took := func() ib.Time {
			from := w.Now
			for range 2000 {
				w.a.Post(w.req(WRSend, n, 0))
			}
			for len(w.a.Sent) < 2000 && w.Step(from+10e9) {
			}
			if len(w.a.Sent) != 2000 {
				t.Fatalf("type %d: %d of 2000 sent", typ, len(w.a.Sent))
			}
			w.a.Sent = nil
			return w.Now - from
		}
		// At 8 Gb/s, and slowly faster.
		fast := took()
		if least := ib.Time(2000) * ib.Time(n) / 4; fast < least {
			t.Errorf("type %d: %d ns for %d bytes", typ, fast, 2000*n)
		}
		for range 10 {
			w.Now += 100_000
			w.a.QP.Congested(w.Now, w.b.GID)
		}
		if slow := took(); slow < fast+fast/8 {
			t.Errorf("type %d: %d ns before 10 CNPs, %d ns after", typ, fast, slow)
		}
	}
}

// TestPacedResponses checks that a peer that repeats a READ request is answered more slowly, but always.
func TestPacedResponses(t *testing.T) {
	s := newScript(t, ib.RC)
	s.remote(otherPath)
	r := s.burst(KindReadReq, 0, 1, 0)
	r.Length = 500_000
	s.give(r)
	for range 30 {
		s.Now += 100_000
		s.b.QP.Receive(s.Now, &r, s.b.Env())
	}
	if rate := s.b.QP.Snapshot().Rate; rate == 0 || rate > 100_000 {
		t.Fatalf("rate of %d bytes/ms after 30 repetitions", rate)
	}
	s.answers = nil
	from := s.Now
	for range 1_000_000 {
		if s.b.QP.RespondPending() {
			s.b.QP.Respond(s.Now, 1<<20, s.b.Env())
		} else if d := s.b.QP.Deadline(); d != 0 {
			s.Now = max(s.Now, d)
			s.b.QP.Expire(s.Now, s.b.Env())
		} else {
			break
		}
	}
	packets := uint32(0)
	for _, a := range s.answers {
		packets += a.Packets
	}
	if packets != 489 || s.Now-from < 1_000_000 {
		t.Errorf("%d packets in %d ns, want 489 in more than a millisecond", packets, s.Now-from)
	}
}

// TestLossAfterRNR loses the first packet after an RNR NAK. Later packets show the loss, so the timeout of 67 ms is not needed.
func TestLossAfterRNR(t *testing.T) {
	for name, p := range map[string]Path{"own": ownPath, "other": otherPath} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ib.RC, onWire, bAttr(func(a *Attr) { a.MinRNRTimer = 16 })).remote(p)
			seen := 0
			w.loseOnce(func(b *Burst) bool {
				if b.Kind != KindSend || b.PSN != 0 {
					return false
				}
				seen++
				return seen == 2
			})
			w.post(w.req(WRSend, 5000, 0))
			w.Run(w.Now+1_000_000, 1000)
			w.recv(1, 5000, 0)
			w.Run(w.Now+20_000_000, 10_000)
			w.wantSent(Success)
			if c := w.a.QP.Counters(); c.RcvdRNR != 1 || c.Timeouts != 0 {
				t.Errorf("%d RNR NAKs, %d timeouts, want 1 and 0", c.RcvdRNR, c.Timeouts)
			}
		})
	}
}

// TestAcksOfMany checks ACK requests: for a vrdma host every message if few are in flight, and a quarter of them if there are
// many and packets are large; for other hosts always.
func TestAcksOfMany(t *testing.T) {
	const messages, size = 64, 16 << 10
	for _, c := range []struct {
		name        string
		path        Path
		mtu         uint32
		depth       int // number of messages that the program keeps posted
		least, most int // messages with an ACK request
	}{
		{"own, one by one", ownPath, 4096, 1, messages, messages},
		{"own, two by two", ownPath, 4096, 2, messages, messages},
		{"own, all", Path{Remote: true, Own: true, Window: 256 << 10}, 4096, messages, 2, messages / 2},
		{"own, all, small packets", Path{Remote: true, Own: true, Window: 256 << 10}, 1024, messages, messages, messages},
		{"other, all", Path{Remote: true, Window: 256 << 10}, 4096, messages, messages, messages},
	} {
		t.Run(c.name, func(t *testing.T) {
			set := func(a *Attr) { a.MTU = c.mtu }
			w := newWorld(t, ib.RC, onWire, aAttr(set), bAttr(set)).remote(c.path)
			asked := 0
			w.Lose = func(b *Burst) bool {
				if b.Kind == KindWrite && b.Last && b.AckReq {
					asked++
				}
				return false
			}
			var want []Status
			for len(want) < messages {
				for range c.depth {
					want = append(want, Success)
					r := w.req(WRWrite, size, 0)
					r.WRID = uint64(len(want))
					w.a.Post(r)
				}
				w.run()
			}
			w.wantSent(want...)
			if asked < c.least || asked > c.most {
				t.Errorf("%d of %d messages asked for an ACK, want %d to %d", asked, messages, c.least, c.most)
			}
			if n := w.a.QP.Counters().Retransmitted; n != 0 {
				t.Errorf("%d packets sent again, want none: a probe had to ask", n)
			}
		})
	}
}

// TestWiden checks that a larger window of the path takes effect in a few round trips, and that the limit of out-of-order packets holds.
func TestWiden(t *testing.T) {
	w := newWorld(t, ib.RC, onWire).remote(Path{Remote: true, Window: 64 << 10})
	grow := func() {
		for range 4 {
			for range 64 {
				w.post(w.req(WRWrite, 64<<10, 0))
			}
			w.run()
		}
	}
	grow()
	before := w.a.QP.Snapshot().Window
	w.remote(Path{Remote: true, Own: true, Window: 256 << 10})
	grow()
	if got := w.a.QP.Snapshot().Window; got != 4*before {
		t.Errorf("window %d packets after the path allowed four times as much, was %d", got, before)
	}
	w.remote(Path{Remote: true, Own: true, Window: 64 << 20})
	for range 8 {
		grow()
	}
	if got := w.a.QP.Snapshot().Window; got != 2048 {
		t.Errorf("window %d packets, want 2048 at most", got)
	}
}
