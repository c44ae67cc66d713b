package schedule

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

const second = ib.Time(1_000_000_000)

// off returns the relative difference of got from want.
func off(got, want float64) float64 { return math.Abs(got-want) / want }

// TestShares checks that tenants of weights 1, 2 and 4 get these shares of time, whatever the number of their queue pairs and the size of
// their messages.
func TestShares(t *testing.T) {
	weights := []int{1, 2, 4}
	qps, sizes := []int{1, 8, 64}, []int{64, 4 << 10, 1 << 20}
	for i := range 3 {
		for j := range 3 {
			w := newWorld(t)
			var loads []*load
			for k, weight := range weights {
				loads = append(loads, w.nic(w.tenant(TenantParams{Weight: weight}), NICParams{}, qps[(k+i)%3], sizes[(k+j)%3]))
			}
			const d = second / 10
			w.run(d)
			for k, l := range loads {
				if e := off(float64(l.time), float64(d)*float64(weights[k])/7); e > 0.01 {
					t.Errorf("weight %d, %d queue pairs, messages of %d: has %v of %v, %.1f %% off", weights[k], len(l.qps), l.size, l.time, d, 100*e)
				}
			}
			if w.idle > 0 {
				t.Errorf("the loop was idle for %v", w.idle)
			}
		}
	}
}

// TestHeavyShares checks the largest weights that can be declared. A round takes 24 ms.
func TestHeavyShares(t *testing.T) {
	w := newWorld(t)
	heavy, light := w.tenant(TenantParams{Weight: 10_000}), w.tenant(TenantParams{Weight: 2_000})
	a, b := w.nic(heavy, NICParams{}, 1, 64<<10), w.nic(light, NICParams{}, 8, 4<<10)
	w.run(10 * second)
	if r := float64(a.time) / float64(b.time); off(r, 5) > 0.05 {
		t.Errorf("weights of 10000 and 2000 have %v and %v: %.2f to 1", a.time, b.time, r)
	}
}

// jain is Jain's index of fairness.
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	return sum * sum / (float64(len(x)) * squares)
}

// TestJain checks that 16 tenants with different message sizes, and different numbers of NICs and queue pairs, get equal shares.
func TestJain(t *testing.T) {
	w := newWorld(t)
	loads := make([][]*load, 16)
	for i := range loads {
		tenant := w.tenant(TenantParams{})
		for j := range i%4 + 1 {
			loads[i] = append(loads[i], w.nic(tenant, NICParams{}, 1<<(i%7), 64<<(2*((i+j)%8))))
		}
	}
	w.run(second / 10)
	var times []float64
	for _, of := range loads {
		sum := 0.0
		var within []float64
		for _, l := range of {
			sum += float64(l.time)
			within = append(within, float64(l.time))
		}
		times = append(times, sum)
		if j := jain(within); j < 0.99 {
			t.Errorf("NICs of one tenant: Jain's index is %.4f: %v", j, within)
		}
	}
	if j := jain(times); j < 0.999 {
		t.Errorf("Jain's index is %.4f: %v", j, times)
	}
}

// A window records the maximum traffic in any 10 ms.
type window struct {
	at    []ib.Time
	n     []int
	first int
	sum   int
	most  int
}

func (w *window) add(now ib.Time, n int) {
	w.at, w.n = append(w.at, now), append(w.n, n)
	for w.sum += n; w.at[w.first] <= now-second/100; w.first++ {
		w.sum -= w.n[w.first]
	}
	w.most = max(w.most, w.sum)
}

