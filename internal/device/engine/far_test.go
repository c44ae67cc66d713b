package engine

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// The loop waits for a program in a virtual machine if it rang twice within farPace, and for farPace again.
func TestFarRings(t *testing.T) {
	e := &loop{}
	e.connect()
	e.opts.Spin = defaultSpin
	b := &bell{far: true}
	at := ib.Time(10 * farPace)
	for _, c := range []struct {
		what  string
		after ib.Time
		waits bool
	}{
		{"the first ring", 0, false},
		{"the next, soon", farPace - 1, true},
		{"one that comes late", farPace, false},
		{"and late again", 3 * farPace, false},
		{"soon after that", 1, true},
	} {
		at += c.after
		e.bells.rung(b, at)
		e.clock.now = at + 1
		if got := e.proc.patience() == farPace; got != c.waits {
			t.Errorf("%s: the loop waits: %v, want %v", c.what, got, c.waits)
		}
	}
	e.clock.now = at + farPace
	if e.proc.patience() != ib.Time(defaultSpin) {
		t.Error("it is waited for without end")
	}
}

// The loop's thread gets short timer slack while there are programs in virtual machines, and no other thread does, also
// if the programs start and end while the loop sleeps and another thread does its work.
func TestFarSlice(t *testing.T) {
	e := newEngine(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := unix.Gettid()
	end := time.Now().Add(time.Minute)
	told := make(chan int, 1)
	e.first.cmds.push(func() { told <- unix.Gettid() }) // and not Do, for which we may stand in
	e.first.poller.kick()
	loop := <-told
	slack := func(thread int) string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/timerslack_ns", thread))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	usual, short := slack(own), fmt.Sprint(farSlack)
	asleep := func(f func()) {
		t.Helper()
		for ran := false; !ran; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the loop does not sleep")
			}
			var err error
			if ran, err = e.first.standIn(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	wait := func(want string) {
		t.Helper()
		for slack(loop) != want {
			if time.Now().After(end) {
				t.Fatalf("the loop may be woken %s ns late, want %s", slack(loop), want)
			}
			e.first.poller.kick()
			time.Sleep(time.Millisecond)
		}
		if got := slack(own); got != usual {
			t.Errorf("who stood in for the loop may be woken %s ns late, want %s", got, usual)
		}
	}
	c := newClient(t, e)
	b := &bell{client: clientOf(c.s), fd: -1, far: true, page: newPage(make([]byte, protocol.DoorbellSize))}
	asleep(func() { e.first.bells.add(b, e.first.clock.now) })
	wait(short)
	asleep(func() { e.first.bells.remove(b) })
	wait(usual)
}

// The loop does not nap while programs of this host talk to each other, nor with class latency. With programs that talk
// to a virtual machine it does.
func TestNapsInNobodysWay(t *testing.T) {
	b := newBench(t, 2)
	lat := b.stream(0, 1, 1, wr{op: opWrite, n: 64})
	b.begin()
	b.run(1_000_000)
	e := b.e
	d := &e.first.bells
	far := &bell{far: true}
	ring := func(near int) {
		d.rung(far, e.first.clock.now)
		for range near {
			lat.q.c.page.any.Store(1)
			d.poll(e.first.clock.now)
		}
	}
	clientOf(lat.q.c.s).bell.far = false
	for _, c := range []struct {
		near  int
		later ib.Time
		naps  bool
	}{{0, 0, true}, {1, 0, true}, {2, 0, false}, {20, 0, false}, {20, idleAfter, true}} {
		ring(c.near)
		e.first.clock.now += c.later
		if got := e.first.proc.mayNap(); got != c.naps {
			t.Errorf("%d rings of others, and %d ns later: the loop may nap: %v, want %v", c.near, c.later, got, c.naps)
		}
	}
	e.SetShare(b.nics[0], "t", schedule.NICParams{Class: schedule.Latency, Rate: schedule.Rate{Out: 1 << 30}})
	b.run(1_000_000)
	ring(0)
	if e.first.proc.mayNap() {
		t.Error("the loop may nap while class latency is active")
	}
	before := e.first.proc.rivals.yields
	d.crowded = e.first.clock.now + ib.Time(time.Hour)
	if e.first.proc.awaitFar(0); e.first.proc.rivals.yields != before+1 {
		t.Error("the loop napped, or its yields are not counted")
	}
}
