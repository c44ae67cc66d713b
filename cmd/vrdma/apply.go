package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/tenancy/control"
)

func applyCommand(o *options) *cobra.Command {
	var files objectFiles
	var force, dryRun bool
	c := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "declare tenants, networks, NICs and policies",
		Long: `Creates and changes the objects of YAML files: all of them, or none if one is wrong. Errors
have file and line. Addresses and VNIs that a file omits are allocated, and stay when the
file is applied again. docs/reference/objects.md lists every field.

  vrdma apply -f two-tenants.yaml
  vrdma apply -f network.yaml -f nics/ --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return usage("nothing to apply: vrdma apply -f FILE")
			}
			texts, err := files.read(c.InOrStdin())
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			apply := control.Apply
			if force {
				apply = control.ApplyForced
			}
			reply, err := apply(place.Socket, texts, dryRun)
			if err != nil {
				return objectsError(place, err)
			}
			printResults(c, reply, dryRun)
			if len(reply.Results) == 0 {
				fmt.Fprintln(c.ErrOrStderr(), "vrdma: warning: the files declare no objects: nothing was changed")
			}
			return nil
		},
	}
	files.flag(c, "what to apply")
	c.Flags().BoolVar(&force, "force", false, "also move a NIC that is in use to another host: its programs lose it")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would happen")
	return c
}
