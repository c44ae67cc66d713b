package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// qos measures tenants of one daemon: shares, caps, guarantees and latency. The values are the daemon's own counters over its own
// clock.
func (t *Table) qos() part {
	q := qosProbes{t.Lab}
	row := func(what, unit string, bound float64, atMost bool) speedtable.Row {
		return speedtable.Row{What: what, Ours: speedtable.Series{Unit: unit}, Bound: bound, AtMost: atMost}
	}
	type line struct {
		row   speedtable.Row
		probe probe.Probe
	}
	lines := []line{
		{row("tenants of weights 1, 2, 4 with 64 B, 4 KiB, 1 MiB: worst share of the loop's time, error", "%", 5, true), q.shareError(0)},
		{row("tenants of weights 1, 2, 4 with 1 MiB, 64 B, 4 KiB: worst share of the loop's time, error", "%", 5, true), q.shareError(2)},
		{row("16 equal tenants, 4 KiB to 1 MiB: Jain's index", "", 0.99, false), q.jain()},
	}
	for _, c := range []struct {
		name, spec string
		bytes      float64
	}{{"0.1 Gb/s", "100Mbit", 1e8 / 8}, {"1 Gb/s", "1Gbit", 1e9 / 8}, {"10 Gb/s", "10Gbit", 1e10 / 8}} {
		lines = append(lines, line{row("cap of "+c.name+": error", "%", 2, true), q.capError("rate: {out: "+c.spec+"}", c.bytes, 64<<10)})
	}
	for _, c := range []struct {
		name string
		rate float64
	}{{"10 000", 10e3}, {"100 000", 100e3}, {"500 000", 500e3}} {
		lines = append(lines, line{row("cap of "+c.name+" messages a second: error", "%", 2, true), q.capError(fmt.Sprintf("rate: {messages: {out: %.0f}}", c.rate), c.rate, 64)})
	}
	lines = append(lines,
		line{row("guarantee of a quarter, one of 16 tenants: of it", "", 0.95, false), q.guarantee()},
		line{row("one of 16 tenants with shares, the others idle: of alone", "", 0.97, false), q.conservation()},
		line{row("a tenant and one with a cap: sum, of alone", "", 0.97, false), q.remainder()},
		line{row("doorbell to turn in class latency beside a bulk tenant, both asleep on events: median", "s", 10e-6, true), q.inside(50)},
		line{row("doorbell to turn in class latency beside a bulk tenant, both asleep on events: 99 %", "s", 60e-6, true), q.inside(99)},
		line{row("send latency in class latency beside a bulk tenant: of alone", "", 3, true), q.beside()},
		line{row("a tenant beside one with 10 000 QPs, errors, reconnects, one-byte sends: of half of alone", "", 0.9, false), q.misbehaving()},
		line{row("one NIC beside 1000 idle ones: of alone", "", 0.95, false), q.crowded()},
		line{row("vrdma apply of 1000 NICs, 100 networks and 10 000 rules", "s", 2, true), q.applying()},
		line{row("a daemon with 1000 NICs that nobody uses: of a processor", "%", 1, true), q.idling()},
	)
	p := part{name: "qos"}
	probes, sources := make([]probe.Probe, len(lines)), make([]source, len(lines))
	for i, l := range lines {
		p.rows = append(p.rows, l.row)
		probes[i], sources[i] = l.probe, source{i, alone}
	}
	p.measure = func(ctx context.Context, rows []speedtable.Row) error {
		return t.fill(ctx, t.Rounds, probes, rows, sources)
	}
	return p
}

// qosProbes makes the probes of part qos.
type qosProbes struct{ lab *testbed.Lab }

// probe measures with a daemon of its own. It raises a value of 0 slightly, because a probe without a value is tried again.
func (q qosProbes) probe(name, unit string, all []tenant, f func(context.Context, *tenantDaemon) (float64, error)) probe.Probe {
	return probe.Probe{Name: name, Unit: unit, Measure: func(ctx context.Context) (drivers.Reading, error) {
		h, err := q.open(ctx, all)
		if err != nil {
			return drivers.Reading{}, err
		}
		defer h.close()
		v, err := f(ctx, h)
		return drivers.Reading{Value: max(v, 1e-6)}, err
	}}
}

