package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/instrument/attack"
	"vrdma.dev/vrdma/internal/instrument/bench"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	table       bench.Table
	rows        string
	against     string
	reportOnly  bool
	attacks     bool
	out, format string
}

func benchCommand() *cobra.Command {
	f := &benchFlags{}
	c := &cobra.Command{
		Use:   "bench",
		Short: "run experiments (bench run), or measure the speed table",
		Long: `vrdma bench run runs experiments: see docs/how-to/benchmark.md. Without a subcommand this is a
tool of the repository: see make bench.

Measures the speed table, every tool in turn and round after round. Prints it as Markdown,
and writes JSON and Markdown to a directory. A tool that fails is reported in its row. By
default all parts are measured, except rxe, which needs a kernel with rxe, upgrade, and move, which
needs podman and CRIU:

  local        programs on one host, and their cost
  memory       registering memory, and memory that is shared or copied instead of replaced
  cm           connections per second
  sockets      TCP programs over vrdma run --sockets, on one host and between two
  go           Go programs: package verbs against perftest, package stream against TCP
  copy         files: vrdma cp against cp, the published protocol and TCP
  veth         two hosts: two network namespaces, as root or in a user namespace
  overlay      a virtual network between them, against the same without
  containers   two containers against two processes of the host, against TCP; their start
  wait         programs that sleep, share processors or are in another control group,
               and the processor time of all processes
  qos          tenants of one daemon: shares, caps, guarantees, latency
  guest        against the kernel's rxe, in a virtual machine
  vms          two virtual machines: verbs and sockets against TCP over a tap, and rxe
  rxe          against the kernel's rxe, on this machine
  upgrade      how long an upgrade of the daemon stops programs
  move         how long a move to another host stops a container, beside one without RDMA
  loops        what more loops bring, beside more pairs over TCP and more processes of memcpy
  allocations  of the data path

With --against, three builds measure the vrdma side of every row in turn: this build, this
build again as the control, and the other build. BINARY is the other build's vrdma, with its
libvrdma.so and libvrdma-sockets.so beside it. A row is WORSE if this build's median
is worse by more than 3 % and by more than this build differs from itself. The exit status is
then 1. TCP and other comparisons are not measured, nor are the parts containers, guest, vms,
rxe, upgrade, move and allocations.

With --attacks, it measures the latency of a victim alone and beside a hostile tenant of the
same daemon. It also reads the daemon's resources before, during and after. With --against
it measures the other build, too. As root, victim and attacker are two other users. Do not run it on a
machine that others use: the attacks take up to 2 GB, and all resources of the daemon.`,
		Example: `  vrdma bench --only veth,cm --rounds 3
  vrdma bench --rows 'send latency'
  vrdma bench --only wait --rows 'sleeping|processor time'
  vrdma bench --against ../before/bin/vrdma --rounds 9
  vrdma bench --attacks --rows 'rnr|error' --against ../before/bin/vrdma`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if err := needTools("ib_write_bw"); err != nil {
				return err
			}
			if f.attacks {
				return f.attack(c.OutOrStdout())
			}
			if f.against != "" {
				return f.compare(c.OutOrStdout())
			}
			return inLab(nil, func(ctx context.Context, lab *testbed.Lab) error {
				f.table.Lab, f.table.Progress = lab, os.Stderr
				report, err := f.table.Run(ctx, version)
				if err != nil {
					return err
				}
				return f.deliver(c.OutOrStdout(), report)
			})
		},
	}
	c.AddCommand(benchListCommand(), benchShowCommand(), benchRunCommand(), benchAgentCommand())
	c.Flags().StringSliceVar(&f.table.Only, "only", nil, "measure these parts: "+strings.Join(bench.Parts(), ", "))
	c.Flags().StringVar(&f.rows, "rows", "", "measure rows whose name matches this regular expression, ignoring case")
	c.Flags().IntVar(&f.table.Rounds, "rounds", 5, "how often every tool is run")
	c.Flags().StringVar(&f.against, "against", "", "compare with another build: the path of its vrdma")
	c.Flags().BoolVar(&f.reportOnly, "report-only", false, "with --against: exit status 0 even if a row is worse")
	c.Flags().BoolVar(&f.attacks, "attacks", false, "measure a victim beside hostile tenants instead; --rows selects attacks")
	c.Flags().StringVar(&f.out, "out", "bench/results", "the directory for results; empty: none")
	c.Flags().StringVarP(&f.format, "output", "o", "text", "text or json")
	c.Flags().StringVar(&f.table.Source, "source", ".", "the repository, for the guest and the allocation tests")
	c.Flags().StringVar(&f.table.Kernel, "kernel-device", "", "a device of the kernel's rxe, for part rxe")
	return c
}

