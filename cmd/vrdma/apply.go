package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/tenancy/control"
)

func applyCommand(o *options) *cobra.Command {
	var files objectFiles
	var with control.ApplyOptions
	var dryRun string
	c := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "declare tenants, networks, NICs and policies",
		Long: `Creates and changes the objects of YAML files: all of them, or none if one is wrong. Errors
have file and line. Addresses and VNIs that a file omits are allocated, and stay when the
file is applied again. docs/reference/objects.md lists every field.

  vrdma apply -f two-tenants.yaml
  vrdma apply -f network.yaml -f nics/ --dry-run
  vrdma apply -f everything/ --prune

With --prune the files are all that their tenants have: networks, NICs and policies of these
tenants that no file has are deleted. NICs that engines made for containers stay.`,
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
			switch dryRun {
			case "", "false", "none":
			case "client":
				objects, err := control.Parse(texts)
				for _, o := range objects {
					fmt.Fprintf(c.OutOrStdout(), "%s parsed (dry run)\n", show.Key(o.Key()))
				}
				return err
			case "server", "true":
				with.DryRun = true
			default:
				return usage("--dry-run=%s: choose server, which asks the daemon, or client, which only parses the files", dryRun)
			}
			reply, err := control.ApplyWith(place.Socket, texts, with)
			if err != nil {
				return objectsError(place, err)
			}
			printResults(c, reply, with.DryRun)
			if len(reply.Results) == 0 {
				fmt.Fprintln(c.ErrOrStderr(), "vrdma: warning: the files declare no objects: nothing was changed")
			}
			return nil
		},
	}
	files.flag(c, "what to apply")
	c.Flags().BoolVar(&with.Force, "force", false, "also move a NIC that is in use to another host: its programs lose it")
	c.Flags().BoolVar(&with.Prune, "prune", false, "also delete the networks, NICs and policies of the files' tenants that the files do not have")
	c.Flags().StringVar(&dryRun, "dry-run", "", "only print what would happen: server asks the daemon, client only parses the files")
	c.Flags().Lookup("dry-run").NoOptDefVal = "server"
	return c
}
