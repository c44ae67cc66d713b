package bench

import (
	"context"
	"strconv"

	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// rxe compares vrdma with the kernel's rxe on this machine. It needs a kernel with rxe: see part guest.
func (t *Table) rxe() part {
	return part{
		name: "rxe", asked: true, single: true,
		rows: rxeRows(""),
		measure: func(ctx context.Context, rows []Row) error {
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
			probes := []Probe{
				0: on(throughputProbe(ours, testbed.WithDevice, averageRate, "ib_write_bw", bulkSize, 10000, us...), "vrdma"),
				1: on(throughputProbe(theirs, testbed.Plain, averageRate, "ib_write_bw", bulkSize, 1000, them...), "rxe"),
				2: on(throughputProbe(ours, testbed.WithDevice, messageRate, "ib_write_bw", smallMessage, 50000, us...), "vrdma"),
				3: on(throughputProbe(theirs, testbed.Plain, messageRate, "ib_write_bw", smallMessage, 10000, them...), "rxe"),
			}
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {2, 3}})
		},
	}
}

// rxeRows are the rows of parts rxe and guest.
func rxeRows(where string) []Row {
	return []Row{
		ratioRow(where+"write bandwidth, 64 KiB, against the kernel's rxe", 2),
		ratioRow(where+"8 B writes, against the kernel's rxe", 2),
	}
}
