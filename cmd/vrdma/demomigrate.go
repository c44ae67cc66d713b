package main

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/instrument/demo"
)

func demoMigrateCommand(o *options) *cobra.Command {
	var sample bool
	c := &cobra.Command{
		Use:   "migrate",
		Short: "move a running container to another host under ib_write_bw, and draw the gap",
		Long: `Creates two hosts in namespaces on this machine, with a link between them, etcd on the first,
and podman and a daemon on each. Starts a container with ib_write_bw on the first, and a peer on
the second that writes to its memory without an end. Moves the container to the second host with
podman's checkpoint and restore, and draws how fast data moved meanwhile. Removes everything at
the end.

It needs root, and these programs: podman, crun, CRIU 4, nft, etcd, ip, nsenter, unshare, perftest.
Where podman or CRIU 4 is missing, it uses those that tools/container-image and tools/criu-image
have unpacked into the user's cache.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			if sample {
				place, err := o.place()
				if err != nil {
					return err
				}
				return demo.Sample(ctx, c.OutOrStdout(), place.Socket)
			}
			if err := needTools("ip", "nsenter", "unshare"); err != nil {
				return err
			}
			return demo.Migrate(ctx, c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&sample, "sample", false, "print what the NIC of the peer has sent, again and again")
	c.Flags().MarkHidden("sample") // fails only for a flag that is not there
	return c
}
