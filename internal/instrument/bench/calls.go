package bench

import (
	"context"
	"fmt"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// callSize is the size of requests and responses of the key-value lab.
const callSize = 24

// calls measures round trips between a client and a server that both sleep, as in the key-value lab: see programs/rpc.c.
func (t *Table) calls() part {
	return part{
		rows: slices.Concat(
			twice("sleeping client and server: RPC, 24 B", "TCP", 1, 0),
			twice("sleeping client: RDMA READ, 24 B", "a request and response over TCP", 0.7, 0),
			reportedTwice("sleeping programs: a round of ibv_rc_pingpong -e, 4 KiB"),
			reportedTwice("sleeping programs: a round of rping, 64 B"),
		),
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "burn", "rpc")
			if err != nil {
				return err
			}
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			r := h.Loopback()
			probes := []probe.Probe{
				0: rpcProbe(r, "RPC", testbed.WithCM, programs["rpc"], "rdma", "rdma"),
				1: rpcProbe(r, "RDMA READ", testbed.WithCM, programs["rpc"], "rdma", "read"),
				2: rpcProbe(r, "request and response over TCP", testbed.Plain, programs["rpc"], "tcp", "tcp").Without(d),
				3: probe.Pingpong(r, sleepingMessages, "-e"),
				4: rpingProbe(r),
			}
			return t.keptAwake(ctx, programs["burn"], probes, rows, []source{{0, 2}, {1, 2}, {3, alone}, {4, alone}})
		},
	}
}

// rpcProbe runs programs/rpc.c: serve is what the server offers, call what the client does.
func rpcProbe(r testbed.Route, name string, w testbed.Launcher, program, serve, call string) probe.Probe {
	return probe.Probe{Name: name, Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		port, err := testbed.FreePort()
		if err != nil {
			return drivers.Reading{}, err
		}
		place := []string{r.Server.IP, fmt.Sprint(port), fmt.Sprint(callSize)}
		out, err := r.Pair(ctx, w, port, append([]string{program, "serve", serve}, place...),
			append([]string{program, "call", call}, append(place, fmt.Sprint(sleepingMessages))...))
		if err != nil {
			return drivers.Reading{}, err
		}
		numbers, err := testbed.ParseNumbers(program, out, 2)
		if err != nil {
			return drivers.Reading{}, err
		}
		return drivers.Reading{Value: numbers[0], Average: numbers[1]}, nil
	}}
}

// rpingProbe measures a round of rping: a SEND, an RDMA READ, two SENDs, an RDMA WRITE and one more SEND. rping prints no times, so
// the probe runs it with few and with many rounds.
func rpingProbe(r testbed.Route) probe.Probe {
	const few, many = 50, 400
	// It prints how many nanoseconds a command takes.
	clock := []string{"sh", "-c", `begin=$(date +%s%N) && "$@" >/dev/null && echo $(($(date +%s%N) - begin))`, "sh"}
	run := func(ctx context.Context, rounds int) (float64, error) {
		port, err := testbed.FreePort()
		if err != nil {
			return 0, err
		}
		common := []string{"-a", r.Server.IP, "-p", fmt.Sprint(port), "-C", fmt.Sprint(rounds), "-S", fmt.Sprint(latencySize)}
		out, err := r.Pair(ctx, testbed.WithCM, port, append([]string{"rping", "-s"}, common...), append(append(clock, "rping", "-c"), common...))
		if err != nil {
			return 0, err
		}
		numbers, err := testbed.ParseNumbers("rping", out, 1)
		if err != nil {
			return 0, err
		}
		return numbers[0] * 1e-9, nil
	}
	return probe.Probe{Name: "rping", Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		short, err := run(ctx, few)
		if err != nil {
			return drivers.Reading{}, err
		}
		long, err := run(ctx, many)
		return drivers.Reading{Value: (long - short) / (many - few)}, err
	}}
}