// TestCapBytes checks that traffic in both directions keeps to its rate, at most a burst above it, and that others use the rest.
func TestCapBytes(t *testing.T) {
	for _, gbit := range []float64{0.1, 1, 10} {
		for _, size := range []int{64, 4 << 10, 1 << 20} {
			for _, how := range []string{"nic", "tenant", "in", "tenant in"} {
				rate := uint64(gbit * 1e9 / 8)
				if float64(size) < 4096 && gbit > 1 {
					continue // so many messages take more time than the loop has
				}
				t.Run(fmt.Sprintf("%s/%gG/%d", how, gbit, size), func(t *testing.T) {
					w := newWorld(t)
					var l *load
					switch how {
					case "nic":
						l = w.nic(w.tenant(TenantParams{}), NICParams{Rate: Rate{Out: rate}}, 4, size)
					case "tenant":
						l = w.nic(w.tenant(TenantParams{Rate: Rate{Out: rate}}), NICParams{}, 4, size)
					case "in":
						l = w.nic(w.tenant(TenantParams{}), NICParams{}, 4, size)
						l.to = w.nic(w.tenant(TenantParams{}), NICParams{Rate: Rate{In: rate}}, 1, 0)
					case "tenant in":
						l = w.nic(w.tenant(TenantParams{}), NICParams{}, 4, size)
						l.to = w.nic(w.tenant(TenantParams{Rate: Rate{In: rate}}), NICParams{}, 1, 0)
					}
					other := w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 1<<20)
					var win window
					w.each = func(of *load, now ib.Time, n int) {
						if of == l {
							win.add(now, n)
						}
					}
					w.run(second / 20) // use up the saved burst
					bytes, turns, used := l.bytes, l.turns, l.time+other.time
					w.run(second / 5)
					burst := max(rate/1000, leastBurst)
					if got := float64(l.bytes-bytes) * 5; off(got, float64(rate)) > 0.02 {
						t.Errorf("%g bytes a second, the cap is %d", got, rate)
					}
					// Of a turn, the time that it takes, and a packet.
					if most := rate/100 + burst + rate/100_000 + mtu; uint64(win.most) > most {
						t.Errorf("%d bytes in 10 ms, want %d at most", win.most, most)
					}
					if n := l.turns - turns; size >= mtu && n > (l.bytes-bytes)/int(min(rate/4000, mostLeast))*2 {
						t.Errorf("%d bytes in %d turns", l.bytes-bytes, n)
					}
					if w.idle > 0 {
						t.Errorf("the loop was idle for %v", w.idle)
					}
					if used = l.time + other.time - used; used < second/5*97/100 {
						t.Errorf("only %v of %v was used", used, second/5)
					}
				})
			}
		}
	}
}

// TestCapMessages is TestCapBytes for messages.
func TestCapMessages(t *testing.T) {
	for _, rate := range []uint64{10_000, 100_000, 500_000} {
		for _, in := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/in=%v", rate, in), func(t *testing.T) {
				w := newWorld(t)
				l := w.nic(w.tenant(TenantParams{}), NICParams{}, 4, 64)
				if in {
					l.to = w.nic(w.tenant(TenantParams{}), NICParams{Rate: Rate{MessagesIn: rate}}, 1, 0)
				} else {
					w.s.SetNIC(l.n, NICParams{Rate: Rate{MessagesOut: rate}}, w.now)
				}
				w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 1<<20)
				var win window
				w.each = func(of *load, now ib.Time, n int) {
					if of == l {
						win.add(now, 1)
					}
				}
				w.run(second / 20)
				before := l.msgs
				w.run(second / 5)
				if got := float64(l.msgs-before) * 5; off(got, float64(rate)) > 0.02 {
					t.Errorf("%g messages a second, the cap is %d", got, rate)
				}
				if most := rate/100 + max(rate/1000, leastMessages) + 1; uint64(win.most) > most {
					t.Errorf("%d messages in 10 ms, want %d at most", win.most, most)
				}
			})
		}
	}
}

// TestCapOfLateLoop checks that a loop that sometimes has no processor makes up for lost time, but not all at once. In 10 ms it may exceed
// the rate by a burst if it is rarely late, and by half of the rate if it is always late.
func TestCapOfLateLoop(t *testing.T) {
	for _, c := range []struct {
		rate Rate
		size int
	}{{Rate{Out: 125_000_000}, 64 << 10}, {Rate{Out: 1_250_000_000}, 64 << 10}, {Rate{MessagesOut: 10_000}, 64}, {Rate{MessagesOut: 500_000}, 64}} {
		for _, late := range []struct {
			runs, sleeps ib.Time
			above        float64 // excess relative to the rate in 10 ms
		}{{196_000_000, 4_000_000, 0.1}, {58_000_000, 2_000_000, 0.1}, {15_000_000, 5_000_000, 0.5}} {
			testLate(t, c.rate, c.size, late.runs, late.sleeps, late.above)
		}
	}
}

