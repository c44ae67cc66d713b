package engine

import (
	"os"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// TestSleepersAreWoken: a client learns the loop's processor. If it sleeps on its word, a completion
// wakes it.
func TestSleepersAreWoken(t *testing.T) {
	a, b := pair(t)
	word := shared(b.c.mapping, protocol.DoorbellWaiting)
	for i := range 200 {
		b.recv(0, 64)
		asleep := word.Load()&^3 | protocol.WaitAnnounced | protocol.WaitAsleep
		word.Store(asleep)
		woken := make(chan error)
		go func() {
			err := futexWait(word, asleep, time.Minute)
			for (err == nil || err == unix.EINTR) && word.Load() == asleep { // woken by the round before, or by a signal
				err = futexWait(word, asleep, time.Minute)
			}
			woken <- err
		}()
		if i%2 == 0 {
			time.Sleep(100 * time.Microsecond) // so that it sleeps, most of the time
		}
		a.post(wr{op: opSend, flags: signal, n: 64})
		if err := <-woken; err != nil && err != unix.EAGAIN && err != unix.EINTR {
			t.Fatalf("message %d: the sleeper: %v", i, err)
		}
		if got := word.Load(); got&3 != 0 || got == asleep&^3 {
			t.Fatalf("message %d: the word is %#x after %#x, want the next round", i, got, asleep)
		}
		a.wait()
		b.wait()
	}
	if cpu := b.c.page.cpu.Load(); cpu == 0 {
		t.Error("the client was not told where the loop runs")
	}
}

// TestSleepersDoNotWaitForTheWholeStream: while the loop has work, it wakes after a while.
func TestSleepersDoNotWaitForTheWholeStream(t *testing.T) {
	a, b := pair(t)
	e := a.c.e
	halt(e)
	b.recv(0, 64)
	shared(b.c.mapping, protocol.DoorbellWaiting).Store(protocol.WaitAnnounced)
	a.post(wr{op: opSend, flags: signal, n: 64})
	for done := false; !done; _, done = b.try() {
		e.first.clock.read()
		e.first.bells.activateRung(e.first.clock.now)
		e.first.step()
	}
	if !e.first.shared.Waiters() {
		t.Fatal("nobody is to be woken")
	}
	begin := e.first.clock.now
	e.first.wakeWaiters(false)
	e.first.clock.now = begin + wakeAfter - 1
	if e.first.wakeWaiters(false); !e.first.shared.Waiters() {
		t.Error("woken at once, though the loop goes on")
	}
	e.first.clock.now = begin + wakeAfter
	if e.first.wakeWaiters(false); e.first.shared.Waiters() {
		t.Error("not woken after a while")
	}
	if f := &clientOf(b.c.s).flow; f.credit >= 0 || f.of.credit >= 0 {
		t.Errorf("waking cost nothing: credit %d, the user's %d", f.credit, f.of.credit)
	}
}

// TestFaultOfASleeper: a client whose word cannot be accessed is closed. Other clients are not, and
// are woken.
func TestFaultOfASleeper(t *testing.T) {
	a, b := pair(t)
	e := a.c.e
	halt(e)
	b.recv(0, 64)
	for _, q := range []*testQP{a, b} {
		shared(q.c.mapping, protocol.DoorbellWaiting).Store(protocol.WaitAnnounced)
	}
	a.post(wr{op: opSend, flags: signal, n: 64})
	for _, q := range []*testQP{b, a} {
		for done := false; !done; _, done = q.try() {
			e.first.clock.read()
			e.first.bells.activateRung(e.first.clock.now)
			e.first.step()
		}
	}
	page := b.c.s.Arena.Doorbell()[:os.Getpagesize()]
	if err := unix.Mprotect(page, unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	defer unix.Mprotect(page, unix.PROT_READ|unix.PROT_WRITE)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for e.first.shared.Waiters() {
		e.first.wakeWaiters(true)
	}
	if b.c.s.Served() || !a.c.s.Served() {
		t.Errorf("served: the one that faulted %v, the other %v; want false, true", b.c.s.Served(), a.c.s.Served())
	}
	if word := shared(a.c.mapping, protocol.DoorbellWaiting).Load(); word&3 != 0 {
		t.Errorf("the word of the other is %#x: it was not woken", word)
	}
}
