package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

const (
	// loopTime is how long traffic is measured, after loopWarmup.
	loopTime   = time.Second
	loopWarmup = 300 * time.Millisecond
	// loopSize and loopSmall are the message sizes. Messages of loopSize stay in the caches.
	loopSize  = 64 << 10
	loopSmall = 8
	// loopQPs are queue pairs of each program, and loopDepth their requests.
	loopQPs   = 4
	loopDepth = 64
	// loopCopies is how often the baseline copies loopSize bytes.
	loopCopies = 200_000
	// loopFar, loopFarSmall and loopLatency are iterations of perftest.
	loopFar      = 20_000
	loopFarSmall = 200_000
	loopLatency  = 10_000
	// ofCopies is the part of the growth of memcpy that several loops reach, and ofOnePair what four programs have of one.
	ofCopies  = 0.8
	ofOnePair = 0.95
	// mostLoops is the largest number of loops in the curve.
	mostLoops = 8
)

// loopCounts are the numbers of loops that are compared with one.
func loopCounts() (counts []int) {
	for n := 2; n <= min(mostLoops, runtime.NumCPU()); n++ {
		counts = append(counts, n)
	}
	return counts
}

// loops measures what more loops bring to programs that sleep, which leave the processors to the loops, and to pairs of programs on
// two hosts: a curve over the number of loops.
func (t *Table) loops() part {
	p := part{name: "loops", asked: true, single: true}
	counts := loopCounts()
	for _, n := range counts {
		p.rows = append(p.rows, loopRows(n)...)
	}
	p.rows = append(p.rows, speedtable.Row{What: "64 KiB writes of four programs, against one program: one loop", Bound: ofOnePair, Against: &speedtable.Series{}})
	p.measure = func(ctx context.Context, rows []speedtable.Row) error {
		programs, err := t.Lab.Compile(ctx, "traffic", "copy")
		if err != nil {
			return err
		}
		t.stop() // its loop would take a processor
		one, err := t.openLoops(ctx, 1)
		if err != nil {
			return err
		}
		defer one.close()
		for _, n := range counts {
			if err := t.someLoops(ctx, one, n, programs, rows[:len(loopRows(n))]); err != nil {
				return err
			}
			rows = rows[len(loopRows(n)):]
		}
		write := func(n int) probe.Probe { return one.writes(programs["traffic"], n, loopSize) }
		return t.fill(ctx, t.Rounds, []probe.Probe{write(4), write(1)}, rows, []source{{0, 1}})
	}
	return p
}

// loopRows are the rows that compare n loops with one.
func loopRows(n int) []speedtable.Row {
	more := func(what string) speedtable.Row {
		return speedtable.Row{What: fmt.Sprintf("%s: %d loops, against one", what, n), Unbounded: true, Against: &speedtable.Series{}}
	}
	less := func(what string) speedtable.Row {
		r := more(what)
		r.AtMost = true
		return r
	}
	large := more(fmt.Sprintf("64 KiB writes of %d programs", n))
	large.Unbounded, large.Bound = false, 1
	return []speedtable.Row{
		{What: fmt.Sprintf("memcpy of 64 KiB in %d processes, against one", n), Unbounded: true, Against: &speedtable.Series{}},
		{What: fmt.Sprintf("TCP of %d pairs, 64 KiB, against one", n), Unbounded: true, Against: &speedtable.Series{}},
		large,
		more(fmt.Sprintf("8 B writes of %d programs", n)),
		less("send latency, 64 B"),
		more("connections opened and closed a second"),
		less(fmt.Sprintf("daemon's processor time for a GiB in 64 KiB writes of %d programs", n)),
		less(fmt.Sprintf("clients' processor time for a GiB in 64 KiB writes of %d programs", n)),
		{What: fmt.Sprintf("between two hosts: TCP of %d pairs, against one", n), Unbounded: true, Against: &speedtable.Series{}},
		more(fmt.Sprintf("between two hosts: 64 KiB writes of %d pairs", n)),
		more(fmt.Sprintf("between two hosts: 8 B writes of %d pairs", n)),
		less("between two hosts: send latency, 64 B"),
		more("between two hosts: connections opened and closed a second"),
		less(fmt.Sprintf("between two hosts: processor time for a GiB in 64 KiB writes of %d pairs", n)),
	}
}

