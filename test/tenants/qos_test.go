package tenants

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/test/harness"
)

// The benchmarks of this file measure shares, caps and latency with the stock tools on a real
// daemon, on the machine as it is: go test -run '^$' -bench QoS ./test/tenants. ib_write_bw cannot
// sleep on events: where there are more programs than processors, what the kernel gives them is
// measured, too.

// A traffic is one tenant's ib_write_bw from its NIC a to its NIC b.
type traffic struct {
	name   string
	tenant string // spec, lines of YAML
	nic    string // spec of NIC a, lines of YAML
	size   int
	qps    int
	depth  int
}

// world is a file with the tenants of all.
func world(all []traffic) string {
	var s strings.Builder
	for _, x := range all {
		fmt.Fprintf(&s, "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: %s}\nspec: {%s}\n---\n", x.name, x.tenant)
		fmt.Fprintf(&s, "apiVersion: vrdma.io/v1\nkind: Network\nmetadata: {name: net, tenant: %s}\nspec: {subnets: [10.1.0.0/24]}\n---\n", x.name)
		fmt.Fprintf(&s, "apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: a, tenant: %s}\nspec: {network: net, address: 10.1.0.1%s}\n---\n", x.name, x.nic)
		fmt.Fprintf(&s, "apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: b, tenant: %s}\nspec: {network: net, address: 10.1.0.2}\n---\n", x.name)
	}
	return s.String()
}

// begin starts a traffic for so many seconds.
func (d *daemon) begin(t testing.TB, x traffic, seconds int, tool string, more ...string) *harness.Conversation {
	t.Helper()
	tcp := harness.FreePort(t)
	argv := append([]string{tool, "-d", "rxe0", "-x", "0", "-F", "-D", strconv.Itoa(seconds), "-s", strconv.Itoa(x.size), "-p", strconv.Itoa(tcp)}, more...)
	if tool == "ib_write_bw" {
		argv = append(argv, "-q", strconv.Itoa(max(x.qps, 1)), "-t", strconv.Itoa(max(x.depth, 128)))
	}
	return harness.Converse(t, tcp, d.at(x.name+"/b"), argv, d.at(x.name+"/a"), append(append([]string{}, argv...), "127.0.0.1"))
}

// had is the loop time that a NIC has used, and what it has sent.
type had struct {
	schedule.Use
	Time            ib.Time
	Delays          nic.Delays
	bytes, messages uint64
}

func (d *daemon) had(name string) (h had) {
	d.engine.Do(func() {
		n := d.provisioner.NIC(key(name)).Device
		c := n.Counters()
		h.Use, h.Time, h.Delays = d.engine.Usage(n), c.LoopTime, c.Delays
		n.EachQP(func(q *nic.QP) {
			c := q.Transport().Counters()
			h.bytes += c.SentBytes
			h.messages += c.RDMASends
		})
	})
	return h
}

// during returns what the NICs a of all used in one second of their traffic.
func (d *daemon) during(t testing.TB, all []traffic) []had {
	t.Helper()
	for _, x := range all {
		for end := time.Now().Add(minute); d.had(x.name+"/a").bytes == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s sends nothing", x.name)
			}
		}
	}
	time.Sleep(500 * time.Millisecond) // until every queue is full, and bursts are used up
	list := make([]had, len(all))
	for i, x := range all {
		list[i] = d.had(x.name + "/a")
	}
	begin := time.Now()
	time.Sleep(time.Second)
	for i, x := range all {
		b := d.had(x.name + "/a")
		list[i].Time, list[i].bytes, list[i].messages = b.Time-list[i].Time, b.bytes-list[i].bytes, b.messages-list[i].messages
	}
	took := time.Since(begin).Seconds()
	for i := range list {
		list[i].bytes = uint64(float64(list[i].bytes) / took)
		list[i].messages = uint64(float64(list[i].messages) / took)
	}
	return list
}

