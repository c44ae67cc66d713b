package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	// ofCopies is the part of the growth of memcpy that two loops reach, and ofOnePair what four programs have of one.
	ofCopies  = 0.8
	ofOnePair = 0.95
)

// loops measures what a second loop brings to programs that sleep: they leave the processors to the loops.
func (t *Table) loops() part {
	return part{
		name: "loops",
		rows: []speedtable.Row{
			{What: "memcpy of 64 KiB in two processes, against one", Unbounded: true},
			{What: "64 KiB writes of two programs: two loops, against one", Bound: 1},
			{What: "8 B writes of two programs: two loops, against one", Unbounded: true},
			{What: "64 KiB writes of four programs, against one program: one loop", Bound: ofOnePair},
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "traffic", "copy")
			if err != nil {
				return err
			}
			t.stop() // its loop would take a processor
			one, err := t.openLoops(ctx, "1")
			if err != nil {
				return err
			}
			defer one.close()
			two, err := t.openLoops(ctx, "2")
			if err != nil {
				return err
			}
			defer two.close()
			write := func(h *loopHost, n, size int) probe.Probe { return h.writes(programs["traffic"], n, size) }
			probes := []probe.Probe{
				0: copiesProbe(t.Lab, programs["copy"], 2), 1: copiesProbe(t.Lab, programs["copy"], 1),
				2: write(two, 2, loopSize), 3: write(one, 2, loopSize),
				4: write(two, 2, loopSmall), 5: write(one, 2, loopSmall),
				6: write(one, 4, loopSize), 7: write(one, 1, loopSize),
			}
			if err := t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {2, 3}, {4, 5}, {6, 7}}); err != nil {
				return err
			}
			if c := &rows[0]; c.HasValues() {
				rows[1].Bound = ofCopies * speedtable.Ratio(c.Ours.Median(), c.Against.Median())
			}
			return nil
		},
		asked: true, single: true,
	}
}

// A loopHost is a daemon with some loops.
type loopHost struct {
	*testbed.Host
	loops  string
	dir    string
	daemon *testbed.Daemon
}

// openLoops starts a daemon with some loops.
func (t *Table) openLoops(ctx context.Context, loops string) (h *loopHost, err error) {
	h = &loopHost{loops: loops}
	if h.dir, err = makeDirectory(t.Lab, t.Lab.Dir); err != nil {
		return nil, err
	}
	h.Host = &testbed.Host{Lab: t.Lab, Socket: filepath.Join(h.dir, "s"), IP: "127.0.0.1"}
	if h.daemon, err = h.Start(ctx, "--network=false", "--loops", loops); err != nil {
		os.RemoveAll(h.dir)
		return nil, err
	}
	return h, nil
}

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
	p := probe.Probe{Name: fmt.Sprintf("%d programs, %s loops", n, h.loops), Unit: "B/s"}
	p.Measure = func(ctx context.Context) (r drivers.Reading, err error) {
		c := &testbed.IdlePrograms{}
		defer c.Stop()
		for range n {
			_, out, err := c.Add(h.Lab.Command(ctx, h.Under(program, strconv.Itoa(size), strconv.Itoa(loopQPs), strconv.Itoa(loopDepth))...))
			if err != nil {
				return r, err
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
				return r, fmt.Errorf("traffic did not become ready: %q, %w", line, err)
			}
		}
		if err := testbed.Sleep(ctx, loopWarmup); err != nil {
			return r, err
		}
		before, from, err := h.sent(ctx)
		if err != nil {
			return r, err
		}
		if err := testbed.Sleep(ctx, loopTime); err != nil {
			return r, err
		}
		after, to, err := h.sent(ctx)
		r.Value = float64(after-before) / to.Sub(from).Seconds()
		return r, err
	}
	return p
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