// shareError measures the worst error of a tenant's share of the loop's time. Message sizes and numbers of queue pairs differ; turn
// rotates them among the tenants.
func (q qosProbes) shareError(turn int) probe.Probe {
	loads := []tenant{tenant{}.sending(64, 64), tenant{}.sending(4<<10, 8), tenant{}.sending(1<<20, 1)}
	var all []tenant
	for i := range loads {
		c := loads[(i+turn)%len(loads)]
		c.name, c.tenantSpec = fmt.Sprintf("w%d", 1<<i), fmt.Sprintf("weight: %d", 1<<i)
		all = append(all, c)
	}
	return q.probe(fmt.Sprintf("shares 1:2:4, moved by %d", turn), "%", all, func(ctx context.Context, h *tenantDaemon) (float64, error) {
		got, err := h.measure(ctx, all)
		sum, worst := 0.0, 0.0
		for _, u := range got {
			sum += u.loop
		}
		for i, u := range got {
			worst = max(worst, math.Abs(u.loop/sum*7/float64(int(1)<<i)-1))
		}
		return 100 * worst, err
	})
}

// equals returns n tenants that differ only in what they send.
func equals(n int, size func(i int) int) (all []tenant) {
	for i := range n {
		all = append(all, tenant{name: fmt.Sprintf("t%d", i)}.sending(size(i), 1+i%4))
	}
	return all
}

// bulk is the message size of a tenant whose bandwidth is measured.
func bulk(int) int { return 64 << 10 }

func (q qosProbes) jain() probe.Probe {
	all := equals(16, func(i int) int { return 4 << 10 << (2 * (i % 5)) })
	return q.probe("16 tenants", "", all, func(ctx context.Context, h *tenantDaemon) (float64, error) {
		got, err := h.measure(ctx, all)
		sum, squares := 0.0, 0.0
		for _, u := range got {
			sum += u.loop
			squares += u.loop * u.loop
		}
		return sum * sum / (squares * float64(len(all))), err
	})
}

// capError measures how far a rate is from its cap, in bytes or, for small messages, in messages.
func (q qosProbes) capError(spec string, want float64, size int) probe.Probe {
	all := []tenant{tenant{name: "one", nicSpec: spec}.sending(size, 4)}
	return q.probe(spec, "%", all, func(ctx context.Context, h *tenantDaemon) (float64, error) {
		got, err := h.measure(ctx, all)
		if err != nil {
			return 0, err
		}
		v := got[0].bytes
		if size == 64 {
			v = got[0].messages
		}
		return 100 * math.Abs(v/want-1), nil
	})
}

// qosPairs is how often two values are measured in turn. The speed of a virtual machine may double from one second to the next.
const qosPairs = 5

// alternately measures two values in turn and returns their medians.
func alternately(a, b func() (float64, error)) (float64, float64, error) {
	var s [2]speedtable.Series
	for range qosPairs {
		for i, f := range []func() (float64, error){a, b} {
			v, err := f()
			if err != nil {
				return 0, 0, err
			}
			s[i].Add(v)
		}
	}
	return s[0].Median(), s[1].Median(), nil
}

// bytesPerSecond measures how much the tenants send together.
func (h *tenantDaemon) bytesPerSecond(ctx context.Context, all []tenant) func() (float64, error) {
	return func() (float64, error) {
		got, err := h.measure(ctx, all)
		v := 0.0
		for _, u := range got {
			v += u.bytes
		}
		return v, err
	}
}

// amongIdle measures the first tenant beside idle ones, against a daemon that has it alone.
func (q qosProbes) amongIdle(name string, all []tenant) probe.Probe {
	return q.probe(name, "", all, func(ctx context.Context, h *tenantDaemon) (float64, error) {
		lone, err := q.open(ctx, all[:1])
		if err != nil {
			return 0, err
		}
		defer lone.close()
		alone, beside, err := alternately(lone.bytesPerSecond(ctx, all[:1]), h.bytesPerSecond(ctx, all[:1]))
		return beside / alone, err
	})
}

func (q qosProbes) conservation() probe.Probe {
	all := equals(16, bulk)
	for i := range all {
		all[i].tenantSpec = fmt.Sprintf("weight: %d", i+1)
	}
	return q.amongIdle("one of 16, the others idle", all)
}

// crowded measures a NIC beside 1000 idle ones.
func (q qosProbes) crowded() probe.Probe {
	return q.amongIdle("beside 1000 idle NICs", equals(501, bulk))
}

// remainder measures a tenant and a capped one together.
func (q qosProbes) remainder() probe.Probe {
	all := equals(2, bulk)
	all[1].nicSpec = "rate: {out: 10Gbit}"
	return q.probe("beside a capped tenant", "", all, func(ctx context.Context, h *tenantDaemon) (float64, error) {
		alone, both, err := alternately(h.bytesPerSecond(ctx, all[:1]), h.bytesPerSecond(ctx, all))
		return both / alone, err
	})
}

