package schedule

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

// worlds are several loops in virtual time.
type worlds struct {
	t       *testing.T
	now     ib.Time
	loops   []*world
	tenants []*dividedTenant
}

// times are a ledger in memory.
type times []ib.Time

func (l times) Exchange(loop int, used ib.Time) (others ib.Time) {
	l[loop] = used
	for i, n := range l {
		if i != loop {
			others += n
		}
	}
	return others
}

// A dividedTenant has a record in each loop, and loads on some.
type dividedTenant struct {
	loads  []*load
	ledger times
}

func newWorlds(t *testing.T, loops int) *worlds {
	w := &worlds{t: t, now: 1}
	for range loops {
		w.loops = append(w.loops, newWorld(t))
	}
	return w
}

// tenant adds a tenant with a NIC of its own, all the time busy, on each of these loops.
func (w *worlds) tenant(weight int, at ...int) *dividedTenant {
	d := &dividedTenant{ledger: make(times, len(w.loops))}
	for i, l := range w.loops {
		t := l.tenant(TenantParams{Weight: weight})
		t.Divide(d.ledger, i)
		size := 0
		if slices.Contains(at, i) {
			size = 64 << 10
		}
		n := l.nic(t, NICParams{}, 4, size) // every loop has a record of every NIC
		if size > 0 {
			d.loads = append(d.loads, n)
		}
	}
	w.tenants = append(w.tenants, d)
	return d
}

// run runs all loops for d: the one that is behind has the next turn.
func (w *worlds) run(d ib.Time) {
	const step = ib.Time(5_000)
	for range d / step {
		w.now += step
		for _, l := range w.loops {
			if l.now < w.now {
				l.run(w.now - l.now) // a turn may take longer
			}
		}
	}
}

// used is the tenant's time on all loops.
func (d *dividedTenant) used() (sum ib.Time) {
	for _, l := range d.loads {
		sum += l.time
	}
	return sum
}

// parts are what each tenant has of the time of one loop, in a run of d.
func (w *worlds) parts(d ib.Time) (parts []float64) {
	var before []ib.Time
	for _, t := range w.tenants {
		before = append(before, t.used())
	}
	w.run(d)
	for i, t := range w.tenants {
		parts = append(parts, float64(t.used()-before[i])/float64(d))
	}
	return parts
}

// TestSharesOverLoops: the sums of the tenants' times over all loops are as the weights, in each 100 ms, as far as a tenant has
// traffic where there is time for it.
func TestSharesOverLoops(t *testing.T) {
	type tenant struct {
		weight int
		at     []int
		want   float64
	}
	for _, c := range []struct {
		name    string
		loops   int
		tenants []tenant
	}{
		{"each on all loops", 2, []tenant{{3, []int{0, 1}, 1.5}, {1, []int{0, 1}, 0.5}}},
		{"a heavy one on both, a light one on one", 2, []tenant{{3, []int{0, 1}, 1.5}, {1, []int{0}, 0.5}}},
		{"one on both, two on one each", 2, []tenant{{1, []int{0, 1}, 2. / 3}, {1, []int{0}, 2. / 3}, {1, []int{1}, 2. / 3}}},
		{"a ring of three", 3, []tenant{{1, []int{0, 1}, 1}, {1, []int{1, 2}, 1}, {1, []int{2, 0}, 1}}},
		{"weights in a ring", 3, []tenant{{2, []int{0, 1}, 1.5}, {1, []int{1, 2}, 0.75}, {1, []int{2, 0}, 0.75}}},
		{"each alone", 2, []tenant{{9, []int{0}, 1}, {1, []int{1}, 1}}},
		{"a heavy one on one loop, a light one on four", 4, []tenant{{1, []int{0, 1, 2, 3}, 3 + 1./57}, {7, []int{0}, 56. / 57}}},
		{"one loop", 1, []tenant{{3, []int{0}, 0.75}, {1, []int{0}, 0.25}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorlds(t, c.loops)
			for _, k := range c.tenants {
				w.tenant(k.weight, k.at...)
			}
			w.run(100_000_000)
			for range 5 {
				for i, got := range w.parts(100_000_000) {
					if want := c.tenants[i].want; math.Abs(got-want) > 0.06*want {
						t.Errorf("tenant %d of weight %d has %.3f of a loop, want %.3f", i, c.tenants[i].weight, got, want)
					}
				}
			}
		})
	}
}

// TestLoopsAreConserved: whatever the weights are and wherever the tenants have traffic, no loop is idle while somebody wants a
// turn, and each tenant has on each loop at least a part of what its weight gives it there.
func TestLoopsAreConserved(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		loops := 2 + r.IntN(3)
		w := newWorlds(t, loops)
		weights := make([]int, loops)
		for range 2 + r.IntN(5) {
			weight := 1 + r.IntN(4)
			var at []int
			for l := range loops {
				if r.IntN(2) == 0 {
					at = append(at, l)
					weights[l] += weight
				}
			}
			w.tenant(weight, at...)
		}
		w.run(200_000_000)
		for l, o := range w.loops {
			if weights[l] > 0 && o.idle > 0 {
				t.Errorf("loop %d was idle for %d ns", l, o.idle)
			}
			for _, k := range o.nics {
				tenant := k.n.tenant
				if k.size == 0 {
					continue
				}
				least := float64(tenant.params.Weight) / float64(weights[l]) / leastPart
				if got := float64(k.time) / 200_000_000; got < 0.7*least {
					t.Errorf("a tenant of weight %d of %d has %.4f of loop %d, want %.4f", tenant.params.Weight, weights[l], got, l, least)
				}
			}
		}
	}
}

// TestDebtEnds: a tenant that ends its traffic on another loop has its whole share soon.
func TestDebtEnds(t *testing.T) {
	w := newWorlds(t, 2)
	a, b := w.tenant(1, 0, 1), w.tenant(1, 0)
	w.run(100_000_000)
	w.loops[1].s.Idle(a.loads[1].n, w.loops[1].now)
	w.run(100_000_000)
	before := [2]ib.Time{a.loads[0].time, b.loads[0].time}
	w.run(100_000_000)
	if x, y := a.loads[0].time-before[0], b.loads[0].time-before[1]; math.Abs(float64(x-y)) > 0.05*float64(x+y) {
		t.Errorf("%d and %d ns", x, y)
	}
}
