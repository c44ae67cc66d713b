package engine

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// TestNoFiller: a host with the switch off sends no filler to a host that understands it, and gets none.
func TestNoFiller(t *testing.T) {
	for _, off := range []bool{false, true} {
		as, bs := byHand(t, 1, Options{Recognise: true, NoFiller: off})
		a, b := as[0], bs[0]
		ea, eb := a.c.e, b.c.e
		for i := 0; ea.first.net.hostPeers().Features(b.c.gid) == 0 || eb.first.net.hostPeers().Features(a.c.gid) == 0; i++ {
			if i == 1000 {
				t.Fatal("the hosts do not recognise each other")
			}
			for _, e := range []*Engine{ea, eb} {
				e.first.net.traffic.wake(e.first.clock.now)
				for _, bell := range e.first.bells.of {
					e.first.bells.activate(bell, e.first.clock.now)
				}
			}
			a.pass(10 * time.Microsecond)
			b.pass(10 * time.Microsecond)
		}
		if told := ea.first.net.hostPeers().Features(b.c.gid)&wire.FeatureFiller == 0; told != off {
			t.Errorf("switched off %v: the peer says that it does not understand filler: %v", off, told)
		}
		want := uint64(3 * (wire.BTHSize + wire.RETHSize + wire.ImmDtSize + 4096 + wire.ICRCSize))
		if off {
			want -= 2*wire.RETHSize + 3*wire.ImmDtSize
		}
		if got := a.writeBytes(b); got != want {
			t.Errorf("switched off %v: a WRITE is %d bytes, want %d", off, got, want)
		}
	}
}

// TestNoAckWait: with the switch off an acknowledgement is sent at once, also where programs talk in turns.
func TestNoAckWait(t *testing.T) {
	for _, off := range []bool{false, true} {
		as, bs := byHand(t, 1, Options{NoAckWait: off})
		a, b := as[0], bs[0]
		say := func(from, to *testQP) {
			to.recv(0, 64)
			from.post(wr{op: opSend, n: 64})
			from.pass(time.Microsecond)
		}
		for range 3 { // until answers are expected
			say(a, b)
			b.pass(time.Microsecond)
			say(b, a)
			a.pass(time.Microsecond)
		}
		say(a, b)
		want := uint64(0)
		if off {
			want = 1
		}
		if _, packets := b.pass(time.Microsecond); packets != want {
			t.Errorf("switched off %v: %d packets left before the answer, want %d", off, packets, want)
		}
	}
}

// TestNoMove: with the switch off the loop stays on its processor, however long other processes use it.
func TestNoMove(t *testing.T) {
	for _, off := range []bool{false, true} {
		as, _ := byHand(t, 1, Options{NoMove: off})
		e := as[0].c.e
		e.first.net.traffic.wake(e.first.clock.now)
		e.first.net.traffic.much, e.first.net.traffic.tells = e.first.clock.now, e.first.clock.now
		asked := false // giveWay looks at the clock only to judge whether to move
		e.first.clock.time = func() ib.Time {
			asked = true
			return e.first.clock.now
		}
		if e.first.proc.giveWay(); asked == off {
			t.Errorf("switched off %v: asked whether to move: %v", off, asked)
		}
		e.first.net.traffic.tells = 0
		if e.first.proc.chooseCPU(); (e.first.proc.affinity.since == 0) != off {
			t.Errorf("switched off %v: looked for a better place at %d", off, e.first.proc.affinity.since)
		}
	}
}
