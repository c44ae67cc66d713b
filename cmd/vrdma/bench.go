package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"vrdma/internal/bench"
)

func benchCommand() *cobra.Command {
	var rounds int
	var out, source string
	c := &cobra.Command{
		Use:    "bench",
		Short:  "measure the speed table",
		Hidden: true, // a tool of the repository, see make bench
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := needTools("ib_write_bw", "qperf", "gcc", "go"); err != nil {
				return err
			}
			return inLab(nil, func(ctx context.Context, lab *bench.Lab) error {
				table := bench.Table{Lab: lab, Progress: os.Stderr, Rounds: rounds, Source: source}
				report, err := table.Run(ctx, version)
				if err != nil {
					return err
				}
				path, err := report.Write(out)
				if err != nil {
					return err
				}
				fmt.Fprintf(os.Stderr, "results: %s.json\n\n", path)
				return report.Markdown(c.OutOrStdout())
			})
		},
	}
	c.Flags().IntVar(&rounds, "rounds", 5, "how often every tool is run")
	c.Flags().StringVar(&out, "out", "bench/results", "the directory for results")
	c.Flags().StringVar(&source, "source", ".", "the repository, for the allocation tests")
	return c
}

func demoCommand() *cobra.Command {
	var rounds int
	c := &cobra.Command{
		Use:    "demo",
		Short:  "compare RDMA through vrdma with TCP on this machine",
		Hidden: true, // a tool of the repository, see make demo
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := needTools("ibv_devinfo", "ib_write_bw", "qperf"); err != nil {
				return err
			}
			ordinary, name := ordinaryUser()
			return inLab(ordinary, func(ctx context.Context, lab *bench.Lab) error {
				demo := bench.Demo{
					Lab: lab, Out: c.OutOrStdout(), Progress: os.Stderr, Rounds: rounds,
					Colour: isTerminal(os.Stdout), As: name,
				}
				return demo.Run(ctx)
			})
		},
	}
	c.Flags().IntVar(&rounds, "rounds", 3, "how often every tool is run")
	return c
}

// needTools says which programs are missing.
func needTools(names ...string) error {
	var missing []string
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return lacks("%s not found: run tools/install-deps build demo test", strings.Join(missing, ", "))
	}
	return nil
}

// inLab runs f in a lab of its own that is gone afterwards, also after Ctrl-C.
func inLab(as *syscall.Credential, f func(context.Context, *bench.Lab) error) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	lab, err := bench.NewLab(self, as)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := lab.Close(); err == nil {
			err = closeErr
		}
	}()
	return f(ctx, lab)
}

// ordinaryUser is whom to run as: root has no need to prove that root can.
func ordinaryUser() (as *syscall.Credential, name string) {
	const nobody = 65534
	if os.Getuid() == 0 {
		return &syscall.Credential{Uid: nobody, Gid: nobody}, "nobody, an ordinary user"
	}
	if me, err := user.Current(); err == nil {
		return nil, me.Username + ", an ordinary user"
	}
	return nil, fmt.Sprintf("uid %d, an ordinary user", os.Getuid())
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
