package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// completeAll adds completions of kinds, names, NICs and -o values to the commands below root.
func completeAll(o *options, root *cobra.Command) {
	objects := func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return []string{"tenants", "hosts", "networks", "nics", "policies", "all"}, cobra.ShellCompDirectiveNoFileComp
		}
		kind, err := tenant.ParseKind(args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return o.names(kind), cobra.ShellCompDirectiveNoFileComp
	}
	nics := func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return o.names(tenant.KindNIC), cobra.ShellCompDirectiveNoFileComp
	}
	for _, c := range root.Commands() {
		switch c.Name() {
		case "get", "describe", "delete", "edit", "wait":
			c.ValidArgsFunction = objects
		case "nic":
			for _, sub := range c.Commands() {
				if slices.Contains([]string{"move", "args"}, sub.Name()) {
					sub.ValidArgsFunction = nics
				}
			}
		case "events":
			c.ValidArgsFunction = nics
		}
	}
	each(root, func(c *cobra.Command) {
		if f := c.Flags().Lookup("output"); f != nil {
			var values []string
			for _, v := range []string{"wide", "yaml", "json", "name", "text", "podman", "docker"} {
				if strings.Contains(f.Usage, v) {
					values = append(values, v)
				}
			}
			complete(c, "output", values)
		}
		if c.Flags().Lookup("nic") != nil {
			c.RegisterFlagCompletionFunc("nic", nics) // fails if it is registered twice
		}
		if c.Flags().Lookup("for") != nil {
			complete(c, "for", []string{"create", "delete", "ready", "failed", "elsewhere", "gone", "unknown", "unwatched"})
		}
	})
}

// complete gives a flag fixed values.
func complete(c *cobra.Command, flag string, values []string) {
	c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // as above
}

// each calls f for a command and those below it.
func each(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		each(sub, f)
	}
}

// names are the names of declared objects of a kind; none if the daemon does not answer.
func (o *options) names(kind tenant.Kind) (out []string) {
	place, err := o.place()
	if err != nil {
		return nil
	}
	reply, err := control.Get(place.Socket, control.Selection{Kind: kind})
	if err != nil {
		return nil
	}
	for _, it := range reply.Items {
		out = append(out, it.Key.Path())
	}
	return out
}