// measure runs all of them at once and measures.
func (d *daemon) measure(t testing.TB, all []traffic) []had {
	t.Helper()
	var running []*harness.Conversation
	for _, x := range all {
		running = append(running, d.begin(t, x, 4+len(all)/4, "ib_write_bw"))
	}
	list := d.during(t, all)
	for _, c := range running {
		c.OK(t, minute)
	}
	return list
}

func BenchmarkQoSShares(b *testing.B) {
	all := []traffic{
		{name: "one", tenant: "weight: 1", size: 1 << 20, qps: 1},
		{name: "two", tenant: "weight: 2", size: 64 << 10, qps: 8},
		{name: "four", tenant: "weight: 4", size: 4 << 10, qps: 64, depth: 256},
	}
	d := start(b, world(all))
	for b.Loop() {
		list := d.measure(b, all)
		sum, worst := ib.Time(0), 0.0
		for _, h := range list {
			sum += h.Time
		}
		for i, h := range list {
			share := float64(h.Time) / float64(sum)
			b.ReportMetric(share, all[i].name+"-share")
			worst = max(worst, math.Abs(share*7/float64(int(1)<<i)-1))
		}
		b.ReportMetric(100*worst, "error-%")
	}
}

func BenchmarkQoSJain(b *testing.B) {
	var all []traffic
	for i := range 16 {
		all = append(all, traffic{name: fmt.Sprintf("t%d", i), size: 64 << 10 << (i % 5), qps: 1 + i%4, depth: 1024 >> (i % 5)})
	}
	d := start(b, world(all))
	for b.Loop() {
		sum, squares := 0.0, 0.0
		for _, h := range d.measure(b, all) {
			sum += float64(h.Time)
			squares += float64(h.Time) * float64(h.Time)
		}
		b.ReportMetric(sum*sum/squares/16, "jain")
	}
}

func BenchmarkQoSCaps(b *testing.B) {
	for _, c := range []struct {
		spec string
		size int
		want float64 // bytes, or messages
	}{
		{"rate: {out: 100Mbit}", 64 << 10, 1e8 / 8}, {"rate: {out: 1Gbit}", 64 << 10, 1e9 / 8}, {"rate: {out: 10Gbit}", 64 << 10, 1e10 / 8},
		{"rate: {messages: {out: 10000}}", 64, 10e3}, {"rate: {messages: {out: 100000}}", 64, 100e3}, {"rate: {messages: {out: 500000}}", 64, 500e3},
	} {
		b.Run(strings.ReplaceAll(c.spec, " ", ""), func(b *testing.B) {
			all := []traffic{{name: "one", nic: ", " + c.spec, size: c.size, qps: 4, depth: 512}}
			d := start(b, world(all))
			for b.Loop() {
				h := d.measure(b, all)[0]
				got := float64(h.bytes)
				if c.size == 64 {
					got = float64(h.messages)
				}
				b.ReportMetric(100*(got/c.want-1), "error-%")
			}
		})
	}
}

func BenchmarkQoSGuarantee(b *testing.B) {
	one := traffic{name: "one", size: 64 << 10, qps: 1, depth: 512}
	alone := start(b, world([]traffic{one})).measure(b, []traffic{one})[0].bytes
	one.nic = fmt.Sprintf(", guarantee: %dbit", alone/4*8)
	all := []traffic{one}
	for i := range 15 {
		all = append(all, traffic{name: fmt.Sprintf("t%d", i), size: 64 << 10, qps: 2, depth: 256})
	}
	d := start(b, world(all))
	for b.Loop() {
		list := d.measure(b, all)
		sum := uint64(0)
		for _, h := range list {
			sum += h.bytes
		}
		b.ReportMetric(float64(list[0].bytes)/float64(alone/4), "of-guarantee")
		b.ReportMetric(float64(list[0].bytes)/float64(sum), "of-all")
		b.ReportMetric(float64(alone)/1e9, "alone-GB/s")
		b.ReportMetric(float64(sum)/1e9, "sum-GB/s")
	}
}

