package doctor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

const groupProcessors = "processors"

var processors = []Check{
	{group: groupProcessors, name: "count", needs: everything, do: "figures of one processor say nothing: every hand-over is a switch", look: count},
	{group: groupProcessors, name: "SMT", helps: []string{"speed"}, do: "", look: smt},
	{group: groupProcessors, name: "governor", helps: everything, do: "cpupower frequency-set -g performance, for figures that repeat", look: governor},
	{group: groupProcessors, name: "steal", helps: everything, do: "the host of this virtual machine takes processor time: use a quieter one, or more rounds", look: steal},
	{group: groupProcessors, name: "distance", helps: []string{"speed"}, do: "a message costs at least this: use processors of one socket", look: distance},
}

func count(*Machine) (Outcome, string) {
	n := runtime.NumCPU()
	if n < 2 {
		return No, "1"
	}
	return Yes, strconv.Itoa(n)
}

func smt(m *Machine) (Outcome, string) {
	switch text, err := m.read("sys/devices/system/cpu/smt/active"); {
	case err != nil:
		return Unknown, "the kernel does not tell"
	case text == "1":
		return Yes, "two processors may be one core"
	}
	return Yes, "every processor is a core"
}

func governor(m *Machine) (Outcome, string) {
	text, err := m.read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	switch {
	case err != nil:
		return Unknown, "no cpufreq (a virtual machine?)"
	case text != "performance":
		return No, text
	}
	return Yes, text
}

// stealTime is how long steal is watched; stealMost is the tolerated share in percent.
const (
	stealTime = 300 * time.Millisecond
	stealMost = 2
)

func steal(m *Machine) (Outcome, string) {
	before, err := ticks(m)
	time.Sleep(stealTime)
	after, err2 := ticks(m)
	if err := errors.Join(err, err2); err != nil {
		return Unknown, err.Error()
	}
	share := 0.0
	if all := after.All - before.All; all > 0 {
		share = 100 * (after.Steal - before.Steal) / all
	}
	text := fmt.Sprintf("%.1f %%", share)
	if share > stealMost {
		return No, text
	}
	return Yes, text
}

func ticks(m *Machine) (experiment.Ticks, error) {
	text, err := m.read("proc/stat")
	if err != nil {
		return experiment.Ticks{}, err
	}
	return experiment.ParseTicks(text)
}

// rounds is how often a word is passed back and forth.
const rounds = 2000

// distance measures how long a word takes from one processor to another.
func distance(*Machine) (Outcome, string) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return Unknown, err.Error()
	}
	var list []int
	for i := 0; i < 8*len(set)*8 && len(list) < 2; i++ {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	if len(list) < 2 {
		return Unknown, "there is one processor"
	}
	var times []time.Duration
	for range 5 {
		times = append(times, pingPong(list[0], list[1]))
	}
	return Yes, fmt.Sprintf("%d ns", slices.Min(times).Nanoseconds())
}

// pingPong returns half the time of a round trip between two processors.
func pingPong(a, b int) time.Duration {
	var word atomic.Uint32
	var wait sync.WaitGroup
	on := func(cpu int, f func()) {
		wait.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with its affinity
			var set unix.CPUSet
			set.Set(cpu)
			unix.SchedSetaffinity(0, &set) // else the value would be that of one processor
			f()
		})
	}
	begin := time.Now()
	until := func(v uint32) {
		for i := 0; word.Load() != v; i++ {
			if i%4096 == 4095 {
				runtime.Gosched()
			}
		}
	}
	on(a, func() {
		for i := range uint32(rounds) {
			word.Store(2*i + 1)
			until(2*i + 2)
		}
	})
	on(b, func() {
		for i := range uint32(rounds) {
			until(2*i + 1)
			word.Store(2*i + 2)
		}
	})
	wait.Wait()
	return time.Since(begin) / (2 * rounds)
}
