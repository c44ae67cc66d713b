package measure

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// An Instrument measures the cells of experiments. It makes an environment when the first cell needs it.
type Instrument struct {
	Environments *testbed.Environments
	// Device is the device of transport kernel; "": there is none.
	Device string

	limits map[int]float64         // measured copy rates in bytes/s, by size
	steady map[experiment.Cell]int // how often processor time without start-up was measured
}

// Close stops all environments.
func (in *Instrument) Close() { in.Environments.Close() }

// transportLaunchers start the tools of each transport.
var transportLaunchers = map[string]testbed.Launcher{
	experiment.TCP: testbed.Plain, experiment.Verbs: testbed.WithDevice, experiment.Sockets: testbed.OverSockets, experiment.Kernel: testbed.Plain, experiment.Overlay: testbed.Plain, experiment.Vhost: testbed.Plain, experiment.OVS: testbed.Plain,
}

// Measure runs the tool of a cell once.
func (in *Instrument) Measure(ctx context.Context, c experiment.Cell, seconds int) (m experiment.Measurement, err error) {
	w, known := transportLaunchers[c.Transport]
	if !known {
		return m, fmt.Errorf("transport %s cannot be measured by this version", c.Transport)
	}
	d, known := drivers.Tools[c.Tool]
	if !known {
		return m, fmt.Errorf("%s cannot be run by this version", c.Tool)
	}
	err = in.Environments.With(ctx, c, func(p *testbed.Environment) (err error) {
		m, err = in.measureSteady(ctx, p, c, w, d, seconds)
		return err
	})
	return m, err
}

// measureSteady measures a cell, and its processor time without start-up: see experiment.Steady.
func (in *Instrument) measureSteady(ctx context.Context, p *testbed.Environment, c experiment.Cell, w testbed.Launcher, d drivers.Driver, seconds int) (m experiment.Measurement, err error) {
	if m, err = in.measure(ctx, p, c, w, d, length{seconds: seconds}); err != nil {
		return m, err
	}
	if m.Window > 0 {
		m.Steady = &experiment.Steady{CPU: m.CPU, Seconds: m.Seconds, Samples: m.Samples, Bytes: m.Bytes, Payload: m.Payload}
		return m, nil
	}
	other, longer, sensible := secondLength(c, d, &m, seconds)
	if !sensible || p.Guest != nil || in.steady[c] >= steadyRuns {
		return m, nil
	}
	if in.steady == nil {
		in.steady = make(map[experiment.Cell]int)
	}
	in.steady[c]++
	o, err := in.measure(ctx, p, c, w, d, other)
	if err != nil {
		return m, ctx.Err() // the value is good; its processor time then includes the start, and the report says so
	}
	if longer {
		m.Steady = o.Beyond(&m)
	} else {
		m.Steady = m.Beyond(&o)
	}
	return m, nil
}

// steadyRuns is how many rounds of a cell measure processor time without start-up. Each needs a second run.
const steadyRuns = 2

// A length says how long a tool runs.
type length struct{ seconds, messages int }

// mostMessages bounds the longer run of a latency tool: where programs compete for processors, a message can take a hundred times
// as long as in the first run.
const mostMessages = 100_000

// secondLength returns how long the second run of a cell is, and whether it is longer than the first. A tool that sends a number of messages
// sends more, for about the seconds of the cell; its first run gives the latency. A tool that runs for a time runs for
// a second. Tools that do one transfer, or whose run is that short already, have no second run.
func secondLength(c experiment.Cell, d drivers.Driver, m *experiment.Measurement, seconds int) (other length, longer, sensible bool) {
	t, _ := experiment.FindTool(c.Tool)
	switch {
	case t.Asks || experiment.Guests(c.Setting):
		return length{}, false, false
	case d.Counted:
		each := m.Values[experiment.Latency]
		if !t.RoundTrip {
			each *= 2 // the tool prints half of a round trip
		}
		if each <= 0 {
			return length{}, false, false
		}
		n := int(math.Round(min(float64(max(seconds, 1))/each, mostMessages)))
		return length{seconds: seconds, messages: int(m.Samples) + n}, true, true
	case t.Metric == experiment.Time || c.Tool == "cmtime":
		return length{}, false, false
	case seconds > 1:
		return length{seconds: 1}, false, true
	}
	return length{seconds: 3}, true, true
}