func testLate(t *testing.T, rates Rate, size int, runs, sleeps ib.Time, above float64) {
	for _, whose := range cappedsFor(rates) {
		w := newWorld(t)
		sent := w.capped(whose, rates, size)
		var win window
		w.each = func(_ *load, now ib.Time, n int) {
			if rates.Out == 0 {
				n = 1
			}
			win.add(now, n)
		}
		period := runs + sleeps
		run := func() {
			for range second / period {
				w.run(runs)
				w.now += sleeps
			}
		}
		run()
		before := sent()
		run()
		rate := float64(max(rates.Out, rates.MessagesOut))
		got := float64(sent()-before) * float64(second) / float64(second/period*period)
		if got < 0.98*rate || got > 1.02*rate {
			t.Errorf("%s, %+v, late for %v of %v: %.0f in a second", whose, rates, sleeps, period, got)
		}
		burst := max(rate/1000, leastBurst)
		if rates.Out == 0 {
			burst = max(rate/1000, leastMessages)
		}
		most := rate/100 + max(burst, rate/100*above)
		if float64(win.most) > most+rate/100_000+mtu {
			t.Errorf("%s, %+v, late for %v of %v: %d in 10 ms, want %.0f", whose, rates, sleeps, period, win.most, most)
		}
	}
}

// TestCapOfRestlessLoop checks that a loop that often wakes late, by microseconds and by milliseconds, loses no rate.
func TestCapOfRestlessLoop(t *testing.T) {
	for _, c := range []struct {
		rate Rate
		size int
	}{{Rate{Out: 12_500_000}, 64 << 10}, {Rate{Out: 1_250_000_000}, 64 << 10}, {Rate{MessagesOut: 10_000}, 64}, {Rate{MessagesOut: 100_000}, 64}, {Rate{MessagesOut: 500_000}, 64}} {
		all := cappedsFor(c.rate)
		for i := range max(3, len(all)) {
			seed, whose := uint64(i%3), all[i%len(all)]
			r := rand.New(rand.NewPCG(1, seed))
			w := newWorld(t)
			w.late = func() ib.Time {
				switch r.IntN(50) {
				case 0:
					return ib.Time(r.IntN(5_000_000))
				case 1, 2, 3, 4, 5:
					return ib.Time(r.IntN(900_000))
				}
				return ib.Time(r.IntN(100_000))
			}
			sent := w.capped(whose, c.rate, c.size)
			w.run(second)
			before, begin := sent(), w.now
			w.run(2 * second)
			got, rate := float64(sent()-before), float64(max(c.rate.Out, c.rate.MessagesOut))
			if e := off(got*float64(second)/float64(w.now-begin), rate); e > 0.01 {
				t.Errorf("%s, %+v, %d: %.0f in %v, %.2f %% off", whose, c.rate, seed, got, w.now-begin, 100*e)
			}
		}
	}
}

// TestBurst checks that after a pause a burst passes at once.
func TestBurst(t *testing.T) {
	const burst = 4 << 20
	w := newWorld(t)
	l := w.nic(w.tenant(TenantParams{}), NICParams{Rate: Rate{Out: 1e9 / 8, Burst: burst}}, 1, 1<<20)
	w.run(second / 1000)
	if want := burst + 125_000; off(float64(l.bytes), float64(want)) > 0.05 {
		t.Errorf("%d bytes in the first millisecond, want %d", l.bytes, want)
	}
}

// TestCapsChangeLive checks that caps that are set, changed and removed take effect at once.
func TestCapsChangeLive(t *testing.T) {
	w := newWorld(t)
	tenant := w.tenant(TenantParams{})
	l := w.nic(tenant, NICParams{}, 1, 64<<10)
	measure := func() float64 {
		w.run(second / 100) // what was saved up is used up
		before := l.bytes
		w.run(second / 10)
		return float64(l.bytes-before) * 10
	}
	free := measure()
	for _, set := range []func(rate uint64){
		func(rate uint64) { w.s.SetNIC(l.n, NICParams{Rate: Rate{Out: rate}}, w.now) },
		func(rate uint64) { w.s.SetTenant(tenant, TenantParams{Rate: Rate{Out: rate}}, w.now) },
	} {
		for _, rate := range []uint64{1e9, 1e8, 1e9} {
			if set(rate); off(measure(), float64(rate)) > 0.02 {
				t.Errorf("%g bytes a second, want %d", measure(), rate)
			}
		}
		if set(0); off(measure(), free) > 0.05 {
			t.Errorf("%g bytes a second without a cap, want %g", measure(), free)
		}
	}
}