func BenchmarkQoSConservation(b *testing.B) {
	one := traffic{name: "one", size: 64 << 10, qps: 1, depth: 512}
	all := []traffic{one}
	for i := range 15 {
		all = append(all, traffic{name: fmt.Sprintf("t%d", i), tenant: fmt.Sprintf("weight: %d", i+1)})
	}
	all = append(all, traffic{name: "capped", nic: ", rate: {out: 1Gbit}", size: 64 << 10, qps: 1})
	d := start(b, world(all))
	lone := start(b, world([]traffic{one}))
	for b.Loop() {
		alone := lone.measure(b, []traffic{one})[0].bytes
		with := d.measure(b, []traffic{one})[0].bytes
		both := d.measure(b, []traffic{one, all[16]})
		b.ReportMetric(float64(with)/float64(alone), "of-alone")
		b.ReportMetric(float64(both[0].bytes+both[1].bytes)/float64(alone), "sum-of-alone")
	}
}

// percentile returns the bound in µs that n of 100 delays stay below.
func percentile(d, before *nic.Delays, p uint64) float64 {
	sum := uint64(0)
	for i := range d {
		sum += d[i] - before[i]
	}
	n := uint64(0)
	for i := range d {
		if n += d[i] - before[i]; n*100 >= sum*p {
			return float64(d.Below(i)) / 1e3
		}
	}
	return math.Inf(1)
}

// typical returns the median that ib_send_lat printed.
func typical(out string, size int) float64 {
	for _, l := range strings.Split(out, "\n") {
		if f := strings.Fields(l); len(f) > 5 && f[0] == strconv.Itoa(size) {
			v, _ := strconv.ParseFloat(f[4], 64)
			return v
		}
	}
	return math.NaN()
}

func BenchmarkQoSLatency(b *testing.B) {
	for _, class := range []string{"bulk", "latency"} {
		for _, how := range []string{"asleep", "polling"} {
			b.Run(class+"/"+how, func(b *testing.B) {
				lat := traffic{name: "lat", nic: ", class: " + class + ", rate: {out: 1Gbit}", size: 64}
				bulk := traffic{name: "bulk", size: 1 << 20, qps: 1, depth: 128}
				d := start(b, world([]traffic{lat, bulk}))
				argv := []string{"-n", "3000"}
				if how == "asleep" {
					argv = append(argv, "-e")
				}
				ping := func() (p50 float64, before, after had) {
					tcp := harness.FreePort(b)
					tool := append([]string{"ib_send_lat", "-d", "rxe0", "-x", "0", "-F", "-s", "64", "-p", strconv.Itoa(tcp)}, argv...)
					before = d.had("lat/a")
					_, out := harness.Converse(b, tcp, d.at("lat/b"), tool, d.at("lat/a"), append(append([]string{}, tool...), "127.0.0.1")).OK(b, minute)
					return typical(out, 64), before, d.had("lat/a")
				}
				for b.Loop() {
					alone, _, _ := ping()
					bulk := d.begin(b, bulk, 4, "ib_write_bw")
					time.Sleep(time.Second)
					p50, before, after := ping()
					bulk.OK(b, minute)
					b.ReportMetric(percentile(&after.Delays, &before.Delays, 50), "inside-p50-µs")
					b.ReportMetric(percentile(&after.Delays, &before.Delays, 99), "inside-p99-µs")
					b.ReportMetric(alone, "alone-µs")
					b.ReportMetric(p50, "beside-µs")
					b.ReportMetric(p50/alone, "of-alone")
				}
			})
		}
	}
}

func BenchmarkQoSMisbehaving(b *testing.B) {
	good := traffic{name: "good", size: 64 << 10, qps: 1, depth: 512}
	bad := traffic{name: "bad", size: 1, qps: 512, depth: 128}
	d := start(b, world([]traffic{good, bad}))
	for b.Loop() {
		alone := d.measure(b, []traffic{good})[0]
		list := d.measure(b, []traffic{good, bad})
		share := min(float64(list[0].Time)/float64(list[0].Time+list[1].Time)/0.5, 1)
		b.ReportMetric(share, "of-time-share")
		b.ReportMetric(float64(list[0].bytes)/(float64(alone.bytes)/2), "of-half-alone")
	}
}
