package bench

import (
	"context"
	"strconv"
)

// rxe compares vrdma with the kernel's rxe on the same machine, which needs a kernel
// that has it: see part guest.
func (t *Table) rxe() part {
	return part{
		name: "rxe", asked: true, single: true,
		rows: rxeRows(""),
		measure: func(ctx context.Context, rows []Row) error {
			kernel, err := findKernelDevice(t.Kernel, "/sys")
			if err != nil {
				return err
			}
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			ours, theirs := h.loop(), kernel.host(h).loop()
			// Devices are named, so that no program measures the other one.
			us, them := []string{"-d", ourDevice}, []string{"-d", kernel.name, "-x", strconv.Itoa(kernel.gid)}
			probes := []Probe{
				0: on(throughputProbe(ours, device, averageRate, "ib_write_bw", bulkSize, 10000, us...), "vrdma"),
				1: on(throughputProbe(theirs, plain, averageRate, "ib_write_bw", bulkSize, 1000, them...), "rxe"),
				2: on(throughputProbe(ours, device, messageRate, "ib_write_bw", smallMessage, 50000, us...), "vrdma"),
				3: on(throughputProbe(theirs, plain, messageRate, "ib_write_bw", smallMessage, 10000, them...), "rxe"),
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
