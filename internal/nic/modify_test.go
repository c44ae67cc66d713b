package nic

import (
	"testing"

	"vrdma/internal/transport"
)

// The whole table, state by state, against what section 11.2.5.2 of the
// specification lists as possible. Attributes have their own test below.
func TestTransitionsExist(t *testing.T) {
	const r, i, rtr, rts, sqd, sqe, e = transport.Reset, transport.Init, transport.RTR, transport.RTS, transport.SQD, transport.SQE, transport.Error
	want := map[transport.State][]transport.State{
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
	const initMask = attrState | attrPKey | attrPort | attrAccess
	const rtrRC = attrState | attrAV | attrMTU | attrDestQPN | attrRQPSN | attrMaxDestRD | attrMinRNR
	const rtsRC = attrState | attrTimeout | attrRetry | attrRNRRetry | attrSQPSN | attrMaxRD
	for _, c := range []struct {
		name     string
		from, to transport.State
		typ      transport.Type
		mask     uint32
		want     bool
	}{
		{"RC to INIT", transport.Reset, transport.Init, transport.RC, initMask, true},
		{"RC to INIT without a port", transport.Reset, transport.Init, transport.RC, initMask &^ attrPort, false},
		{"RC to INIT with a Q_Key", transport.Reset, transport.Init, transport.RC, initMask | attrQKey, false},
		{"UD to INIT", transport.Reset, transport.Init, transport.UD, attrState | attrPKey | attrPort | attrQKey, true},
		{"UD to INIT with access flags", transport.Reset, transport.Init, transport.UD, initMask | attrQKey, false},
		{"RC to RTR", transport.Init, transport.RTR, transport.RC, rtrRC, true},
		{"RC to RTR with an alternate path", transport.Init, transport.RTR, transport.RC, rtrRC | attrAltPath, true},
		{"UC to RTR takes no RNR timer", transport.Init, transport.RTR, transport.UC, rtrRC, false},
		{"UC to RTR", transport.Init, transport.RTR, transport.UC, rtrRC &^ (attrMinRNR | attrMaxDestRD), true},
		{"UD to RTR", transport.Init, transport.RTR, transport.UD, attrState, true},
		{"RC to RTS", transport.RTR, transport.RTS, transport.RC, rtsRC, true},
		{"RC to RTS without a PSN", transport.RTR, transport.RTS, transport.RC, rtsRC &^ attrSQPSN, false},
		{"UD to RTS", transport.RTR, transport.RTS, transport.UD, attrState | attrSQPSN, true},
		{"SQD with notification", transport.RTS, transport.SQD, transport.RC, attrState | attrSQDAsync, true},
		{"path change while drained", transport.SQD, transport.SQD, transport.RC, attrAV | attrTimeout, true},
		{"path change while running", transport.RTS, transport.RTS, transport.RC, attrAV, false},
		{"RC never leaves SQE by attributes", transport.SQE, transport.RTS, transport.RC, attrState | attrAccess, false},
		{"error from anywhere takes nothing else", transport.RTS, transport.Error, transport.RC, attrState | attrQKey, false},
		{"RESET to RTS", transport.Reset, transport.RTS, transport.RC, rtsRC, false},
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
	if len(a.free) != 1 || a.free[0] != (arenaRange{doorbellSize, arenaSize - doorbellSize}) || a.used != 0 {
		t.Errorf("after releasing all: %v, %d used", a.free, a.used)
	}
	if _, mem, _ := a.alloc(1); mem[0] != 0 {
		t.Error("a ring that was used before is not zero")
	}
}