// check rejects flags that contradict each other.
func (f *benchFlags) check() error {
	parts, flags := bench.Parts(), "--only"
	if f.against != "" {
		parts, flags = bench.Comparable(), "--against with --only"
	}
	for _, name := range f.table.Only {
		if !slices.Contains(parts, name) {
			return usage("%s %s: choose among %s", flags, name, strings.Join(parts, ", "))
		}
	}
	if f.format != "text" && f.format != "json" {
		return usage("-o %s: choose text or json", f.format)
	}
	if f.table.Rounds < 1 {
		return usage("--rounds %d: want at least 1", f.table.Rounds)
	}
	if f.reportOnly && (f.against == "" || f.attacks) {
		return usage("--report-only says nothing without --against, nor with --attacks")
	}
	if f.attacks && len(f.table.Only) > 0 {
		return usage("--attacks has no parts for --only: pick attacks with --rows")
	}
	if f.rows == "" {
		return nil
	}
	rows, err := regexp.Compile("(?i)" + f.rows)
	if err != nil {
		return usage("--rows %s: %w", f.rows, err)
	}
	f.table.Rows = rows
	if f.attacks {
		if len(attack.Matching(f.table.Rows)) == 0 {
			return usage("--rows %s: no attack matches; they are listed in docs/reference/experiments.md", f.rows)
		}
		return nil
	}
	if !f.table.Any() {
		return usage("--rows %s: no row of the chosen parts matches; the parts are listed in docs/reference/experiments.md", f.rows)
	}
	return nil
}

// compare measures this build against another.
func (f *benchFlags) compare(stdout io.Writer) error {
	other, err := f.other()
	if err != nil {
		return err
	}
	return inLab(nil, func(ctx context.Context, ours *testbed.Lab) error {
		return testbed.With(ours.Original, nil, func(control *testbed.Lab) error {
			return testbed.With(other, nil, func(theirs *testbed.Lab) error {
				c := bench.Comparison{Ours: ours, Control: control, Theirs: theirs, Table: f.table, Progress: os.Stderr}
				report, err := c.Run(ctx, version)
				if report == nil {
					return err
				}
				if err := errors.Join(err, f.deliver(stdout, report)); err != nil {
					return err
				}
				if worse := report.Worse(); len(worse) > 0 && !f.reportOnly {
					return fmt.Errorf("worse than %s: %s", f.against, strings.Join(worse, "; "))
				}
				return nil
			})
		})
	})
}

// other returns the path of the other build's binary.
func (f *benchFlags) other() (string, error) {
	path, err := filepath.Abs(f.against)
	if err != nil {
		return "", err
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return "", usage("--against %s: want the path of another build's vrdma, with its shared objects beside it", f.against)
	}
	return path, nil
}

// attack measures a victim beside attackers, with this build and optionally another one.
func (f *benchFlags) attack(stdout io.Writer) error {
	run := attack.Run{Attacks: attack.Matching(f.table.Rows), Rounds: f.table.Rounds, Progress: os.Stderr}
	measure := func(ctx context.Context) error {
		report, err := run.Run(ctx, version)
		if err != nil {
			return err
		}
		return f.deliver(stdout, report)
	}
	return inLab(nil, func(ctx context.Context, ours *testbed.Lab) error {
		run.Labs, run.Names = []*testbed.Lab{ours}, []string{"this build"}
		if f.against == "" {
			return measure(ctx)
		}
		other, err := f.other()
		if err != nil {
			return err
		}
		return testbed.With(other, nil, func(theirs *testbed.Lab) error {
			run.Labs, run.Names = append(run.Labs, theirs), append(run.Names, "other build")
			return measure(ctx)
		})
	})
}

// deliver writes a result to the results directory and prints it.
func (f *benchFlags) deliver(stdout io.Writer, r speedtable.Result) error {
	if f.out != "" {
		path, err := r.Write(f.out)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "results: %s.json\n\n", path)
	}
	if f.format == "json" {
		return r.JSON(stdout)
	}
	return r.Markdown(stdout)
}
