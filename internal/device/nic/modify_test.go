package nic

import (
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/ib"
)

// The whole table, state by state, against what section 11.2.5.2 of the
// specification lists as possible. Attributes have their own test below.
func TestTransitionsExist(t *testing.T) {
	const r, i, rtr, rts, sqd, sqe, e = ib.StateReset, ib.StateInit, ib.StateRTR, ib.StateRTS, ib.StateSQD, ib.StateSQE, ib.StateError
	want := map[ib.State][]ib.State{
		r:   {r, i},
		i:   {r, i, rtr, e},
		rtr: {r, rts, e},
		rts: {r, rts, sqd, e},
		sqd: {r, rts, sqd, e},
		sqe: {r, rts, e},
		e:   {r, e},
	}
	for from := r; from <= e; from++ {
		for to := r; to <= e; to++ {
			_, got := transitions[edge{from, to}]
			possible := false
			for _, s := range want[from] {
				possible = possible || s == to
			}
			if got != possible {
				t.Errorf("%d to %d: in the table %v, want %v", from, to, got, possible)
			}
		}
	}
}

func TestTransitionAttributes(t *testing.T) {
	const initMask = ib.MaskState | ib.MaskPKey | ib.MaskPort | ib.MaskAccess
	const rtrRC = ib.MaskState | ib.MaskAV | ib.MaskMTU | ib.MaskDestQPN | ib.MaskRQPSN | ib.MaskMaxDestRDAtomic | ib.MaskMinRNRTimer
	const rtsRC = ib.MaskState | ib.MaskTimeout | ib.MaskRetryCount | ib.MaskRNRRetry | ib.MaskSQPSN | ib.MaskMaxRDAtomic
	for _, c := range []struct {
		name     string
		from, to ib.State
		typ      ib.Service
		mask     ib.AttrMask
		want     bool
	}{
		{"RC to INIT", ib.StateReset, ib.StateInit, ib.RC, initMask, true},
		{"RC to INIT without a port", ib.StateReset, ib.StateInit, ib.RC, initMask &^ ib.MaskPort, false},
		{"RC to INIT with a Q_Key", ib.StateReset, ib.StateInit, ib.RC, initMask | ib.MaskQKey, false},
		{"UD to INIT", ib.StateReset, ib.StateInit, ib.UD, ib.MaskState | ib.MaskPKey | ib.MaskPort | ib.MaskQKey, true},
		{"UD to INIT with access flags", ib.StateReset, ib.StateInit, ib.UD, initMask | ib.MaskQKey, false},
		{"RC to RTR", ib.StateInit, ib.StateRTR, ib.RC, rtrRC, true},
		{"RC to RTR with an alternate path", ib.StateInit, ib.StateRTR, ib.RC, rtrRC | ib.MaskAltPath, true},
		{"UC to RTR takes no RNR timer", ib.StateInit, ib.StateRTR, ib.UC, rtrRC, false},
		{"UC to RTR", ib.StateInit, ib.StateRTR, ib.UC, rtrRC &^ (ib.MaskMinRNRTimer | ib.MaskMaxDestRDAtomic), true},
		{"UD to RTR", ib.StateInit, ib.StateRTR, ib.UD, ib.MaskState, true},
		{"RC to RTS", ib.StateRTR, ib.StateRTS, ib.RC, rtsRC, true},
		{"RC to RTS without a PSN", ib.StateRTR, ib.StateRTS, ib.RC, rtsRC &^ ib.MaskSQPSN, false},
		{"UD to RTS", ib.StateRTR, ib.StateRTS, ib.UD, ib.MaskState | ib.MaskSQPSN, true},
		{"SQD with notification", ib.StateRTS, ib.StateSQD, ib.RC, ib.MaskState | ib.MaskSQDAsyncNotify, true},
		{"path change while drained", ib.StateSQD, ib.StateSQD, ib.RC, ib.MaskAV | ib.MaskTimeout, true},
		{"path change while running", ib.StateRTS, ib.StateRTS, ib.RC, ib.MaskAV, false},
		{"RC never leaves SQE by attributes", ib.StateSQE, ib.StateRTS, ib.RC, ib.MaskState | ib.MaskAccess, false},
		{"error from anywhere takes nothing else", ib.StateRTS, ib.StateError, ib.RC, ib.MaskState | ib.MaskQKey, false},
		{"RESET to RTS", ib.StateReset, ib.StateRTS, ib.RC, rtsRC, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := allowed(c.from, c.to, c.typ, c.mask); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestArenaReuse(t *testing.T) {
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var ms []MMap
	for i := range 50 {
		m, mem, err := a.alloc(uint64(1 + i*5000))
		if err != nil {
			t.Fatal(err)
		}
		mem[0] = 1
		ms = append(ms, m)
	}
	for _, k := range []int{0, 2, 1} { // neighbours on either side, then between
		for i := k; i < len(ms); i += 3 {
			a.release(ms[i])
		}
	}
	if !a.Reclaim() || a.Reclaim() {
		t.Error("pages are not reclaimed once")
	}
	a.collect()
	if len(a.free) != 1 || a.free[0] != (arenaRange{protocol.SharedSize, arenaSize - protocol.SharedSize}) || a.used != 0 {
		t.Errorf("after releasing all: %v, %d used", a.free, a.used)
	}
	if _, mem, _ := a.alloc(1); mem[0] != 0 {
		t.Error("a ring that was used before is not zero")
	}
}
