package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func nodeCommand() *cobra.Command {
	var f flags
	var dra bool
	c := &cobra.Command{
		Use:   "node [flags] [-- FLAGS OF vrdma daemon]",
		Short: "run the daemon and the plugins of this host, in one container",
		Long: `Runs vrdma daemon, vrdma-kube device-plugin and, with --dra, vrdma-kube dra. It restarts a
program that ends.

They are in one container, because the daemon accepts changes only from processes with its own
root directory, not from another container. The operator uses

  kubectl exec -i -n vrdma ds/vrdma -- vrdma apply -f - <FILE`,
		RunE: func(c *cobra.Command, args []string) error {
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			self, err := os.Executable()
			if err != nil {
				return err
			}
			return supervise(c.Context(), log, f.programs(self, dra, args), time.Second, 20*time.Second)
		},
	}
	f.common(c)
	c.Flags().IntVar(&f.slots, "slots", 110, "at most `N` containers of this host have a NIC, and as many claims")
	c.Flags().BoolVar(&dra, "dra", false, "also run the driver of dynamic resource allocation")
	return c
}

// programs returns the command lines of a node's programs. vrdma is beside this program.
func (f *flags) programs(self string, dra bool, daemon []string) [][]string {
	common := []string{"--socket", f.socket, "--node", f.node, "--kubelet", f.kubelet, "--cdi", f.cdi, "--slots", strconv.Itoa(f.slots)}
	if f.pods != "" {
		common = append(common, "--pods", f.pods)
	}
	if f.token != "" || f.ca != "" {
		common = append(common, "--token", f.token, "--ca", f.ca)
	}
	all := [][]string{
		append([]string{filepath.Join(filepath.Dir(self), "vrdma"), "daemon", "--socket", f.socket}, daemon...),
		append([]string{self, "device-plugin"}, common...),
	}
	if dra {
		all = append(all, append([]string{self, "dra"}, common...))
	}
	return all
}

// supervise runs programs until ctx ends. It restarts a program that ends, after a pause. When ctx ends the programs
// get SIGTERM, and are killed after grace.
func supervise(ctx context.Context, log *slog.Logger, programs [][]string, pause, grace time.Duration) error {
	var all sync.WaitGroup
	defer all.Wait()
	for _, argv := range programs {
		all.Go(func() {
			name := filepath.Base(argv[0]) + " " + argv[1]
			for ctx.Err() == nil {
				cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
				cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
				cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
				cmd.WaitDelay = grace
				err := cmd.Run()
				if ctx.Err() != nil {
					return
				}
				log.Warn("ended, starts again", "program", name, "error", fmt.Sprint(err))
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	return nil
}
