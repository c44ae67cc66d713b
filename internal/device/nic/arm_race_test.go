package nic

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// spinUntil waits for another goroutine, which has a processor of its own or needs ours.
func spinUntil(t *testing.T, what string, f func() bool) bool {
	for n, start := 0, time.Now(); !f(); n++ {
		if n%256 == 255 {
			unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			if time.Since(start) > time.Minute {
				t.Errorf("%s: not in a minute", what)
				return false
			}
		}
	}
	return true
}

// Only the shared words are between the two here, so they meet within nanoseconds: a client arms, polls once more and
// sleeps while a completion is written. arm.go has the argument, and package armcheck tries every order; this test has
// the processor's own orders.
func TestArmRaces(t *testing.T) {
	// On a busy machine each waits for a processor: the number of races depends on the time.
	const races, enough = 200_000, 2 * time.Second
	start := time.Now()
	s := newRig(t, DefaultLimits).open()
	c, h, fd := armedCQ(t, s)
	w := armWord(s, h)
	var begun, pushed atomic.Uint32
	var stop atomic.Bool
	daemon := make(chan struct{})
	go func() {
		defer close(daemon)
		for n := uint32(1); n <= races; n++ {
			if !spinUntil(t, "the client's next round", func() bool { return begun.Load() >= n || stop.Load() }) || stop.Load() {
				return
			}
			for range n * 2654435761 >> 25 {
			}
			c.push(&completion{solicited: n%2 == 0})
			pushed.Store(n)
		}
	}()
	slept, n := 0, uint32(1)
	for ; n <= races && !t.Failed() && (n%64 != 0 || time.Since(start) < enough); n++ {
		arm := uint32(protocol.ArmAll)
		if n%2 == 0 && n%3 == 0 {
			arm = protocol.ArmSolicited
		}
		last := c.ring.consumer()
		begun.Store(n)
		for range n * 0x9e3779b1 >> 18 >> (n % 8) {
		}
		w.Or(arm)
		if c.ring.producer() == last {
			slept++
			if err := awaitEvent(fd); err != nil {
				t.Errorf("race %d: lost wake-up: armed (the word is %#x), no event in a minute (%v), and the producer went from %d to %d",
					n, w.Load(), err, last, c.ring.producer())
				break
			}
		}
		if !spinUntil(t, "the completion", func() bool { return pushed.Load() == n }) {
			break
		}
		if events := len(readEvents(fd)); events > 1 {
			t.Errorf("race %d: %d events", n, events)
		}
		w.And(protocol.ArmReady)
		c.ring.setConsumer(c.ring.producer())
	}
	stop.Store(true)
	<-daemon
	t.Logf("slept in %d of %d races", slept, n-1)
}

// awaitEvent waits until fd is readable, for a minute.
func awaitEvent(fd int) error {
	for end := time.Now().Add(time.Minute); ; {
		k, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		switch {
		case k == 1:
			return nil
		case err == unix.EINTR && time.Now().Before(end): // the runtime interrupts its threads
		case err == nil || err == unix.EINTR:
			return errors.New("there is no event")
		default:
			return err
		}
	}
}
