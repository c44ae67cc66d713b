package main

import (
	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/net/netns"
)

// netnsCommand is the helper process of package netns. A daemon starts it in a container's namespaces.
func netnsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    netns.Command + " KINDS",
		Short:  "make sockets in a network namespace, for the daemon that starts it",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return netns.Serve(args[0]) },
	}
}
