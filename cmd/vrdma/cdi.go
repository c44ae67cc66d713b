package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/platform/container"
)

func cdiCommand(o *options) *cobra.Command {
	var hook string
	c := &cobra.Command{
		Use:   "cdi [TENANT]",
		Short: "print the NICs of this host as CDI files",
		Long: `Prints the files of the Container Device Interface that the daemon writes with --cdi. With
them an engine gives a NIC to a container: podman run --device vrdma.io/nic=default, or
vrdma.io/nic=TENANT.NAME for a declared NIC. Prints one document for each tenant with NICs on
this host, and one for the NIC default. With an argument it prints only that tenant's
(default is the tenant of the NIC default). Contains only NICs that this user may open.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			sockets, err := protocol.QueryNICs(place.Socket)
			if absent(err) {
				return lacks("no daemon serves %s: start one with vrdma daemon, or choose another with --socket", place.Socket)
			}
			if err != nil {
				return improper(place, err)
			}
			program, err := container.HookProgram(hook)
			if err != nil {
				return err
			}
			var nics []container.NIC
			for _, d := range sockets {
				n, err := container.Of(place, d.Name, program)
				if err != nil {
					return err
				}
				nics = append(nics, n)
			}
			specs := container.Specs(nics)
			wanted := slices.Sorted(maps.Keys(specs))
			if len(args) == 1 {
				of := strings.TrimPrefix(args[0], registry.Default)
				if specs[of] == nil {
					return fmt.Errorf("tenant %s has no NIC here that we may open", args[0])
				}
				wanted = []string{of}
			}
			for _, of := range wanted {
				if _, err := c.OutOrStdout().Write(specs[of].Text()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&hook, "hook", "", "the path of vrdma in the engines' mount namespace, for hooks; none: no hooks (default: this program)")
	return c
}
