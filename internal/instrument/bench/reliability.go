package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
)

// This share of the runs must reach this ratio.
const (
	runsAsked  = 10
	shareAsked = 90 // percent of the runs
	ratioAsked = 1.2
)

// reliability measures how often the bandwidth between two hosts reaches its usual ratio to TCP.
func (t *Table) reliability() part {
	return part{
		rows: []speedtable.Row{{
			What: "between two hosts: write bandwidth, 64 KiB, MTU 9000, runs with at least 1.2 x TCP",
			Ours: speedtable.Series{Unit: "% of runs"}, Bound: shareAsked,
		}},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			if t.oursOnly {
				return errors.New("TCP is not measured when two builds are compared")
			}
			w, err := t.Lab.NewHostPair(ctx, 9000)
			if err != nil {
				return err
			}
			defer w.Close()
			r := w.Route()
			runs := min(runsAsked, 2*t.Rounds)
			var ratios []float64
			var failures []string
			for i := range runs {
				fmt.Fprintf(t.Progress, "  run %d of %d:\n", i+1, runs)
				series, err := probe.Rounds(ctx, t.Progress, 1, []probe.Probe{probe.Bandwidth(r, "ib_write_bw", bulkSize, 20000), probe.Iperf3(r).Without(w.Daemons...)})
				if err != nil {
					return err
				}
				failures = append(append(failures, series[0].Failures...), series[1].Failures...)
				if tcp := series[1].Median(); tcp > 0 {
					ratios = append(ratios, series[0].Median()/tcp) // a failed run of vrdma counts as 0
				}
			}
			share := speedtable.Series{Name: "ib_write_bw against iperf3, in turn", Unit: "% of runs", Failures: failures}
			if len(ratios) > 0 {
				share.Add(shareOf(ratios, ratioAsked))
			}
			rows[0].Fill(share)
			rows[0].Note = "each run: " + ratioList(ratios)
			return nil
		},
	}
}

// shareOf returns how many of the ratios are at least bound, in percent.
func shareOf(ratios []float64, bound float64) float64 {
	reached := 0
	for _, r := range ratios {
		if r >= bound {
			reached++
		}
	}
	return 100 * speedtable.Ratio(float64(reached), float64(len(ratios)))
}

// ratioList prints ratios in the order of the runs.
func ratioList(ratios []float64) string {
	var words []string
	for _, r := range ratios {
		words = append(words, fmt.Sprintf("%.2f x", r))
	}
	return strings.Join(words, ", ")
}
