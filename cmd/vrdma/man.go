package main

import (
	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/buildinfo"
	"vrdma.dev/vrdma/internal/manpage"
)

// manCommand is for make install, and therefore hidden.
func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "write a man page for each command into DIR",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return manpage.Write(c.Root(), buildinfo.Read(), args[0])
		},
	}
}