// TestGuarantee checks that a NIC gets its guarantee beside 15 others, but no more than that if it exceeds its share, and that others use
// the rest.
func TestGuarantee(t *testing.T) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		alone := newWorld(t)
		l := alone.nic(alone.tenant(TenantParams{}), NICParams{}, 1, size)
		alone.run(second / 10)
		promise := float64(l.bytes) * 10 / 4
		w := newWorld(t)
		l = w.nic(w.tenant(TenantParams{}), NICParams{Guarantee: uint64(promise)}, 1, size)
		var others []*load
		for i := range 15 {
			others = append(others, w.nic(w.tenant(TenantParams{}), NICParams{}, 8, 64<<(i%8*2)))
		}
		w.run(second / 5)
		if got := float64(l.bytes) * 5; got < 0.95*promise || got > 1.05*promise {
			t.Errorf("messages of %d: %g bytes in a second, %g are guaranteed", size, got, promise)
		}
		var times []float64
		for _, o := range others {
			times = append(times, float64(o.time))
		}
		if j := jain(times); j < 0.999 {
			t.Errorf("the others: Jain's index is %.4f", j)
		}
	}
}

// TestGuaranteeOfTinyMessages checks that a guarantee in bytes does not give the whole loop to messages of one byte.
func TestGuaranteeOfTinyMessages(t *testing.T) {
	w := newWorld(t)
	w.nic(w.tenant(TenantParams{}), NICParams{Guarantee: 100_000_000}, 64, 1)
	o := w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 64<<10)
	w.run(second / 10)
	if o.time < second/10*45/100 {
		t.Errorf("the other tenant has %v of %v", o.time, second/10)
	}
}

// TestWorkConservation checks that a single active NIC gets everything, whatever shares others have.
func TestWorkConservation(t *testing.T) {
	w := newWorld(t)
	one := w.nic(w.tenant(TenantParams{Weight: 1}), NICParams{}, 1, 4096)
	for i := range 15 {
		w.nic(w.tenant(TenantParams{Weight: i + 1}), NICParams{}, 1, 0)
	}
	w.run(second / 100)
	if w.idle > 0 || off(float64(one.time), float64(second/100)) > 0.01 {
		t.Errorf("has %v of %v, idle %v", one.time, second/100, w.idle)
	}
	// Time used alone is not charged later.
	two := w.nic(w.tenant(TenantParams{Weight: 1}), NICParams{}, 1, 4096)
	before := one.time
	w.run(second / 100)
	if a, b := one.time-before, two.time; off(float64(a), float64(b)) > 0.02 {
		t.Errorf("then %v and %v", a, b)
	}
}

// TestSparse checks that a tenant that uses less than its share waits for at most one turn of another, however many others there are.
func TestSparse(t *testing.T) {
	w := newWorld(t)
	l := w.slow(w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 64), 50_000)
	for range 15 {
		w.nic(w.tenant(TenantParams{}), NICParams{}, 8, 1<<20)
	}
	w.run(second / 10)
	slices.Sort(l.delays)
	if p50, p99 := l.delays[len(l.delays)/2], l.delays[len(l.delays)*99/100]; p50 > 10_000 || p99 > 30_000 {
		t.Errorf("waits p50 %d ns, p99 %d", p50, p99)
	}
}

