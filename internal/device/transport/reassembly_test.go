package transport_test

import (
	"bytes"
	"fmt"
	"testing"

	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/testkit/simnet"
)

// TestReadHoles loses some packets of READ responses from a vrdma host, and expects requests for exactly these.
func TestReadHoles(t *testing.T) {
	const size = 20_000 // 20 packets each
	for name, lost := range map[string][]int{
		"one": {7}, "two": {3, 11}, "run": {4, 5, 6}, "across": {18, 19, 20, 21}, "first": {20}, "last but one": {38}, "many": {1, 3, 5, 7, 9, 11},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, ib.RC, onWire).remote(ownPath)
			gone := map[uint32]bool{}
			for _, i := range lost {
				gone[uint32(i)] = true
			}
			asked, again := 0, uint32(0)
			w.Lose = func(b *Burst) bool {
				switch b.Kind {
				case KindReadReq:
					if asked++; asked > 2 {
						again += (b.Length + 1023) / 1024
					}
				case KindReadResp:
					if gone[b.PSN] {
						delete(gone, b.PSN)
						return true
					}
				}
				return false
			}
			one, two := w.req(WRRead, size, 0), w.req(WRRead, size, 0)
			one.SGE[0].Addr, two.SGE[0].Addr = simnet.Base+0x30000, simnet.Base+0x30000+size
			w.post(one, two)
			w.Run(w.Now+100_000_000, 100_000)
			w.wantSent(Success, Success)
			for i := range 2 {
				if !bytes.Equal(w.a.Node.Mem[0x30000+i*size:][:size], w.b.Node.Mem[:size]) {
					t.Errorf("READ %d brought wrong data", i)
				}
			}
			if c := w.a.QP.Counters(); c.Timeouts != 0 || c.Retries != 0 || int(again) != len(lost) {
				t.Errorf("%d timeouts, %d times back, %d packets asked for again, want none, none, %d", c.Timeouts, c.Retries, again, len(lost))
			}
		})
	}
}

// TestReadHolesThenOther checks a peer that stops being a vrdma host while requested packets are in flight.
func TestReadHolesThenOther(t *testing.T) {
	for after := range 12 {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			w := newWorld(t, ib.RC, onWire).remote(ownPath)
			w.loseOnce(func(b *Burst) bool { return b.Kind == KindReadResp && b.PSN == 5 })
			w.post(w.req(WRRead, 20_000, 0), w.req(WRSend, 100, 0))
			w.recv(1, 200, 0x40000)
			w.Run(w.Now+ib.Time(after)*5_000, 10_000)
			w.remote(otherPath)
			w.Run(w.Now+1e9, 100_000)
			w.wantSent(Success, Success)
		})
	}
}