// measure runs the tool of a cell in its environment.
func (in *Instrument) measure(ctx context.Context, p *testbed.Environment, c experiment.Cell, w testbed.Launcher, d drivers.Driver, long length) (m experiment.Measurement, err error) {
	if p.Guest != nil {
		return p.Guest.Measure(ctx, c, long.seconds)
	}
	if p.OVS != nil {
		p.OVS.Resume()
		defer p.OVS.Pause()
	}
	if d.Launcher != nil {
		w = d.Launcher(c)
	}
	r, kernel, err := p.Carrier(ctx, c, in.Device)
	if err != nil {
		return m, err
	}
	routes, err := p.Routes(c, r)
	if err != nil {
		return m, err
	}
	jobs, err := makeJobs(ctx, in.Environments.Lab, d, c, routes, kernel, long)
	if err != nil {
		return m, err
	}
	var before, after testbed.Snapshot
	look := func(v *testbed.Snapshot) func() error {
		return func() (err error) {
			*v, err = p.Snapshot(ctx, kernel)
			return err
		}
	}
	f := newWindow(c, d, long.seconds)
	if f != nil {
		f.open, f.close = look(&before), look(&after)
	} else if err := look(&before)(); err != nil {
		return m, err
	}
	run := func() ([]pairResult, error) { return runPairs(ctx, r, w, d, jobs, f) }
	if r.Client.Agent != nil {
		run = func() ([]pairResult, error) { return runGuestPairs(ctx, r, w, d, jobs) }
	}
	list, err := run()
	if err != nil {
		return m, d.Failure(err)
	}
	if f == nil {
		if err := look(&after)(); err != nil {
			return m, err
		}
	}
	m = before.Until(after)
	m.Setting, m.Idle = p.Label, p.Idle
	for _, one := range list {
		m.CPU["client"] += one.client.Seconds()
		m.CPU["server"] += one.server.Seconds()
		m.Commands = append(m.Commands, one.commands...)
		m.Output += one.output
	}
	if c.Setting != experiment.Remote { // there servers and a daemon use another machine's processors
		addRest(&m)
	}
	m.Groups = groupsBetween(before.Groups, after.Groups)
	if f != nil {
		err = collectRows(list, &m)
		m.Window = f.ended.Sub(f.opened).Seconds()
	} else {
		err = collect(d, jobs, list, &m)
	}
	if err != nil {
		return m, err
	}
	drivers.ReadParameters(list[0].output, &m)
	m.Proof = proof(c, &m)
	if long := after.Counted.Sub(before.Counted).Seconds(); f != nil && long > 0 && m.Bytes > 0 {
		useCounted(c, m.Bytes/long, &m)
	}
	if m.Bytes == 0 && m.Payload == 0 { // tools of TCP that run for a time do not say how many bytes they moved
		m.Payload = m.Values[experiment.Bandwidth] * float64(max(long.seconds, 1))
	}
	in.bound(c, &m)
	return m, nil
}

// newWindow returns the common window of a cell; nil: its pairs have none.
func newWindow(c experiment.Cell, d drivers.Driver, seconds int) *window {
	if !d.Windowed || !drivers.CommonWindow(c) {
		return nil
	}
	// One second for the line that began before the window, one for late lines.
	return &window{length: time.Duration(max(seconds, 1)+2) * time.Second}
}

// makeJobs returns a job for each pair. A tool that runs all pairs with one command has one job.
func makeJobs(ctx context.Context, l *testbed.Lab, d drivers.Driver, c experiment.Cell, routes []testbed.Route, kernel *testbed.KernelDevice, long length) (list []*drivers.Job, err error) {
	for i := range c.Pairs {
		j := &drivers.Job{Cell: c, Route: routes[i%len(routes)], Routes: routes, Seconds: long.seconds, Messages: long.messages, Kernel: kernel}
		if j.Port, err = testbed.FreePort(); err != nil {
			return nil, err
		}
		if d.Prepare != nil {
			if err := d.Prepare(ctx, l, j); err != nil {
				return nil, err
			}
		}
		list = append(list, j)
		if server, _ := d.Commands(j); server == nil {
			break
		}
	}
	return list, nil
}

