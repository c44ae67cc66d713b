package armcheck

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	races = flag.Int64("races", 0, "number of simulated races; 0 means a short run, or $VRDMA_RACES")
	seed  = flag.Uint64("seed", 0, "repeat what this seed does, and tell it")
)

// schedules is how many schedules one random setup is run with.
const schedules = 200

// randomSetup is larger than a search can explore: up to three threads, eight completions.
func randomSetup(r *rand.Rand) (c setup, m memoryModel) {
	c = setup{
		cqs: 1 + int8(r.IntN(maxCQs)), batch: r.IntN(2) == 0, resize: r.IntN(3) == 0, trace: r.IntN(4) == 0, lateAck: r.IntN(2) == 0, pollFirst: r.IntN(2) == 0,
		wrong: []mutation{correct, correct, skipsWhenArmed, byCommand, oneByCommand}[r.IntN(5)],
	}
	if !c.resize && r.IntN(4) == 0 {
		c.destroy, c.lateAck = true, true
	}
	threads := maxThreads - 1
	for _, busy := range []bool{c.resize, c.destroy, c.trace} {
		if busy {
			threads--
		}
	}
	for range 1 + r.IntN(min(3, threads)) {
		c.waiters = append(c.waiters, [][]int8{forAll, forSolicited, inTurn}[r.IntN(3)])
	}
	for range 1 + r.IntN(maxSlots) {
		c.completions = append(c.completions, made{int8(r.IntN(int(c.cqs))), plain + int8(r.IntN(3))})
	}
	return c, memoryModel(r.IntN(3))
}

// simulate runs a system with a random schedule. A thread runs for a random while, and its stores reach memory sooner
// or later. told is called with every move. It returns the number of arms, and what is wrong in the end.
func (y *system) simulate(x *processor, r *rand.Rand, told func(*state, move)) (arms int64, fault string) {
	s := y.start
	var was state
	n := uint32(len(y.programs))
	patience := uint64(1) << r.UintN(6) // moves of one thread in a row, on average
	held := uint64(1) << r.UintN(6)     // moves until one of its stores is seen, likewise
	for t := r.Uint32N(n); ; {
		if r.Uint64()%patience == 0 {
			t = r.Uint32N(n)
		}
		moved := false
		for i := range n { // the first thread from t on that can move
			m := y.choose(r, &s, int8((t+i)%n), held)
			if told != nil {
				was = s
			}
			if moved = y.try(x, &s, m); !moved {
				m = move{m.thread, 0} // it may wait until its stores are seen
				moved = y.try(x, &s, m)
			}
			if moved {
				if told != nil {
					told(&was, m)
				}
				t = (t + i) % n
				break
			}
		}
		if s.broken || !moved {
			break
		}
	}
	for q := range s.queues {
		arms += int64(s.queues[q].arms)
	}
	if s.broken {
		return arms, x.note
	}
	return arms, y.verdict(&s)
}

// choose picks a thread's next move: a step, or sometimes that a store reaches memory.
func (y *system) choose(r *rand.Rand, s *state, t int8, held uint64) move {
	if n := s.threads[t].held; n > 0 && r.Uint64()%held == 0 {
		i := int8(0)
		if y.model == pso {
			i = int8(r.Uint32N(uint32(n)))
		}
		if s.threads[t].drains(y.model, i) {
			return move{t, i}
		}
	}
	return move{t, noDrain}
}

// one runs all schedules of a seed.
func one(seed uint64, told func(*system, *state, move)) (arms int64, fault string) {
	r := rand.New(rand.NewPCG(seed, 1))
	c, m := randomSetup(r)
	y := c.system(m)
	x := new(processor)
	for range schedules {
		var tell func(*state, move)
		if told != nil {
			tell = func(s *state, m move) { told(y, s, m) }
		}
		n, wrong := y.simulate(x, r, tell)
		arms += n
		if wrong != "" {
			return arms, fmt.Sprintf("%v memory, %+v: %s", m, c, wrong)
		}
	}
	return arms, ""
}

// Random schedules of random setups lose no wake-up. A race is a queue that is armed while
// completions are made and others arm, poll and sleep.
func TestSimulatedRaces(t *testing.T) {
	if *seed != 0 {
		repeat(t, *seed)
		return
	}
	count := *races
	if text := os.Getenv("VRDMA_RACES"); count == 0 && text != "" {
		var err error
		if count, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatalf("VRDMA_RACES=%s: want a number", text)
		}
	}
	if count == 0 {
		count = 1_000_000
		if testing.Short() || raceEnabled {
			count /= 20
		}
	}
	first := rand.Uint64N(1 << 40)
	var done atomic.Int64
	var next atomic.Uint64
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for done.Load() < count && !t.Failed() {
				seed := first + next.Add(1)
				arms, fault := one(seed, nil)
				if fault != "" {
					t.Errorf("%s\nTo see it: go test ./internal/testkit/armcheck -run TestSimulatedRaces -seed %d", fault, seed)
				}
				done.Add(arms)
			}
		})
	}
	workers.Wait()
	t.Logf("%d races, by %d setups of %d schedules each", done.Load(), next.Load(), schedules)
}

// repeat prints the schedule that failed.
func repeat(t *testing.T, seed uint64) {
	var story []string
	_, fault := one(seed, func(y *system, s *state, m move) {
		if *s == y.start {
			story = story[:0]
		}
		story = append(story, y.tell(s, m))
	})
	if fault == "" {
		t.Logf("seed %d: nothing is wrong", seed)
		return
	}
	t.Errorf("%s\n  %s", fault, strings.Join(story, "\n  "))
}

// The simulation finds the same faults as the search.
func TestSimulationFinds(t *testing.T) {
	for _, wrong := range []mutation{looksFirst, noFence, shimNoFence, storesPlainly, orNotAtomic, clearsApart, clearsLast, neverClears, commandLowers} {
		x := new(processor)
		r := rand.New(rand.NewPCG(1, uint64(wrong)))
		c := setup{cqs: 1, waiters: [][]int8{forAll, inTurn}, wrong: wrong}
		for i := range int8(maxSlots) { // the last is plain: no later one wakes a waiter that missed it
			c.completions = append(c.completions, made{0, plain + (i+1)%2})
		}
		y, fault, n := c.system(tso), "", 0
		for ; fault == "" && n < 200_000; n++ {
			_, fault = y.simulate(x, r, nil)
		}
		if fault == "" {
			t.Errorf("mistake %d: not found by %d schedules", wrong, n)
		}
		t.Logf("mistake %d: found by schedule %d: %s", wrong, n, fault)
	}
}
