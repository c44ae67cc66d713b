package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/instrument/doctor"
	"vrdma.dev/vrdma/internal/platform/preflight"
)

func doctorCommand() *cobra.Command {
	var output, experiment, peer, rsh string
	var answer bool
	c := &cobra.Command{
		Use:   "doctor [-- PROGRAM [ARGS...]]",
		Short: "check what this machine can do for experiments, and what it lacks",
		Long: `Checks what experiments with RDMA need: verbs, network, processors, hardware, guests,
containers, tools. It runs its tests in a network namespace of its own and changes nothing.

  yes   available
  no    missing; the line has the purpose and the remedy
  ?     unknown

A star marks what some experiments cannot run without. With --for only the needs of one suite
of vrdma bench run are shown, and the exit status is 3 if the suite cannot run.

With --peer it examines this machine and another one, and what is between them: TCP, RoCE's UDP
port, the size of packets, the versions of tools, the kernel's devices. vrdma is copied there and
removed at the end; nothing else is needed there. The exit status is 3 if the two cannot measure.

KVM counts if a kernel boots: --for and plain doctor try it, for ten seconds at most.

With a program it reports only whether that program sees the device under vrdma run, and if
not, why and what to do. The exit status is then 3. It starts nothing.`,
		Example: `  vrdma doctor
  vrdma doctor --for thesis
  vrdma doctor -o json
  vrdma doctor --peer root@10.0.0.2
  vrdma doctor -- sudo ib_send_bw`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return examineProgram(c.OutOrStdout(), args)
			}
			if !slices.Contains([]string{"text", "json"}, output) {
				return usage("-o %s: choose text or json", output)
			}
			if answer {
				return doctor.Answer(doctor.Here(), c.InOrStdin(), c.OutOrStdout())
			}
			if peer != "" {
				return examinePeer(c, peer, strings.Fields(rsh), output)
			}
			checks, err := doctor.Select(doctor.All(), experiment)
			if err != nil {
				return usage("--for: %w", err)
			}
			found := doctor.Examine(doctor.Here(), checks, experiment)
			if err := printFindings(c.OutOrStdout(), found, output); err != nil {
				return err
			}
			if missing := doctor.Missing(found); experiment != "" && len(missing) > 0 {
				var names []string
				for _, f := range missing {
					names = append(names, f.Name)
				}
				return lacks("%s cannot run here: %s missing; see above what to do", experiment, strings.Join(names, ", "))
			}
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	c.Flags().StringVar(&experiment, "for", "", "a suite of experiments: "+strings.Join(doctor.Experiments, ", "))
	c.Flags().StringVar(&peer, "peer", "", "USER@HOST of another machine, which is examined, too")
	c.Flags().StringVar(&rsh, "rsh", "ssh -o BatchMode=yes", "the remote shell for --peer")
	c.Flags().BoolVar(&answer, "answer", false, "be the other machine of --peer")
	c.Flags().MarkHidden("answer")
	c.MarkFlagsMutuallyExclusive("peer", "for", "answer")
	return c
}

// examinePeer prints what two machines have, and what is between them.
func examinePeer(c *cobra.Command, peer string, rsh []string, output string) error {
	if len(rsh) == 0 {
		return usage("--rsh: name a program")
	}
	if strings.HasPrefix(peer, "-") {
		return usage("--peer %s: name a machine, as USER@HOST", peer)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	pair, err := doctor.ExaminePeer(ctx, doctor.Here(), rsh, peer, self)
	if err != nil {
		return err
	}
	w := c.OutOrStdout()
	if output == "json" {
		err = printIndented(w, pair)
	} else {
		for _, part := range []struct {
			title string
			found []doctor.Finding
		}{{"THIS MACHINE", pair.Here}, {strings.ToUpper(peer), pair.There}, {"BOTH", pair.Between}} {
			fmt.Fprintln(w, part.title)
			if err = printFindings(w, part.found, output); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	if missing := doctor.Missing(pair.Between); len(missing) > 0 {
		var names []string
		for _, f := range missing {
			names = append(names, f.Name)
		}
		return lacks("no experiment can run between this machine and %s: %s; see above what to do", peer, strings.Join(names, ", "))
	}
	return nil
}

func printIndented(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// examineProgram prints what keeps a program from the device.
func examineProgram(w io.Writer, args []string) error {
	path, status, err := preflight.Find(args[0])
	if err != nil {
		return &exit.Error{Status: status, Err: err}
	}
	found := slices.Concat(preflight.Program(path), preflight.Environment(args))
	for _, f := range slices.Concat(found, preflight.Machine("/")) {
		fmt.Fprintln(w, f)
	}
	if len(found) > 0 {
		return lacks("%s does not see the device; see above what to do", strings.Join(args, " "))
	}
	fmt.Fprintf(w, "%s sees the device: vrdma run -- %s\n", path, strings.Join(args, " "))
	return nil
}

// printFindings prints findings as text or JSON.
func printFindings(w io.Writer, found []doctor.Finding, output string) error {
	if output == "json" {
		return printIndented(w, found)
	}
	doctor.Print(w, found)
	return nil
}
