package transport_test

import (
	"bytes"
	"fmt"
	"testing"

	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/testkit/simnet"
)

// TestLoseOne loses every single packet of a conversation with all operations in turn,
// and expects the conversation to end as if nothing had happened.
func TestLoseOne(t *testing.T) {
	for lose := range 60 {
		t.Run(fmt.Sprint(lose), func(t *testing.T) {
			w := newWorld(t, ib.RC, onWire)
			for i := range 3 {
				w.recv(uint64(i), 8192, 0x40000+uint32(i)*8192)
			}
			n, lost := 0, uint32(0)
			w.Tap = nil
			w.Lose = func(b *Burst) bool {
				n++
				if n-1 == lose {
					lost = b.PSN
				}
				return n-1 == lose
			}
			cs := w.req(WRCmpSwap, 8, 0x20000)
			cs.Swap = 5
			fa := w.req(WRFetchAdd, 8, 0x20000)
			fa.CompareAdd = 3
			rd := w.req(WRRead, 5000, 0)
			rd.SGE[0].Addr += 0x30000
			atomics := func(r SendWQE, at uint64) SendWQE { r.SGE[0].Addr = simnet.Base + at; return r }
			aw := w.req(WRAtomicWrite, 0, 0x20008)
			aw.NumSGE, aw.Length, aw.Swap = 0, 8, 99
			w.post(w.req(WRSend, 3000, 0), w.req(WRWrite, 5000, 0), rd, atomics(cs, 0x50000), atomics(fa, 0x50008),
				w.req(WRSendImm, 100, 0), aw, w.req(WRFlush, 8, 0), w.req(WRWriteImm, 2049, 0x8000))
			w.run()
			w.wantSent(Success, Success, Success, Success, Success, Success, Success, Success, Success)
			w.wantRcvd(Success, Success, Success)
			a, b := w.a.Node.Mem, w.b.Node.Mem
			if !bytes.Equal(b[:5000], a[:5000]) || !bytes.Equal(a[0x30000:][:5000], a[:5000]) || !bytes.Equal(b[0x40000:][:3000], a[:3000]) ||
				!bytes.Equal(b[0x8000:][:2049], a[:2049]) {
				t.Errorf("wrong data (lost PSN %d)", lost)
			}
			if b[0x20000] != 8 || b[0x20008] != 99 || a[0x50000] != 0 || a[0x50008] != 5 {
				t.Errorf("atomics: memory %d, values %d and %d, want 8, 0, 5", b[0x20000], a[0x50000], a[0x50008])
			}
			// What is sent again is not counted again.
			want := [NumOps]uint64{OpSend: 2, OpWrite: 4, OpRead: 1, OpAtomic: 2}
			if sent, rcvd := w.a.QP.Counters().SentMessages, w.b.QP.Counters().RcvdMessages; sent != want || rcvd != want {
				t.Errorf("messages sent %v, received %v, want %v", sent, rcvd, want)
			}
		})
	}
}

// TestReadFromTheMiddle checks that a READ whose response is cut short asks for the
// rest only.
func TestReadFromTheMiddle(t *testing.T) {
	w := newWorld(t, ib.RC, onWire)
	var asked []Burst
	n := 0
	w.Lose = func(b *Burst) bool {
		switch b.Kind {
		case KindReadReq:
			asked = append(asked, *b)
		case KindReadResp:
			n++
			return n > 3 && n < 7 // the rest of the first response
		}
		return false
	}
	w.post(w.req(WRRead, 6000, 64))
	w.run()
	w.wantSent(Success)
	if len(asked) != 2 || asked[1].PSN != 3 || asked[1].VA != simnet.Base+64+3072 || asked[1].Length != 6000-3072 {
		t.Errorf("requests %+v, want a second one for the rest", asked)
	}
	if c := w.a.QP.Counters(); c.Timeouts != 1 || c.Retries != 1 {
		t.Errorf("%d timeouts, %d retries, want one each", c.Timeouts, c.Retries)
	}
}

// TestImplicitNak checks that a response that overtakes a lost one starts a retry at
// once.
func TestImplicitNak(t *testing.T) {
	w := newWorld(t, ib.RC, onWire)
	lost := false
	w.Lose = func(b *Burst) bool {
		if b.Kind == KindAtomicResp && !lost {
			lost = true
			return true
		}
		return false
	}
	w.post(w.req(WRFetchAdd, 8, 0), w.req(WRWrite, 8, 64))
	w.Run(w.Now+100_000, 1000)
	w.wantSent(Success, Success)
	if c := w.a.QP.Counters(); c.ImplicitNaks != 1 || c.Timeouts != 0 {
		t.Errorf("%d implicit NAKs, %d timeouts, want 1 and 0", c.ImplicitNaks, c.Timeouts)
	}
}

// TestRetryCountResets checks that a link that loses much, but lets something through,
// is not given up.
func TestRetryCountResets(t *testing.T) {
	w := newWorld(t, ib.RC, onWire, aAttr(func(a *Attr) { a.Timeout = 5 }))
	w.Drop = 0.3
	var rs []SendWQE
	for range 50 {
		rs = append(rs, w.req(WRWrite, 1024, 0))
	}
	w.post(rs...)
	w.run()
	for i, d := range w.a.Sent {
		if d.Status != Success {
			t.Fatalf("request %d: status %d", i, d.Status)
		}
	}
	if c := w.a.QP.Counters(); len(w.a.Sent) != 50 || c.Retries <= 7 {
		t.Errorf("%d completions after %d retries, want 50 after many", len(w.a.Sent), c.Retries)
	}
}

// TestRegionGoesAway deregisters the memory under a READ response.
func TestRegionGoesAway(t *testing.T) {
	w := newWorld(t, ib.RC, config(func(c *Config) { c.MaxBurst = 1024 }))
	w.Budget = 1024
	n := 0
	w.Tap = func(from *simnet.Endpoint, b *Burst) bool {
		if b.Kind == KindReadResp {
			if n++; n == 2 {
				w.b.Node.Deregister(w.bKey)
			}
		}
		return false
	}
	w.post(w.req(WRRead, 8192, 0), w.req(WRWrite, 8, 0))
	w.run()
	w.wantSent(RemAccessErr, WRFlushErr)
	w.wantStates(ib.StateError, ib.StateError)
}

// TestCredits: whatever an ACK says of the receives that are posted at the other end, it is
// an ACK. Like rxe, a requester sends without credits: a peer that has no receive says so
// with an RNR NAK.
func TestCredits(t *testing.T) {
	for credits := range uint8(32) {
		w := newWorld(t, ib.RC)
		w.Tap = func(*simnet.Endpoint, *Burst) bool { return true }
		w.post(w.req(WRSend, 8, 0), w.req(WRSend, 8, 0))
		w.Run(w.Now+1000, 100)
		for psn := range uint32(2) {
			ack := Burst{
				Type: ib.RC, Kind: KindAck, First: true, Last: true, Packets: 1, PSN: psn, MSN: psn + 1, Syndrome: credits,
				Src: w.b.Num, Dst: w.a.Num, SGID: w.b.GID, DGID: w.a.GID, PKey: 0xffff, MTU: 1024,
			}
			w.a.QP.Receive(w.Now, &ack, w.a.Env())
		}
		w.wantSent(Success, Success)
	}
}
