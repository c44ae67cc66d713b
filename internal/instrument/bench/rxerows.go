package bench

import (
	"context"
	"strconv"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// rxe compares vrdma with the kernel's rxe on this machine. It needs a kernel with rxe: see part guest.
func (t *Table) rxe() part {
	return part{
		name: "rxe", asked: true, single: true,
		rows: rxeRows(""),
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			kernel, err := testbed.FindKernelDevice(t.Kernel, "/sys")
			if err != nil {
				return err
			}
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			ours, theirs := h.Loopback(), kernel.Host(h).Loopback()
			// The devices are named, so that no program measures the other one.
			us, them := []string{"-d", testbed.DeviceName}, []string{"-d", kernel.Name, "-x", strconv.Itoa(kernel.GID)}
			probes := []probe.Probe{
				0: probe.On(probe.Throughput(ours, testbed.WithDevice, probe.AverageRate, "ib_write_bw", bulkSize, 10000, us...), "vrdma"),
				1: probe.On(probe.Throughput(theirs, testbed.Plain, probe.AverageRate, "ib_write_bw", bulkSize, 1000, them...), "rxe"),
				2: probe.On(probe.Throughput(ours, testbed.WithDevice, probe.MessagesPerSecond, "ib_write_bw", smallMessage, 50000, us...), "vrdma"),
				3: probe.On(probe.Throughput(theirs, testbed.Plain, probe.MessagesPerSecond, "ib_write_bw", smallMessage, 10000, them...), "rxe"),
			}
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {2, 3}})
		},
	}
}

// rxeRows are the rows of parts rxe and guest.
func rxeRows(where string) []speedtable.Row {
	return []speedtable.Row{
		ratioRow(where+"write bandwidth, 64 KiB, against the kernel's rxe", 2),
		ratioRow(where+"8 B writes, against the kernel's rxe", 2),
	}
}
