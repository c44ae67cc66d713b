package simnet

import (
	"fmt"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// TestRecognisedInTheMiddle: during a lossy stream one side, the other, both or neither start to regard the peer as vrdma. Nothing
// fails. Selective repeat is used when both do, and ends when neither does.
func TestRecognisedInTheMiddle(t *testing.T) {
	for _, op := range streamOps {
		for drop, long := range map[float64]ib.Time{0.01: 30_000_000, 0.1: 200_000_000} {
			t.Run(fmt.Sprintf("op%d/%v", op, drop), func(t *testing.T) {
				n := New(Config{Seed: 11, Delay: 20_000, Chunk: 1, Wire: Wire{Rate: 1.25e9, Queue: 4 << 20}, Drop: drop, Duplicate: 0.01})
				s := newStream(n, 17, NewNode(64<<10), transport.Path{Remote: true}, op, 64<<10, 16, Defaults())
				for step, own := range [][2]bool{{}, {true, false}, {true, true}, {false, true}, {}, {false, true}, {true, true}, {true, false}, {}} {
					s.e.QP.SetPath(transport.Path{Remote: true, Own: own[0]})
					s.peer.QP.SetPath(transport.Path{Remote: true, Own: own[1]})
					s.rate(t, n, 2_000_000) // for packets in transit
					before, done := *s.e.QP.Counters(), s.done
					stashed := s.peer.QP.Counters().Stashed
					s.rate(t, n, long)
					repairs, kept := s.e.QP.Counters().Repairs-before.Repairs, s.peer.QP.Counters().Stashed-stashed
					t.Logf("%v: %d messages, %d repairs, %d packets kept", own, s.done-done, repairs, kept)
					if s.done == done {
						t.Errorf("step %d, %v: nothing moves: %+v", step, own, s.e.QP.Snapshot())
					}
					if own[0] && own[1] && (repairs == 0 || kept == 0 && op != transport.WRRead) {
						t.Errorf("step %d, %v: %d repairs, %d packets kept, want some", step, own, repairs, kept)
					}
					if own == [2]bool{} && repairs+kept != 0 {
						t.Errorf("step %d, %v: %d repairs, %d packets kept, want none", step, own, repairs, kept)
					}
				}
			})
		}
	}
}
