package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/show"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
)

// getFlags are the flags of get.
type getFlags struct {
	of     string
	labels map[string]string
	output string
	watch  bool
}

func getCommand(o *options) *cobra.Command {
	f := &getFlags{}
	c := &cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "list declared objects",
		Long: `Lists tenants, hosts, networks, nics, policies or faults, or all; or one object, as NAME or
TENANT/NAME. The operator sees all objects, administrators those of their tenant, other users
the NICs that they may open.

  vrdma get nics
  vrdma get nic red/web -o yaml
  vrdma get nics -t red -l role=web -o wide -w`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			which, err := f.selection(args)
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			if f.watch {
				return watchObjects(c.OutOrStdout(), place, which, f.output)
			}
			reply, err := control.Get(place.Socket, which)
			if err != nil {
				return objectsError(place, err)
			}
			for _, text := range reply.Warnings {
				fmt.Fprintln(c.ErrOrStderr(), "vrdma: warning:", show.Plain(text))
			}
			if len(reply.Items) == 0 && which.Name != "" {
				return fmt.Errorf("there is no %s %s that you may see", which.Kind, args[1])
			}
			if len(reply.Items) == 0 && !f.structured() {
				fmt.Fprintln(c.ErrOrStderr(), "nothing found")
				return nil
			}
			return show.Objects(c.OutOrStdout(), reply.Items, f.output, which.Name != "" && len(reply.Items) == 1)
		},
	}
	c.Flags().StringVarP(&f.of, "tenant", "t", "", "only objects of this tenant")
	c.Flags().StringToStringVarP(&f.labels, "selector", "l", nil, "only objects with these labels: role=web")
	c.Flags().StringVarP(&f.output, "output", "o", "", "wide, yaml, json or name (default: a table)")
	c.Flags().BoolVarP(&f.watch, "watch", "w", false, "then show changes until interrupted")
	return c
}

// structured reports whether the output is for programs, which need it even if it is empty.
func (f *getFlags) structured() bool { return f.output != "" && f.output != "wide" }

// selection parses the arguments.
func (f *getFlags) selection(args []string) (s control.Selection, err error) {
	if !slices.Contains([]string{"", "wide", "yaml", "json", "name"}, f.output) {
		return s, usage("-o %s: choose wide, yaml, json or name", f.output)
	}
	s.Tenant, s.Labels = f.of, f.labels
	if args[0] == "all" {
		if len(args) > 1 {
			return s, usage("get all %s: say of which kind", args[1])
		}
		return s, nil
	}
	if s.Kind, err = kindArg(args[0]); err != nil || len(args) == 1 {
		return s, err
	}
	k, err := objectKey(s.Kind, args[1], f.of, true)
	s.Tenant, s.Name = k.Tenant, k.Name
	return s, err
}

// watchObjects prints the objects and then every change.
func watchObjects(w io.Writer, place launch.Place, which control.Selection, output string) error {
	stream, err := control.Watch(place.Socket, which)
	if err != nil {
		return objectsError(place, err)
	}
	defer stream.Close()
	var first []control.Item
	var changes *show.Changes
	for {
		reply, err := stream.Next()
		if errors.Is(err, io.EOF) || hungUp(err) {
			return errors.New("the daemon has ended, and so has the watch")
		}
		if err != nil {
			return objectsError(place, err)
		}
		if changes == nil { // the first objects determine the columns' widths
			if first = append(first, reply.Items...); !reply.Synced {
				continue
			}
			changes = show.NewChanges(w, output)
			reply.Items = first
		}
		if err := changes.Print(reply.Items); err != nil {
			return err
		}
	}
}