// TestLatencyClass checks that a NIC of the class waits for at most a short turn, keeps to its cap, and takes at most half of the loop.
func TestLatencyClass(t *testing.T) {
	class := NICParams{Class: Latency, Rate: Rate{Out: 1e9 / 8}}
	w := newWorld(t)
	l := w.slow(w.nic(w.tenant(TenantParams{}), class, 1, 64), 20_000)
	for range 15 {
		w.nic(w.tenant(TenantParams{}), NICParams{}, 8, 1<<20)
	}
	w.run(second / 10)
	slices.Sort(l.delays)
	short := 128*perMessage + shortTurn/20
	if most := l.delays[len(l.delays)-1]; most > wholeTurn/20+64*perMessage {
		t.Errorf("waits at most %d ns", most)
	}
	if p99 := l.delays[len(l.delays)*99/100]; p99 > short {
		t.Errorf("waits p99 %d ns, want %d", p99, short)
	}

	w = newWorld(t)
	l = w.nic(w.tenant(TenantParams{}), class, 4, 64<<10)
	w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 1<<20)
	w.run(second)
	if off(float64(l.bytes), 1e9/8) > 0.02 {
		t.Errorf("over its cap: %d bytes in a second", l.bytes)
	}

	w = newWorld(t)
	w.nic(w.tenant(TenantParams{}), class, 64, 1)
	o := w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 1<<20)
	w.run(second / 10)
	if o.time < second/10*45/100 {
		t.Errorf("messages of one byte in the class leave %v of %v", o.time, second/10)
	}
}

// TestReadCharging checks that the responder's NIC is charged for its responses and the requester's for incoming data: both caps hold.
func TestReadCharging(t *testing.T) {
	for _, c := range []struct{ out, in, want uint64 }{{1e8, 0, 1e8}, {0, 1e8, 1e8}, {3e8, 1e8, 1e8}, {1e8, 3e8, 1e8}} {
		w := newWorld(t)
		responder := w.nic(w.tenant(TenantParams{}), NICParams{Rate: Rate{Out: c.out}}, 2, 1<<20)
		responder.to = w.nic(w.tenant(TenantParams{}), NICParams{Rate: Rate{In: c.in}}, 1, 0)
		w.run(second)
		if off(float64(responder.bytes), float64(c.want)) > 0.02 {
			t.Errorf("out %d, in %d: %d bytes in a second", c.out, c.in, responder.bytes)
		}
	}
}

// TestMisbehaving checks that other tenants keep their share beside a tenant with very many NICs, queue pairs and one-byte messages, one
// that becomes active and idle all the time, and one over its cap.
func TestMisbehaving(t *testing.T) {
	w := newWorld(t)
	many := w.tenant(TenantParams{})
	for range 1000 {
		w.nic(many, NICParams{}, 10, 1)
	}
	hops := w.tenant(TenantParams{})
	for range 100 {
		w.slow(w.nic(hops, NICParams{}, 1, 200<<10), 1)
	}
	capped := w.tenant(TenantParams{Rate: Rate{MessagesOut: 10_000}})
	for range 1000 {
		w.nic(capped, NICParams{}, 10, 1)
	}
	good := w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 64<<10)
	w.run(second / 10)
	if want := second / 10 / 3; good.time < want*95/100 {
		t.Errorf("has %v, its share is %v", good.time, want)
	}
}

// TestThrottledTime checks that the time over a cap is counted.
func TestThrottledTime(t *testing.T) {
	w := newWorld(t)
	l := w.nic(w.tenant(TenantParams{}), NICParams{Rate: Rate{Out: 1e8}}, 1, 64<<10)
	m := w.nic(w.tenant(TenantParams{Rate: Rate{Out: 1e8}}), NICParams{}, 1, 64<<10)
	in := w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 64<<10)
	in.to = w.nic(w.tenant(TenantParams{}), NICParams{Rate: Rate{In: 1e8}}, 1, 0)
	w.run(second / 10)
	for i, d := range []ib.Time{w.s.Used(l.n).Throttled, w.s.Used(m.n).Throttled, w.s.Used(in.to.n).Held} {
		if d < second/10*90/100 || d > second/10 {
			t.Errorf("%d: throttled for %v of %v", i, d, second/10)
		}
	}
}

// TestLeave checks that a NIC can be removed in any state.
func TestLeave(t *testing.T) {
	for _, p := range []NICParams{{}, {Rate: Rate{Out: 1e6, In: 1e6}}, {Guarantee: 1e9}, {Guarantee: 1000}, {Class: Latency, Rate: Rate{Out: 1e6}}} {
		w := newWorld(t)
		tenant := w.tenant(TenantParams{})
		l := w.nic(tenant, p, 1, 64<<10)
		from := w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 64<<10)
		from.to = l
		w.run(second / 100)
		w.s.Leave(l.n, w.now)
		from.to = nil
		w.s.Ready(l.n, w.now)
		w.nics = w.nics[1:]
		w.s.Ready(from.n, w.now)
		before := from.bytes
		w.run(second / 100)
		if w.s.sole != from.n || w.s.Limited() || w.s.Gated() || w.s.Due() != 0 || w.s.tenants.members != 0 || len(tenant.nics) != 0 || from.bytes == before {
			t.Errorf("%+v leaves something behind", p)
		}
	}
}

