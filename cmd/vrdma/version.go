package main

import (
	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/buildinfo"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/vm/vmproto"
	"vrdma.dev/vrdma/internal/filecopy"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// version is what the daemon and its clients compare.
var version = buildinfo.Read().Version

func versionCommand() *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "version",
		Short: "print version, commit, Go and protocol versions",
		Long: `Prints the version, the commit and its date, the version of Go, and the protocols that this
build speaks: with programs (libvrdma.so and package verbs), with other hosts, with agents in
virtual machines, and of vrdma cp.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usage("-o %s: choose text or json", output)
			}
			i := buildinfo.Read()
			i.Objects = tenant.APIVersion
			i.Protocols = []buildinfo.Protocol{
				{Name: "programs", Version: protocol.Version, Oldest: protocol.OldestVersion},
				{Name: "hosts", Version: wire.HelloProtocol},
				{Name: "agents", Version: vmproto.Version},
				{Name: "cp", Version: filecopy.ProtocolVersion},
			}
			return i.Print(c.OutOrStdout(), "vrdma", output == "json")
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return c
}
