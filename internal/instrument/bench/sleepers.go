package bench

import (
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
)

import "context"

// sleepingMessages is how many messages of sleeping or delayed programs are timed. Each may take several milliseconds.
const sleepingMessages = 2000

// sleepers measures the latency of two programs that sleep on completion events.
func (t *Table) sleepers() part {
	return part{
		rows: twice("sleeping programs: send latency, 64 B", "TCP", 1, 0.6),
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "burn")
			if err != nil {
				return err
			}
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			r := h.Loopback()
			probes := []probe.Probe{
				0: probe.Latency(r, "ib_send_lat", latencySize, sleepingMessages, "-e"),
				1: probe.Qperf(r, "tcp_lat", "latency", "s", latencySize).Without(d),
			}
			return t.keptAwake(ctx, programs["burn"], probes, rows, []source{{0, 1}})
		},
	}
}

// besideSleepers measures the latency of polling programs while many other programs of the daemon sleep, also while TCP is measured.
func (t *Table) besideSleepers() part {
	return part{
		rows: twice("write latency, 64 B, while 100 programs sleep on events", "TCP", 1, 0.6),
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "burn", "armed")
			if err != nil {
				return err
			}
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			sleeping, err := h.StartIdle(ctx, programs["armed"], idleProgramCount, 1)
			if err != nil {
				return err
			}
			defer sleeping.Stop()
			r := h.Loopback()
			probes := []probe.Probe{
				0: probe.Latency(r, "ib_write_lat", latencySize, sleepingMessages),
				1: probe.Qperf(r, "tcp_lat", "latency", "s", latencySize).Without(d),
			}
			return t.keptAwake(ctx, programs["burn"], probes, rows, []source{{0, 1}})
		},
	}
}