// TestDoesNotAllocate checks that no call of a turn allocates.
func TestDoesNotAllocate(t *testing.T) {
	w := newWorld(t)
	for i := range 16 {
		w.nic(w.tenant(TenantParams{Rate: Rate{Out: 1e8 * uint64(i%3)}}), NICParams{Guarantee: 1e7 * uint64(i%2), Rate: Rate{Out: 1e8}}, 1, 4096)
	}
	if n := testing.AllocsPerRun(100, func() { w.run(100_000) }); n != 0 {
		t.Errorf("%g allocations in 100 µs", n)
	}
}

// BenchmarkDecision measures the scheduler's cost of a turn: Next, Budget, Out and Charge.
func BenchmarkDecision(b *testing.B) {
	for _, capped := range []bool{false, true} {
		for _, tenants := range []int{1, 2, 16, 1000, 16384} {
			b.Run(fmt.Sprintf("capped=%v/tenants=%d", capped, tenants), func(b *testing.B) {
				w := newWorld(b)
				p := NICParams{}
				if capped {
					p.Rate.Out = 1e12
				}
				for range tenants {
					w.nic(w.tenant(TenantParams{}), p, 1, 64)
				}
				s, now := &w.s, w.now
				b.ReportAllocs()
				for b.Loop() {
					n := s.Next(now)
					if s.Limited() {
						s.Budget(n, wholeTurn, now)
						s.Out(n, 4096, 1)
					}
					s.Charge(n, 1000)
					now += 1000
				}
			})
		}
	}
}

// BenchmarkWake measures a NIC that becomes ready, has a turn and is idle: the scheduler's cost of a single message.
func BenchmarkWake(b *testing.B) {
	for _, nics := range []int{1, 2, 1000} {
		b.Run(fmt.Sprintf("nics=%d", nics), func(b *testing.B) {
			w := newWorld(b)
			for range nics {
				w.nic(w.tenant(TenantParams{}), NICParams{}, 1, 0)
			}
			s, now := &w.s, w.now
			for i := 0; b.Loop(); i++ {
				n := w.nics[i%nics].n
				s.Ready(n, now)
				if s.Next(now) != n {
					b.Fatal("another's turn")
				}
				s.Idle(n, now)
				now += 1000
			}
		})
	}
}

// TestInherit: a NIC that moves between schedulers, with its caps, never exceeds them, and loses little.
func TestInherit(t *testing.T) {
	const rate, step, steps = 1_000_000_000, ib.Time(20_000), 50_000
	for _, of := range []string{"the NIC", "the tenant"} {
		r := rand.New(rand.NewPCG(1, 2))
		var s [3]Scheduler
		var nics [3]NIC
		now := ib.Time(1)
		for i := range s {
			tenant := NewTenant("red")
			s[i].Join(&nics[i], tenant, now)
			if of == "the NIC" {
				s[i].SetNIC(&nics[i], NICParams{Rate: Rate{Out: rate}}, now)
			} else {
				s[i].SetTenant(tenant, TenantParams{Rate: Rate{Out: rate}}, now)
			}
		}
		sent, at := 0, 0
		for range steps {
			now += step
			if to := r.IntN(len(s)); to != at && r.IntN(10) == 0 {
				s[to].Inherit(&nics[to], &nics[at], now)
				s[at].Idle(&nics[at], now)
				at = to
			}
			s[at].Wake(now)
			s[at].Ready(&nics[at], now)
			for n := s[at].Next(now); n != nil; n = s[at].Next(now) {
				bytes := s[at].Budget(n, 64<<10, now)
				s[at].Out(n, bytes, 1)
				s[at].Charge(n, 1_000)
				sent += bytes
			}
		}
		allowed := rate / 1_000_000_000 * int(step) * steps
		if most := allowed + rate/1000 + 64<<10; sent > most || sent < allowed*9/10 {
			t.Errorf("a cap of %s: %d bytes, want %d to %d", of, sent, allowed*9/10, most)
		}
	}
}
