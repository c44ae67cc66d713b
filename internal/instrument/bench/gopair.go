package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// goPrograms compares Go programs: package verbs with perftest, package stream with TCP.
func (t *Table) goPrograms() part {
	return t.together("go", t.goPairs(), t.goStreams())
}

// goPairs compares two Go programs with perftest.
func (t *Table) goPairs() part {
	return part{
		rows: []speedtable.Row{
			ratioAtMost("Go pair: write latency, 64 B, against ib_write_lat", 1.3),
			ratioAtMost("Go pair: send latency, 64 B, against ib_send_lat", 1.3),
			ratioRow("Go pair: 8 B writes, one QP, against ib_write_bw", 0.8),
			ratioRow("Go pair: 8 B sends, one QP, against ib_send_bw", 0.8),
			ratioRow("Go pair: write bandwidth, 64 KiB, against ib_write_bw", 0.95),
			ratioAtMost("Go pair that waits in the netpoller: send latency, 64 B, against ib_send_lat -e", 1.5),
			ratioAtMost("Go pair of which every wait sleeps in the netpoller: send latency, 64 B, against ib_send_lat -e", 1.5),
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			r := h.Loopback()
			probes := []probe.Probe{
				0:  goperfProbe(r, latencyOf, "write-lat", latencySize, 10000),
				1:  probe.Latency(r, "ib_write_lat", latencySize, 10000),
				2:  goperfProbe(r, latencyOf, "send-lat", latencySize, 10000),
				3:  probe.Latency(r, "ib_send_lat", latencySize, 10000),
				4:  goperfProbe(r, rateOf, "write-bw", smallMessage, 500000),
				5:  probe.MessageRate(r, "ib_write_bw", smallMessage, 500000),
				6:  goperfProbe(r, rateOf, "send-bw", smallMessage, 500000),
				7:  probe.MessageRate(r, "ib_send_bw", smallMessage, 500000),
				8:  goperfProbe(r, bandwidthOf, "write-bw", bulkSize, 20000),
				9:  probe.Bandwidth(r, "ib_write_bw", bulkSize, 20000),
				10: goperfProbe(r, latencyOf, "send-lat", latencySize, sleepingMessages, "--events"),
				11: probe.Latency(r, "ib_send_lat", latencySize, sleepingMessages, "-e"),
				12: goperfProbe(r, latencyOf, "send-lat", latencySize, sleepingMessages, "--sleep"),
			}
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 11}})
		},
	}
}

// goStreams compares a Go program over a net.Conn of RDMA with the same over TCP.
func (t *Table) goStreams() part {
	return part{
		rows: []speedtable.Row{
			ratioAtMost("Go stream: echo, 64 B, one host, against the same program over TCP", 1),
			ratioRow("Go stream: bandwidth, 64 KiB, one host, against the same program over TCP", 1.5),
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			r := h.Loopback()
			probes := []probe.Probe{
				0: goperfProbe(r, latencyOf, "echo", latencySize, 20000),
				1: goperfProbe(r, latencyOf, "echo", latencySize, 20000, "--tcp"),
				2: goperfProbe(r, bandwidthOf, "bulk", bulkSize, 50000),
				3: goperfProbe(r, bandwidthOf, "bulk", bulkSize, 50000, "--tcp"),
			}
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {2, 3}})
		},
	}
}

// Which of the two numbers that goperf prints is the value.
var (
	latencyOf   = figure{"s", func(n []float64) drivers.Reading { return drivers.Reading{Value: n[0], Average: n[1]} }}
	bandwidthOf = figure{"B/s", func(n []float64) drivers.Reading { return drivers.Reading{Value: n[0]} }}
	rateOf      = figure{"/s", func(n []float64) drivers.Reading { return drivers.Reading{Value: n[1]} }}
)

type figure struct {
	unit string
	of   func([]float64) drivers.Reading
}

// Launchers of `vrdma goperf`: it is static and opens the device itself.
var (
	goOverRDMA = testbed.Launcher{Name: "go", Command: (*testbed.Host).At, Ready: (*testbed.Host).ListensCM}
	goOverTCP  = testbed.Launcher{Name: "go tcp", Command: (*testbed.Host).At, Ready: (*testbed.Host).ListensTCP}
)

// goperfProbe runs two processes of `vrdma goperf`.
func goperfProbe(r testbed.Route, f figure, test string, size, count int, options ...string) probe.Probe {
	name := strings.Join(append([]string{"goperf", test, strconv.Itoa(size)}, options...), " ")
	return probe.Probe{Name: name, Unit: f.unit, Measure: func(ctx context.Context) (drivers.Reading, error) {
		port, err := testbed.FreePort()
		if err != nil {
			return drivers.Reading{}, err
		}
		w := goOverRDMA
		for _, o := range options {
			if o == "--tcp" {
				w = goOverTCP
			}
		}
		side := func(h *testbed.Host, more ...string) []string {
			argv := []string{
				h.Lab.Vrdma, "goperf", "--socket", h.Socket, test, fmt.Sprintf("%s:%d", r.Server.IP, port),
				"--size", strconv.Itoa(size), "--count", strconv.Itoa(count),
			}
			return append(append(argv, options...), more...)
		}
		out, err := r.Pair(ctx, w, port, side(r.Server, "--server"), side(r.Client))
		if err != nil {
			return drivers.Reading{}, err
		}
		numbers, err := testbed.ParseNumbers(name, out, 2)
		if err != nil {
			return drivers.Reading{}, err
		}
		return f.of(numbers), nil
	}}
}
