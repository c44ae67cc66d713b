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

const (
	// atOnce is how many connections cmtime opens and closes.
	atOnce = 500
	// inTurn is how many connections programs/serial.c makes, one after the other.
	inTurn = 1000
)

// connections measures how fast rdma_cm connects on one host, and the duration of a command.
func (t *Table) connections() part {
	return part{
		name: "cm",
		rows: []speedtable.Row{
			{What: "connections opened and closed a second, one host", Ours: speedtable.Series{Unit: "/s"}, Bound: 3000},
			{What: "connections opened and closed a second, one after the other", Ours: speedtable.Series{Unit: "/s"}, Unbounded: true},
			{What: "a command that does nothing (ibv_query_port)", Ours: speedtable.Series{Unit: "s"}, AtMost: true, Unbounded: true},
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			programs, err := t.Lab.Compile(ctx, "serial")
			if err != nil {
				return err
			}
			r := h.Loopback()
			probes := []probe.Probe{
				probe.Cmtime(r, atOnce),
				serialProbe(r, programs["serial"], "one after the other", "/s", 0),
				serialProbe(r, programs["serial"], "ibv_query_port", "s", 1),
			}
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, alone}, {1, alone}, {2, alone}})
		},
	}
}

// serialProbe returns one of the numbers that programs/serial.c prints.
func serialProbe(r testbed.Route, program, name, unit string, line int) probe.Probe {
	return probe.Probe{
		Name: name, Unit: unit,
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			port, err := testbed.FreePort()
			if err != nil {
				return drivers.Reading{}, err
			}
			listen := fmt.Sprint(port)
			out, err := r.Pair(ctx, testbed.WithCM, port, []string{program, listen},
				[]string{program, listen, r.Server.IP, fmt.Sprint(inTurn)})
			if err != nil {
				return drivers.Reading{}, err
			}
			words := strings.Fields(out)
			if len(words) != 2 {
				return drivers.Reading{}, fmt.Errorf("serial printed %q, want two numbers", testbed.LastLines(out, 5))
			}
			v, err := strconv.ParseFloat(words[line], 64)
			return drivers.Reading{Value: v}, err
		},
	}
}