// collect reads the values that the tools printed.
func collect(d drivers.Driver, jobs []*drivers.Job, list []pairResult, m *experiment.Measurement) error {
	m.Values = make(map[string]float64)
	var shares []float64
	for i, one := range list {
		got, err := d.Parse(jobs[i], one.output, one.serverOutput)
		if err != nil {
			return err
		}
		for name, v := range got.Values {
			if name == experiment.Bandwidth || name == experiment.Rate {
				m.Values[name] += v // the sum of all pairs
			} else {
				m.Values[name] = max(m.Values[name], v) // the slowest pair
			}
		}
		shares = append(shares, got.Values[experiment.Bandwidth])
		m.Samples += got.Samples
		m.Payload += got.Bytes
	}
	fairness(shares, m)
	return nil
}

// fairness adds how evenly bandwidth is divided between pairs.
func fairness(shares []float64, m *experiment.Measurement) {
	if len(shares) < 2 || slices.Min(shares) <= 0 {
		return
	}
	m.Values["fairness"] = experiment.Jain(shares)
	m.Values["slowest"] = slices.Min(shares) / slices.Max(shares)
}

// collectRows reads the lines that were printed inside of the common window.
func collectRows(list []pairResult, m *experiment.Measurement) error {
	m.Values = make(map[string]float64)
	var shares []float64
	for _, one := range list {
		if len(one.rows) == 0 {
			return fmt.Errorf("a client reported nothing inside of the common window: %w", experiment.ErrBusy)
		}
		bytes, messages := 0.0, 0.0
		for _, row := range one.rows { // size, iterations, peak, average, message rate
			bytes += row.Numbers[3] * drivers.MiB
			messages += row.Numbers[4] * 1e6
		}
		n := float64(len(one.rows))
		m.Values[experiment.Bandwidth] += bytes / n
		m.Values[experiment.Rate] += messages / n
		shares = append(shares, bytes/n)
	}
	fairness(shares, m)
	return nil
}

// useCounted replaces perftest's bandwidth by what the devices counted in the window. The sum of perftest's lines, kept as "claimed",
// is too high: after each line get_cpu_mhz spins for 0.22 s while the other thread keeps sending, and no line includes that time
// (perftest 4.5-0.17, print_bw_infinite_mode).
func useCounted(c experiment.Cell, rate float64, m *experiment.Measurement) {
	m.Values["claimed"] = m.Values[experiment.Bandwidth]
	m.Values[experiment.Bandwidth], m.Values[experiment.Rate] = rate, rate/float64(c.Size)
}

// proof says which device carried the bytes, from its counters. A WRONG proof means that an RDMA program sent nothing through the
// device, or that a TCP program did.
func proof(c experiment.Cell, m *experiment.Measurement) string {
	switch c.Transport {
	case experiment.TCP, experiment.Overlay, experiment.Vhost, experiment.OVS:
		if card := map[string]string{experiment.TCP: "eth1", experiment.Vhost: "eth0", experiment.OVS: "eth1"}[c.Transport]; m.Links != nil {
			if m.Links[card] < m.Payload {
				return fmt.Sprintf("WRONG: %s of the guests sent %.0f bytes", card, m.Links[card])
			}
			return fmt.Sprintf("%s of the guests sent %s", card, experiment.Amount(m.Links[card], "B"))
		}
		if m.Bytes > 0 {
			return fmt.Sprintf("WRONG: %.0f bytes went through the device", m.Bytes)
		}
		return "the device's counters stood still"
	case experiment.Kernel:
		if m.Bytes > 0 {
			return fmt.Sprintf("WRONG: %.0f bytes went through vrdma's device", m.Bytes)
		}
		if m.Packets == 0 {
			return "WRONG: nothing went through the kernel's device"
		}
		return fmt.Sprintf("the kernel's counters: %.0f packets sent", m.Packets)
	}
	if t, _ := experiment.FindTool(c.Tool); t.Asks {
		return "nothing was sent: it is what the port says of itself"
	}
	if c.Tool == "cmtime" { // cmtime sends no data; its server was ready when the daemon listed its listener
		return "the daemon showed the server's listener"
	}
	if strings.HasPrefix(c.Tool, "ib_atomic") { // atomics have no data
		if m.Packets == 0 {
			return "WRONG: nothing went through the device"
		}
		return fmt.Sprintf("the device's counters: %.0f packets sent", m.Packets)
	}
	if m.Bytes == 0 {
		return "WRONG: no byte went through the device"
	}
	return fmt.Sprintf("the device's counters: %s sent", experiment.Amount(m.Bytes, "B"))
}
