package main

import (
	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func deleteCommand(o *options) *cobra.Command {
	var files objectFiles
	var of string
	var force, dryRun bool
	c := &cobra.Command{
		Use:   "delete KIND NAME... | -f FILE",
		Short: "delete declared objects",
		Long: `Deletes objects by kind and name, or the objects of files: all of them or none. It refuses to
delete an object that others refer to, and a NIC that programs have open; the error names the
user. With --force it also deletes a tenant's objects, and a network's NICs and policies, and
programs lose an open NIC. A policy that names a deleted NIC stays unchanged, so that nothing
is allowed that was denied.

  vrdma delete nic red/web
  vrdma delete nic web db -t red
  vrdma delete -f two-tenants.yaml`,
		RunE: func(c *cobra.Command, args []string) error {
			keys, err := deletions(c, files, args, of)
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			reply, err := control.Delete(place.Socket, keys, force, dryRun)
			if err != nil {
				return objectsError(place, err)
			}
			printResults(c, reply, dryRun)
			return nil
		},
	}
	files.flag(c, "objects to delete")
	c.Flags().StringVarP(&of, "tenant", "t", "", "the tenant of names without one")
	c.Flags().BoolVar(&force, "force", false, "also delete what refers to it, and what is in use")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would happen")
	return c
}

// deletions returns the keys of the objects to delete.
func deletions(c *cobra.Command, files objectFiles, args []string, of string) (keys []tenant.Key, err error) {
	switch {
	case len(files) > 0 && len(args) > 0:
		return nil, usage("delete either KIND NAME or -f FILE")
	case len(files) > 0:
		texts, err := files.read(c.InOrStdin())
		if err != nil {
			return nil, err
		}
		objects, err := control.Parse(texts)
		for _, o := range objects {
			keys = append(keys, o.Key())
		}
		return keys, err
	case len(args) < 2:
		return nil, usage("nothing to delete: vrdma delete KIND NAME, or vrdma delete -f FILE")
	}
	kind, err := kindArg(args[0])
	for _, name := range args[1:] {
		var k tenant.Key
		if err == nil {
			k, err = objectKey(kind, name, of, false)
		}
		keys = append(keys, k)
	}
	return keys, err
}
