package main

import (
	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/tenancy/control"
)

func applyCommand(o *options) *cobra.Command {
	var files objectFiles
	var force, dryRun bool
	c := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "declare tenants, networks, NICs and policies",
		Long: `Puts the objects of YAML files into the daemon's world: those that are new, and those
that have changed. All of them, or with the first that is wrong none: the errors have
file and line. Addresses and VNIs that a file leaves out are allocated, and stay when
the file is applied again. docs/reference/objects.md has every field.

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
			return nil
		},
	}
	files.flag(c, "what to apply")
	c.Flags().BoolVar(&force, "force", false, "also where a NIC in use has to leave its host: its programs lose it")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would happen, and do nothing")
	return c
}
