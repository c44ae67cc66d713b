package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/buildinfo"
	"vrdma.dev/vrdma/internal/manpage"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func versionCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "print version, commit and Go",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("-o %s: choose text or json", output)
			}
			i := buildinfo.Read()
			i.Objects = tenant.APIVersion
			return i.Print(c.OutOrStdout(), "vrdma-kube", output == "json")
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return c
}

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
