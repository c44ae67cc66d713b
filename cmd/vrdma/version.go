package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "vrdma %s, protocol %d\n", version, protocol.Version)
			return err
		},
	}
}
