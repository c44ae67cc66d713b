package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/instrument/doctor"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/measure"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// benchListCommand lists the built-in experiments.
func benchListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "list the experiments that come with vrdma",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := experiment.Suites()
			if err != nil {
				return err
			}
			t := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "SUITE\tEXPERIMENT\tRUNS\tTITLE")
			for _, e := range all {
				fmt.Fprintf(t, "%s\t%s\t%d\t%s\n", e.Spec.Suite, e.Name, len(e.Cells())*e.Spec.Rounds, e.Spec.Title)
			}
			return t.Flush()
		},
	}
}

// benchShowCommand prints experiments as documents.
func benchShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID|SUITE|FILE…",
		Short: "print experiments as documents to edit and run",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			list, err := experiment.Choose(args)
			if err != nil {
				return usage("%w", err)
			}
			for i, e := range list {
				if i > 0 {
					fmt.Fprintln(c.OutOrStdout(), "---")
				}
				text, err := e.Text()
				if err != nil {
					return err
				}
				if _, err := c.OutOrStdout().Write(text); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// runFlags are the flags of bench run.
type runFlags struct {
	out    string
	quick  bool
	resume bool
	seed   uint64
	in     testbed.Environments
	device string
	rsh    string
}

func benchRunCommand() *cobra.Command {
	f := &runFlags{}
	c := &cobra.Command{
		Use:   "run [ID|SUITE|FILE…]",
		Short: "run experiments and store their results",
		Long: `Runs experiments, suites, or the experiments of a file; by default the suite quick. Each round
runs every combination once, in random order. DIR/results.ndjson has a line for each run:
value, processor time by role, what carried the bytes, command lines and the tool's own
output. A failed run has the reason.

Ctrl-C keeps the results so far; --resume continues the results of DIR in the same order.`,
		Example: `  vrdma bench run --out results
  vrdma bench run quick-latency --quick --out results
  vrdma bench run --resume --out results`,
		RunE: func(c *cobra.Command, args []string) error {
			if f.resume && (len(args) > 0 || f.quick) {
				return usage("--resume goes on with the experiments of the results: name none, and leave --quick out")
			}
			return f.run(args, os.Stderr)
		},
	}
	c.Flags().StringVar(&f.out, "out", "", "the directory for results (default: vrdma-results-TIME)")
	c.Flags().BoolVar(&f.quick, "quick", false, "two rounds of one second each, to check that it works")
	c.Flags().BoolVar(&f.resume, "resume", false, "continue the results of --out")
	c.Flags().Uint64Var(&f.seed, "seed", 0, "seed of the order of runs (default: random)")
	c.Flags().StringVar(&f.in.Peer, "peer", "", "USER@HOST, for setting remote: vrdma is copied there and removed at the end")
	c.Flags().StringVar(&f.rsh, "rsh", "ssh -o BatchMode=yes", "the remote shell for --peer")
	c.Flags().StringVar(&f.device, "device", "", "a device of the kernel's, such as mlx5_0, for transport kernel")
	c.Flags().StringVar(&f.in.Source, "source", ".", "the repository, which builds the guests of settings vms, vms-apart and guest-rxe")
	c.Flags().StringVar(&f.in.Rootfs, "rootfs", "", "the root directory of containers; with docker the image (default: this machine's programs)")
	c.Flags().StringVar(&f.in.Engine, "engine", "", "container engine: "+strings.Join(testbed.EngineNames(), ", ")+" (default: the first that works)")
	return c
}

// run runs experiments to their end or until it is interrupted.
func (f *runFlags) run(names []string, progress io.Writer) error {
	r := &experiment.Run{Progress: progress, Quick: f.quick, Seed: f.seed}
	if r.Seed == 0 {
		r.Seed = rand.Uint64()
	}
	var err error
	if f.resume {
		err = f.goOn(r)
	} else {
		err = f.begin(r, names)
	}
	if err != nil {
		return err
	}
	defer r.Out.Close()
	err = inLab(nil, func(ctx context.Context, lab *testbed.Lab) error {
		f.in.Lab, f.in.Rsh = lab, strings.Fields(f.rsh)
		in := &measure.Instrument{Environments: &f.in, Device: f.device}
		defer in.Close()
		r.Instrument = in
		return r.Go(ctx)
	})
	if err != nil && !errors.Is(err, experiment.ErrInterrupted) {
		return err
	}
	fmt.Fprintf(progress, "results: %s; now vrdma report %s\n", f.out, f.out)
	return err
}

// begin starts new results.
func (f *runFlags) begin(r *experiment.Run, names []string) (err error) {
	if r.Experiments, err = experiment.Choose(names); err != nil {
		return usage("%w", err)
	}
	if f.out == "" {
		f.out = "vrdma-results-" + time.Now().Format("20060102-150405")
	}
	h := experiment.Header{Program: version, Started: time.Now(), Seed: r.Seed, Quick: r.Quick, Machine: experiment.ThisMachine()}
	h.Machine.Programs = doctor.Versions(doctor.Here())
	for _, e := range r.Experiments {
		text, err := e.Text()
		if err != nil {
			return err
		}
		h.Experiments = append(h.Experiments, string(text))
	}
	r.Out, err = experiment.Create(f.out, h)
	return err
}

// goOn continues existing results.
func (f *runFlags) goOn(r *experiment.Run) error {
	if f.out == "" {
		return usage("--resume goes on with results: name their directory with --out")
	}
	out, results, err := experiment.Resume(f.out)
	if err != nil {
		return err
	}
	r.Out, r.Done, r.Seed, r.Quick = out, results.Records, results.Header.Seed, results.Header.Quick
	for _, text := range results.Header.Experiments {
		list, err := experiment.Parse(f.out, []byte(text))
		if err != nil {
			out.Close()
			return err
		}
		r.Experiments = append(r.Experiments, list...)
	}
	return nil
}

// benchAgentCommand runs tools for bench run on another machine.
func benchAgentCommand() *cobra.Command {
	var line, device string
	var remove bool
	c := &cobra.Command{
		Use:    "agent",
		Short:  "run tools for a bench run on another machine",
		Hidden: true, // bench run starts it
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return inLab(nil, func(ctx context.Context, lab *testbed.Lab) error {
				if remove { // the lab has a copy
					if err := os.RemoveAll(filepath.Dir(lab.Original)); err != nil {
						return err
					}
				}
				from, to := os.Stdin, os.Stdout
				if line != "" {
					f, err := os.OpenFile(line, os.O_RDWR, 0)
					if err != nil {
						return err
					}
					defer f.Close()
					from, to = f, f
				}
				in := &measure.Instrument{Environments: &testbed.Environments{Lab: lab}, Device: device}
				return testbed.ServeAgent(ctx, lab, in, from, to)
			})
		},
	}
	c.Flags().StringVar(&line, "line", "", "the file to talk to (default: standard input and output)")
	c.Flags().StringVar(&device, "device", "", "a device of the kernel's, for transport kernel")
	c.Flags().BoolVar(&remove, "remove", false, "remove the directory of this program")
	return c
}