// someLoops compares n loops with one.
func (t *Table) someLoops(ctx context.Context, one *loopHost, n int, programs map[string]string, rows []speedtable.Row) error {
	some, err := t.openLoops(ctx, n)
	if err != nil {
		return err
	}
	defer some.close()
	var probes []probe.Probe
	var sources []source
	compare := func(ours, against probe.Probe) {
		sources = append(sources, source{len(probes), len(probes) + 1})
		probes = append(probes, ours, against)
	}
	near := func(of func(h *loopHost) probe.Probe) { compare(of(some), of(one)) }
	compare(copiesProbe(t.Lab, programs["copy"], n), copiesProbe(t.Lab, programs["copy"], 1))
	tcp := probe.Qperf(one.Loopback(), "tcp_bw", "bw", "B/s", loopSize)
	compare(atOnceProbe(tcp, n), tcp)
	near(func(h *loopHost) probe.Probe { return h.writes(programs["traffic"], n, loopSize) })
	near(func(h *loopHost) probe.Probe { return h.writes(programs["traffic"], n, loopSmall) })
	near(func(h *loopHost) probe.Probe {
		return probe.On(probe.Latency(h.Loopback(), "ib_send_lat", latencySize, loopLatency), h.name())
	})
	near(func(h *loopHost) probe.Probe { return probe.On(probe.Cmtime(h.Loopback(), atOnce), h.name()) })
	near(func(h *loopHost) probe.Probe {
		return h.cost(programs["traffic"], n, "daemon", func(s sample) float64 { return s.daemon })
	})
	near(func(h *loopHost) probe.Probe {
		return h.cost(programs["traffic"], n, "clients", func(s sample) float64 { return s.clients })
	})
	if err := t.fill(ctx, t.Rounds, probes, rows[:len(sources)], sources); err != nil {
		return err
	}
	if c := &rows[0]; c.HasValues() {
		rows[2].Bound = ofCopies * speedtable.Ratio(c.Ours.Median(), c.Against.Median())
	}
	rows = rows[len(sources):]
	if !t.want(rows...) {
		return nil
	}
	return t.farLoops(ctx, n, rows)
}

// farLoops compares n loops on each of two hosts with one. Its own daemons are the only ones that are awake.
func (t *Table) farLoops(ctx context.Context, n int, rows []speedtable.Row) error {
	var pairs [2]*testbed.HostPair
	for i, loops := range []int{n, 1} {
		p, err := t.Lab.NewHostPair(ctx, 9000, func(*testbed.Host) []string { return []string{"--loops", strconv.Itoa(loops)} })
		if err != nil {
			return err
		}
		defer p.Close()
		pairs[i] = p
	}
	var probes []probe.Probe
	var sources []source
	far := func(of func(w *testbed.HostPair) probe.Probe) {
		sources = append(sources, source{len(probes), len(probes) + 1})
		probes = append(probes, probe.On(of(pairs[0]), fmt.Sprintf("%d loops", n)), probe.On(of(pairs[1]), "1 loop"))
	}
	tcp := probe.Iperf3(pairs[1].Route())
	sources, probes = append(sources, source{0, 1}), append(probes, atOnceProbe(tcp, n), tcp)
	far(func(w *testbed.HostPair) probe.Probe {
		return atOnceProbe(probe.Bandwidth(w.Route(), "ib_write_bw", loopSize, loopFar), n)
	})
	far(func(w *testbed.HostPair) probe.Probe {
		return atOnceProbe(probe.MessageRate(w.Route(), "ib_write_bw", loopSmall, loopFarSmall), n)
	})
	far(func(w *testbed.HostPair) probe.Probe {
		return probe.Latency(w.Route(), "ib_send_lat", latencySize, loopLatency)
	})
	far(func(w *testbed.HostPair) probe.Probe { return probe.Cmtime(w.Route(), atOnce) })
	far(func(w *testbed.HostPair) probe.Probe { return farCost(w, n) })
	return t.fill(ctx, t.Rounds, probes, rows, sources)
}

// atOnceProbe runs a probe n times at once, and adds the values up.
func atOnceProbe(p probe.Probe, n int) probe.Probe {
	measure := p.Measure
	p.Name = fmt.Sprintf("%s, %d at once", p.Name, n)
	p.Measure = func(ctx context.Context) (sum drivers.Reading, err error) {
		var wait sync.WaitGroup
		var mu sync.Mutex
		for range n {
			wait.Go(func() {
				r, failed := measure(ctx)
				mu.Lock()
				defer mu.Unlock()
				if sum.Value += r.Value; failed != nil {
					err = failed
				}
			})
		}
		wait.Wait()
		return sum, err
	}
	return p
}

// farCost measures the processor time of programs and daemons for a GiB that n pairs of programs write to another host.
func farCost(w *testbed.HostPair, n int) probe.Probe {
	write := atOnceProbe(probe.Bandwidth(w.Route(), "ib_write_bw", loopSize, loopFar), n)
	p := probe.Probe{Name: write.Name + ", processor time", Unit: "core-s"}
	p.Measure = func(ctx context.Context) (r drivers.Reading, err error) {
		used, err := cpuTimeOf(ctx, 0, w.Daemons, func(ctx context.Context) error {
			_, err := write.Measure(ctx)
			return err
		})
		r.Value = used.processes / (float64(n) * loopFar * loopSize / (1 << 30))
		return r, err
	}
	return p
}

