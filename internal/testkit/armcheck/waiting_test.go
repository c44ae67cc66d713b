package armcheck

import (
	"fmt"
	"testing"
)

// Threads that sleep instead of polling: rest in shim/poll.c; completed and WakeWaiter in internal/device/nic/waiting.go. Thread i polls
// queue i. Its sleep has no limit here: a lost wake-up is one that it would only find at its end.
const (
	waitSlot int8 = 0 // two completions, one of each queue or both of queue 0
	waitProd int8 = 2 // of two queues
	waitWord int8 = 4

	waitAsleep = 0 // note: the shim's counter
	waitFutex  = 1 // notes: thread i sleeps in the kernel
	waitPolled = 3 // notes: of each queue

	announcedBit int8 = 1
	asleepBit    int8 = 2
	waitRound    int8 = 4
)

// napper is a thread that polls its queue for this number of completions.
func napper(flaw string, i, completions int8) *script {
	p := newScript(fmt.Sprintf("thread %d", i))
	var again, empty, rest, slept, end label
	slot := func(x *cpu) int8 { return waitSlot + i + x.note[waitPolled+i] }
	poll := func(none *label) {
		p.load("load the producer's index", pickOrder(flaw == "the index is relaxed", plainly, acquire), waitProd+i, func(x *cpu, v int8) {
			if v == x.note[waitPolled+i] {
				x.jump(none)
			}
		})
		p.mem("poll", func(x *cpu) bool {
			if v, _ := x.read(slot(x), plainly); v == 0 {
				x.breaks("the program polls a completion that is not written")
			}
			if x.note[waitPolled+i]++; x.note[waitPolled+i] == completions {
				x.jump(&end)
			} else {
				x.jump(&again)
			}
			return true
		}, waitSlot, waitSlot+1)
	}
	p.here(&again)
	poll(&empty)
	p.here(&empty)
	p.rmw("announce", seqCst, waitWord, func(x *cpu, v int8) (int8, bool) {
		x.reg[0] = v | announcedBit
		return x.reg[0], true
	})
	if flaw != "no fence behind the announcement" {
		p.fence(seqCst)
	}
	if flaw != "no poll behind the announcement" {
		poll(&rest)
	}
	p.here(&rest)
	p.rmw("compare and exchange: asleep", seqCst, waitWord, func(x *cpu, v int8) (int8, bool) {
		if flaw == "the thread sleeps in another round" {
			x.reg[0] = v
		}
		if v != x.reg[0] && v != x.reg[0]|asleepBit {
			x.jump(&again)
			return 0, false
		}
		return x.reg[0] | asleepBit, v == x.reg[0]
	})
	p.send("one more is asleep", func(x *cpu) { x.note[waitAsleep]++ })
	p.send("futex_wait", func(x *cpu) {
		if v, _ := x.at(waitWord, x.now); v != x.reg[0]|asleepBit {
			x.note[waitAsleep]--
			x.jump(&again)
			return
		}
		x.note[waitFutex+i] = 1
	})
	p.receive("sleep", func(x *cpu) bool { return x.note[waitFutex+i] == 0 })
	p.send("one less is asleep", func(x *cpu) {
		x.note[waitAsleep]--
		if x.note[waitAsleep] == 0 || flaw == "a thread wakes no other" {
			x.jump(&slept)
		}
	})
	p.send("wake the others", func(x *cpu) { x.note[waitFutex], x.note[waitFutex+1] = 0, 0 })
	p.here(&slept)
	p.then("poll again", func(x *cpu) { x.reg[0] = 0; x.jump(&again) })
	p.here(&end)
	return p
}

// waker is the daemon, which completes on these queues.
func waker(flaw string, queues []int8) *script {
	p := newScript("daemon")
	count := [2]int8{}
	for i, q := range queues {
		var quiet, later label
		look := func() {
			p.load("look at the word", pickOrder(flaw == "the daemon looks by an acquire", acquire, seqCst), waitWord, func(x *cpu, v int8) {
				if v&announcedBit != 0 {
					x.reg[0] = 1
				}
			})
		}
		if flaw == "the daemon looks first" {
			look()
		}
		p.store("write a completion", plainly, waitSlot+q+count[q], 1)
		count[q]++
		p.store("publish it", pickOrder(flaw == "the index is a release", release, seqCst), waitProd+q, count[q])
		if flaw != "the daemon looks first" {
			look()
		}
		p.mem("wake now, or later", func(x *cpu) bool {
			if x.reg[0] == 0 {
				x.jump(&quiet)
			} else if x.choices = 2; i == len(queues)-1 {
				x.choices = 1
			} else if x.pick == 1 {
				x.jump(&later)
			}
			return true
		})
		p.rmw("begin the next round", seqCst, waitWord, func(x *cpu, v int8) (int8, bool) {
			if x.reg[0] = 0; flaw != "every round is the same" {
				x.reg[1] += waitRound
			}
			if v&asleepBit == 0 {
				x.jump(&quiet)
			}
			return x.reg[1], true
		})
		p.send("futex_wake", func(x *cpu) {
			if x.note[waitFutex] != 0 && x.note[waitFutex+1] != 0 {
				x.choices = 2
			}
			if t := waitFutex + x.pick; x.choices == 2 {
				x.note[t] = 0
			} else {
				x.note[waitFutex], x.note[waitFutex+1] = 0, 0
			}
		})
		p.here(&later)
		p.here(&quiet)
	}
	return p
}

// A thread that sleeps is woken by every completion that its last poll did not find.
func TestWaiting(t *testing.T) {
	const lost = "hangs at: sleep"
	for _, c := range []struct {
		name    string
		threads int8
		queues  []int8
		wrong   []flawed
	}{
		{"one thread", 1, []int8{0, 0}, []flawed{
			{flaw: "no poll behind the announcement", least: sequential, want: lost},
			{flaw: "the daemon looks first", least: sequential, want: lost},
			{flaw: "the thread sleeps in another round", least: sequential, want: lost},
			{flaw: "the index is a release", least: tso, most: tso, want: lost},
			{flaw: "no fence behind the announcement", least: rmo, want: lost},
			{flaw: "the daemon looks by an acquire", least: rmo, want: lost},
			{flaw: "the index is relaxed", least: rmo, want: "not written"},
		}},
		{"two threads", 2, []int8{0, 1}, []flawed{
			{flaw: "a thread wakes no other", least: sequential, want: lost},
			{flaw: "every round is the same", least: sequential, want: lost},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			check(t, func(flaw string) *weakSystem {
				y := &weakSystem{final: func(*world) string { return "" }}
				for i := range c.threads {
					completions := int8(0)
					for _, q := range c.queues {
						if q == i {
							completions++
						}
					}
					y.scripts = append(y.scripts, napper(flaw, i, completions))
				}
				y.scripts = append(y.scripts, waker(flaw, c.queues))
				return y
			}, c.wrong)
		})
	}
}
