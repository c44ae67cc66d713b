package transport_test

import (
	"bytes"
	"testing"

	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// TestPostpone suspends the responder in the middle of each kind of request, for longer than all retries together would
// last. The requester uses none of them, and continues at once when it is recalled. With 3 RNR retries it fails at the fourth NAK.
func TestPostpone(t *testing.T) {
	const n = 100_000
	for name, p := range map[string]Path{"own": ownPath, "other": otherPath} {
		for what, op := range map[string]WROp{"WRITE": WRWrite, "READ": WRRead, "atomic": WRFetchAdd} {
			for _, limited := range []bool{false, true} {
				t.Run(name+"/"+what, func(t *testing.T) {
					w := newWorld(t, ib.RC, onWire, aAttr(func(a *Attr) {
						if limited {
							a.RNRRetry = 3
						}
					})).remote(p)
					length, seen, naks := uint32(n), 0, 0
					if op == WRFetchAdd {
						length = 8
					}
					suspended := true
					w.Lose = func(b *Burst) bool {
						if b.Dst != w.b.Num {
							// What the responder sent before it was suspended arrives.
							return suspended && seen > 3 && b.Syndrome>>5 != 1
						}
						if seen++; !suspended || seen <= 3 && op != WRFetchAdd {
							return false
						}
						if w.b.QP.Postpone(w.Now, b, w.b.Env()) {
							naks++
						}
						return true
					}
					w.post(w.req(op, length, 0))
					w.Run(w.Now+6_000_000_000, 1_000_000)
					if limited {
						w.wantSent(RNRRetryExcErr)
						return
					}
					c := w.a.QP.Counters()
					if naks < 5 || naks > 40 || len(w.a.Sent) != 0 || w.a.QP.Snapshot().RetriesLeft != 7 {
						t.Fatalf("%d RNR NAKs, %d completions, %d retries left, %d timeouts", naks, len(w.a.Sent), w.a.QP.Snapshot().RetriesLeft, c.Timeouts)
					}
					suspended = false
					from := w.Now
					w.b.QP.Moved(w.Now, p)
					w.b.QP.Recall(w.Now, w.b.Env()) // a does not know that b has moved
					w.Run(w.Now+10_000_000, 1_000_000)
					w.wantSent(Success)
					if len(w.a.Sent) != 1 {
						t.Errorf("it is not done %d ns after the move", w.Now-from)
					}
					if op == WRWrite && !bytes.Equal(w.b.Node.Mem[:n], pattern[:n]) || op == WRRead && !bytes.Equal(w.a.Node.Mem[:n], w.b.Node.Mem[:n]) {
						t.Error("the data differs")
					}
				})
			}
		}
	}
}

// TestMovedAcrossPaths moves queue pairs between the local path and remote ones at any packet of a message.
func TestMovedAcrossPaths(t *testing.T) {
	const n = 300_000
	paths := []Path{{}, ownPath, otherPath}
	for _, op := range []WROp{WRWrite, WRRead} {
		for at := 1; at < 60; at += 7 {
			w := newWorld(t, ib.RC, onWire)
			bursts := 0
			w.Lose = func(*Burst) bool { bursts++; return false }
			w.post(w.req(op, n, 0))
			for k := 0; len(w.a.Sent) == 0; k++ {
				for from := bursts; bursts < from+at && w.Step(w.Now+1_000_000_000); {
				}
				p := paths[k%len(paths)]
				w.a.QP.Moved(w.Now, p)
				w.b.QP.Moved(w.Now, p)
				if k > 100 {
					at *= 2 // each move sends everything outstanding again
				}
				if k > 200 {
					t.Fatalf("operation %v, a move each %d bursts: no end", op, at)
				}
			}
			w.wantSent(Success)
			if op == WRWrite && !bytes.Equal(w.b.Node.Mem[:n], pattern[:n]) || op == WRRead && !bytes.Equal(w.a.Node.Mem[:n], w.b.Node.Mem[:n]) {
				t.Errorf("operation %v, a move each %d bursts: the data differs", op, at)
			}
		}
	}
}