// A loopHost is a daemon with some loops.
type loopHost struct {
	*testbed.Host
	loops  int
	dir    string
	daemon *testbed.Daemon
}

// openLoops starts a daemon with some loops.
func (t *Table) openLoops(ctx context.Context, loops int) (h *loopHost, err error) {
	h = &loopHost{loops: loops}
	if h.dir, err = makeDirectory(t.Lab, t.Lab.Dir); err != nil {
		return nil, err
	}
	h.Host = &testbed.Host{Lab: t.Lab, Socket: filepath.Join(h.dir, "s"), IP: "127.0.0.1"}
	if h.daemon, err = h.Start(ctx, "--network=false", "--loops", strconv.Itoa(loops)); err != nil {
		os.RemoveAll(h.dir)
		return nil, err
	}
	return h, nil
}

// name says how many loops there are.
func (h *loopHost) name() string { return fmt.Sprintf("%d loops", h.loops) }

func (h *loopHost) close() {
	h.daemon.Stop()
	os.RemoveAll(h.dir)
}

// sent is how many bytes the daemon's programs have sent, headers included, and when that was.
func (h *loopHost) sent(ctx context.Context) (bytes uint64, at time.Time, err error) {
	s, err := h.Status(ctx)
	if err != nil {
		return 0, at, err
	}
	return 4 * s.Counters["port_xmit_data"], time.Now(), nil // it counts words
}

// writes measures the bytes per second of programs that write to themselves and sleep in between.
func (h *loopHost) writes(program string, n, size int) probe.Probe {
	p := probe.Probe{Name: fmt.Sprintf("%d programs, %s", n, h.name()), Unit: "B/s"}
	p.Measure = func(ctx context.Context) (r drivers.Reading, err error) {
		s, err := h.traffic(ctx, program, n, size)
		r.Value = s.sent / s.passed
		return r, err
	}
	return p
}

// cost measures the processor time of the daemon, or of the programs, for a GiB of such writes.
func (h *loopHost) cost(program string, n int, whose string, of func(sample) float64) probe.Probe {
	p := probe.Probe{Name: fmt.Sprintf("%d programs, %s, processor time of %s", n, h.name(), whose), Unit: "core-s"}
	p.Measure = func(ctx context.Context) (r drivers.Reading, err error) {
		s, err := h.traffic(ctx, program, n, loopSize)
		r.Value = of(s) / (s.sent / (1 << 30))
		return r, err
	}
	return p
}

// A sample is bytes that programs have sent, the seconds that have passed, and the processor time in seconds of the daemon and of
// the programs.
type sample struct {
	sent, passed    float64
	daemon, clients float64
}

// traffic runs programs for loopTime.
func (h *loopHost) traffic(ctx context.Context, program string, n, size int) (s sample, err error) {
	c := &testbed.IdlePrograms{}
	defer c.Stop()
	for range n {
		_, out, err := c.Add(h.Lab.Command(ctx, h.Under(program, strconv.Itoa(size), strconv.Itoa(loopQPs), strconv.Itoa(loopDepth))...))
		if err != nil {
			return s, err
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
			return s, fmt.Errorf("traffic did not become ready: %q, %w", line, err)
		}
	}
	if err := testbed.Sleep(ctx, loopWarmup); err != nil {
		return s, err
	}
	used := func() (daemon, clients time.Duration, err error) {
		if daemon, err = h.daemon.CPUTime(); err == nil {
			clients, err = c.CPUTime()
		}
		return daemon, clients, err
	}
	before, from, err := h.sent(ctx)
	if err != nil {
		return s, err
	}
	daemon, clients, err := used()
	if err != nil {
		return s, err
	}
	if err := testbed.Sleep(ctx, loopTime); err != nil {
		return s, err
	}
	daemonThen, clientsThen, err := used()
	if err != nil {
		return s, err
	}
	after, to, err := h.sent(ctx)
	return sample{float64(after - before), to.Sub(from).Seconds(), (daemonThen - daemon).Seconds(), (clientsThen - clients).Seconds()}, err
}

// copiesProbe measures the bytes per second that n processes copy together.
func copiesProbe(l *testbed.Lab, program string, n int) probe.Probe {
	return probe.Probe{
		Name: fmt.Sprintf("memcpy in %d processes", n), Unit: "B/s",
		Measure: func(ctx context.Context) (r drivers.Reading, err error) {
			var wait sync.WaitGroup
			var mu sync.Mutex
			for range n {
				wait.Go(func() {
					out, failed := l.Run(ctx, program, strconv.Itoa(loopSize), strconv.Itoa(loopCopies))
					var v float64
					if failed == nil {
						v, failed = strconv.ParseFloat(strings.TrimSpace(out), 64)
					}
					mu.Lock()
					defer mu.Unlock()
					if r.Value += v; failed != nil {
						err = failed
					}
				})
			}
			wait.Wait()
			return r, err
		},
	}
}