// guarantee measures a NIC that is guaranteed a quarter of its bandwidth alone.
func (q qosProbes) guarantee() probe.Probe {
	return probe.Probe{Name: "guarantee of a quarter", Measure: func(ctx context.Context) (drivers.Reading, error) {
		all := equals(16, bulk)
		first := q.probe("", "", all[:1], func(ctx context.Context, h *tenantDaemon) (float64, error) { return h.bytesPerSecond(ctx, all[:1])() })
		r, err := first.Measure(ctx)
		if err != nil {
			return r, err
		}
		quarter := r.Value / 4
		all[0].nicSpec = fmt.Sprintf("guarantee: %.0fbit", quarter*8)
		beside := q.probe("", "", all, func(ctx context.Context, h *tenantDaemon) (float64, error) {
			got, err := h.measure(ctx, all)
			if err != nil {
				return 0, err
			}
			return got[0].bytes / quarter, nil
		})
		return beside.Measure(ctx)
	}}
}

// lateAndBulk returns a tenant of class latency and a bulk tenant.
func lateAndBulk() []tenant {
	return []tenant{{name: "lat", nicSpec: "class: latency, rate: {out: 1Gbit}"}, tenant{name: "bulk"}.sending(1<<20, 1)}
}

// latency is the median of ib_send_lat between the NICs of a tenant, in µs.
func (h *tenantDaemon) latency(ctx context.Context, c tenant, args ...string) (float64, error) {
	port, err := testbed.FreePort()
	if err != nil {
		return 0, err
	}
	tool := append([]string{"ib_send_lat", "-F", "-d", "rxe0", "-x", "0", "-p", fmt.Sprint(port), "-s", fmt.Sprint(latencySize)}, args...)
	out, err := h.Lab.Pair(ctx, h.ListensTCP(port), h.command(c, "b", tool...), h.command(c, "a", append(slices.Clone(tool), h.IP)...))
	if err != nil {
		return 0, err
	}
	l, err := drivers.ParseLatency(out)
	return l.Typical, err
}

// inside measures the delay of class latency from doorbell to scheduling, as a percentile.
func (q qosProbes) inside(percent uint64) probe.Probe {
	all := lateAndBulk()
	p := q.probe(fmt.Sprintf("doorbell to turn, %d %%", percent), "s", all, func(ctx context.Context, h *tenantDaemon) (float64, error) {
		c, err := h.start(ctx, all[1:])
		if err != nil {
			return 0, err
		}
		defer c.Stop()
		if err := testbed.Sleep(ctx, tenantWarmup); err != nil {
			return 0, err
		}
		before, err := h.usages(ctx, all[:1])
		if err != nil {
			return 0, err
		}
		_, err1 := h.latency(ctx, all[0], "-n", "10000", "-e")
		after, err := h.usages(ctx, all[:1])
		if err := errors.Join(err, err1); err != nil {
			return 0, err
		}
		return percentile(before[0].delays, after[0].delays, percent), nil
	})
	return p
}

// percentile returns the bucket bound below which this percentage of delays is, in seconds.
func percentile(before, after map[int64]uint64, percent uint64) float64 {
	var bounds []int64
	all := uint64(0)
	for b, n := range after {
		bounds = append(bounds, b)
		all += n - before[b]
	}
	slices.Sort(bounds)
	n := uint64(0)
	for _, b := range bounds {
		if n += after[b] - before[b]; n*100 >= all*percent {
			return float64(b) / 1e9
		}
	}
	return math.Inf(1)
}

// beside measures the latency of a polling NIC of class latency beside a bulk tenant, against alone.
func (q qosProbes) beside() probe.Probe {
	all := lateAndBulk()
	return q.probe("class latency beside bulk", "", all, func(ctx context.Context, h *tenantDaemon) (float64, error) {
		ping := func() (float64, error) { return h.latency(ctx, all[0], "-n", "3000") }
		before, after, err := alternately(ping, func() (float64, error) {
			c, err := h.start(ctx, all[1:])
			if err != nil {
				return 0, err
			}
			defer c.Stop()
			if err := testbed.Sleep(ctx, tenantWarmup); err != nil {
				return 0, err
			}
			return ping()
		})
		return after / before, err
	})
}

// unrulyQPs is how many queue pairs the misbehaving tenant has.
const unrulyQPs = 10_000

// misbehaving measures a tenant beside a misbehaving one, against half of its bandwidth alone.
func (q qosProbes) misbehaving() probe.Probe {
	all := append(equals(1, bulk), tenant{name: "bad", program: []string{"unruly", fmt.Sprint(unrulyQPs)}})
	return q.probe("beside a tenant that misbehaves", "", all, func(ctx context.Context, h *tenantDaemon) (float64, error) {
		alone, beside, err := alternately(h.bytesPerSecond(ctx, all[:1]), func() (float64, error) {
			bad, err := h.start(ctx, all[1:])
			if err != nil {
				return 0, err
			}
			defer bad.Stop()
			got, err := h.measure(ctx, all[:1])
			if err != nil {
				return 0, err
			}
			return got[0].bytes, nil
		})
		return beside / (alone / 2), err
	})
}
