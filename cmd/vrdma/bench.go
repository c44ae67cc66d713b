package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"vrdma/internal/bench"
)

func benchCommand() *cobra.Command {
	var table bench.Table
	var out, format string
	c := &cobra.Command{
		Use:   "bench",
		Short: "measure the speed table",
		Long: `Measures the speed table, every tool in turn and round after round, and writes it as
Markdown, and as JSON and Markdown to a directory. A tool that fails is reported in its
row. Parts, all by default except rxe, which needs a kernel that has it:

  local        programs on one host, and what they cost
  cm           connections a second
  sockets      TCP programs over vrdma run --sockets
  veth         two hosts: two network namespaces, as root or in a user namespace
  guest        against the kernel's rxe, in a virtual machine
  rxe          against the kernel's rxe, here
  allocations  of the data path`,
		Hidden: true, // a tool of the repository, see make bench
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, name := range table.Only {
				if !slices.Contains(bench.Parts(), name) {
					return usage("--only %s: choose among %s", name, strings.Join(bench.Parts(), ", "))
				}
			}
			if format != "text" && format != "json" {
				return usage("-o %s: choose text or json", format)
			}
			if table.Rounds < 1 {
				return usage("--rounds %d: want at least 1", table.Rounds)
			}
			if err := needTools("ib_write_bw"); err != nil {
				return err
			}
			return inLab(nil, func(ctx context.Context, lab *bench.Lab) error {
				table.Lab, table.Progress = lab, os.Stderr
				report, err := table.Run(ctx, version)
				if err != nil {
					return err
				}
				if out != "" {
					path, err := report.Write(out)
					if err != nil {
						return err
					}
					fmt.Fprintf(os.Stderr, "results: %s.json\n\n", path)
				}
				if format == "json" {
					return report.JSON(c.OutOrStdout())
				}
				return report.Markdown(c.OutOrStdout())
			})
		},
	}
	c.Flags().StringSliceVar(&table.Only, "only", nil, "measure these parts: "+strings.Join(bench.Parts(), ", "))
	c.Flags().IntVar(&table.Rounds, "rounds", 5, "how often every tool is run")
	c.Flags().StringVar(&out, "out", "bench/results", "the directory for results; empty: none")
	c.Flags().StringVarP(&format, "output", "o", "text", "text or json")
	c.Flags().StringVar(&table.Source, "source", ".", "the repository, for the guest and the allocation tests")
	c.Flags().StringVar(&table.Kernel, "kernel-device", "", "a device of the kernel's rxe, for part rxe")
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
			if err := needTools("ibv_devinfo", "ib_write_bw", "qperf", "rping", "ip", "nsenter"); err != nil {
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
		return lacks("%s not found: run tools/install-deps build demo test bench", strings.Join(missing, ", "))
	}
	return nil
}

// inLab runs f in a lab of its own that is gone afterwards, also after Ctrl-C.
func inLab(as *syscall.Credential, f func(context.Context, *bench.Lab) error) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
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
		uids, _ := os.ReadFile("/proc/self/uid_map")
		gids, _ := os.ReadFile("/proc/self/gid_map")
		if !mapped(string(uids), nobody) || !mapped(string(gids), nobody) {
			return nil, "root of a user namespace, elsewhere an ordinary user"
		}
		return &syscall.Credential{Uid: nobody, Gid: nobody}, "nobody, an ordinary user"
	}
	if me, err := user.Current(); err == nil {
		return nil, me.Username + ", an ordinary user"
	}
	return nil, fmt.Sprintf("uid %d, an ordinary user", os.Getuid())
}

// mapped reports whether a user namespace has id: table is its uid_map or gid_map, lines of
// first inside, first outside, how many.
func mapped(table string, id uint64) bool {
	for line := range strings.Lines(table) {
		var inside, outside, n uint64
		if _, err := fmt.Sscan(line, &inside, &outside, &n); err == nil && id >= inside && id-inside < n {
			return true
		}
	}
	return false
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
