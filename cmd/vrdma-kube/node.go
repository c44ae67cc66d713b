package main

import (
	"context"
	"errors"
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

	"vrdma.dev/vrdma/internal/client/protocol"
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

  kubectl exec -i -n vrdma ds/vrdma -- vrdma apply -f - <FILE

If a daemon in another container serves the socket when this program starts, the daemon takes
over from it: programs in pods and their connections continue. It can if that daemon has
--container-takeover, and if both containers have the same directories for the socket and for
/run, and the machine's pid namespace. The other container then waits for its end. Until this
container's daemon serves, vrdma-kube ready fails.`,
		RunE: func(c *cobra.Command, args []string) error {
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			self, err := os.Executable()
			if err != nil {
				return err
			}
			daemon, plugins := f.programs(self, dra, args)
			n := &node{log: log, daemon: daemon, plugins: plugins, served: func() bool { return served(f.socket) }, own: func() bool { return own(f.socket) == nil }, pause: time.Second, grace: 20 * time.Second}
			n.run(c.Context())
			return nil
		},
	}
	f.common(c)
	c.Flags().IntVar(&f.slots, "slots", 110, "at most `N` containers of this host have a NIC, and as many claims")
	c.Flags().BoolVar(&dra, "dra", false, "also run the driver of dynamic resource allocation")
	return c
}

// programs returns the command lines of a node's programs. vrdma is beside this program.
func (f *flags) programs(self string, dra bool, args []string) (daemon []string, plugins [][]string) {
	common := []string{"--socket", f.socket, "--node", f.node, "--kubelet", f.kubelet, "--cdi", f.cdi, "--slots", strconv.Itoa(f.slots)}
	if f.pods != "" {
		common = append(common, "--pods", f.pods)
	}
	if f.token != "" || f.ca != "" {
		common = append(common, "--token", f.token, "--ca", f.ca)
	}
	daemon = append([]string{filepath.Join(filepath.Dir(self), "vrdma"), "daemon", "--socket", f.socket}, args...)
	plugins = [][]string{append([]string{self, "device-plugin"}, common...)}
	if dra {
		plugins = append(plugins, append([]string{self, "dra"}, common...))
	}
	return daemon, plugins
}

// served reports whether a daemon serves the socket, in whichever container.
func served(socket string) bool {
	c, err := protocol.Dial(socket, protocol.Hello{Kind: protocol.KindControl, Program: "vrdma-kube"})
	if err != nil {
		return errors.As(err, new(*protocol.Refusal))
	}
	c.Close()
	return true
}

// own returns why the daemon that serves the socket is not this container's.
func own(socket string) error {
	s, err := protocol.QueryStatus(socket)
	switch {
	case err != nil:
		return err
	case s.Control == "": // it answers, but not as it answers its own container
		return errors.New("a daemon in another container serves " + socket)
	}
	return nil
}

// A node runs the programs of a host.
//
//	       no daemon serves                      a daemon of another container serves
//	start ───────────────────┐             start ──────────────┐
//	                         ▼                                 ▼
//	                     daemon, plugins ◀── taken over ── daemon --takeover
//	                         │        ▲                        │ refused: again after a pause
//	 the daemon has ended,   │        │ no daemon serves
//	 and another one serves  ▼        │ any more
//	                      waiting ────┘
//
// It takes over only when it starts. Otherwise two nodes on one host would take over from each other again and again.
type node struct {
	log          *slog.Logger
	daemon       []string
	plugins      [][]string
	served, own  func() bool   // a daemon serves the socket; it is this container's
	pause, grace time.Duration // before a program starts again; for the programs' end
}

// run runs the programs until ctx ends. Then they get SIGTERM, and are killed after grace.
func (n *node) run(ctx context.Context) {
	first := true
	for ctx.Err() == nil {
		daemon := n.daemon
		switch {
		case !n.served():
		case first:
			n.log.Info("takes over from the daemon in another container")
			daemon = append(append([]string{}, daemon...), "--takeover")
		default:
			n.log.Info("a daemon in another container serves: waits for its end")
			for n.served() {
				if !n.wait(ctx) {
					return
				}
			}
			continue
		}
		first = n.serve(ctx, daemon) && first
		n.wait(ctx)
	}
}

// serve runs the daemon, and the plugins from when it serves until it has ended: two plugins of a host would undo each other's work.
// It reports whether the daemon could not take over.
func (n *node) serve(ctx context.Context, daemon []string) (refused bool) {
	ctx, cancel := context.WithCancel(ctx)
	var plugins sync.WaitGroup
	defer plugins.Wait()
	defer cancel()
	for _, argv := range n.plugins {
		plugins.Go(func() {
			for !n.own() {
				if !n.wait(ctx) {
					return
				}
			}
			for ctx.Err() == nil {
				n.program(ctx, argv)
				n.wait(ctx)
			}
		})
	}
	return n.program(ctx, daemon) != nil && n.served()
}

// program runs a program to its end.
func (n *node) program(ctx context.Context, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = n.grace
	err := cmd.Run()
	if ctx.Err() == nil {
		n.log.Warn("ended", "program", filepath.Base(argv[0])+" "+argv[1], "error", fmt.Sprint(err))
	}
	return err
}

// wait waits for a pause. It reports false if ctx has ended.
func (n *node) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(n.pause):
		return true
	}
}
