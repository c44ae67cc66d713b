package main

import (
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/instrument/doctor"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A completion returns the words that may stand for an argument or for the value of a flag.
type completion func() []string

// completeAll adds completions of kinds, names and fixed values to root and the commands below it.
func completeAll(o *options, root *cobra.Command) {
	nics, tenants, faults := o.named(tenant.KindNIC), o.named(tenant.KindTenant), o.named(tenant.KindFault)
	scopes := o.named(tenant.KindTenant, tenant.KindNIC)
	// The arguments of commands, by the command's path below vrdma.
	arguments := map[string][]completion{
		"audit":         {scopes},
		"events":        {scopes},
		"guest args":    {nics},
		"guest libvirt": {nics},
		"network show":  {o.named(tenant.KindNetwork)},
		"nic args":      {nics},
		"nic move":      {nics, o.named(tenant.KindHost)},
		"policy test":   {nics, nics},
	}
	each(root, func(c *cobra.Command) {
		path := strings.TrimPrefix(c.CommandPath(), root.Name()+" ")
		switch path {
		case "get", "describe", "delete", "edit", "wait":
			c.ValidArgsFunction = o.objects
		case "doctor": // the first values of a flag count
			complete(c, "for", doctor.Experiments)
		case "fault add":
			c.ValidArgsFunction = faultRules
		case "fault remove": // any number of names
			c.ValidArgsFunction = func(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return faults(), cobra.ShellCompDirectiveNoFileComp
			}
		default:
			if list := arguments[path]; list != nil {
				c.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
					if len(args) >= len(list) {
						return nil, cobra.ShellCompDirectiveNoFileComp
					}
					return list[len(args)](), cobra.ShellCompDirectiveNoFileComp
				}
			}
		}
		completeFlags(c, map[string]completion{"nic": nics, "tenant": tenants})
	})
}

// objects completes KIND NAME.
func (o *options) objects(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return []string{"tenants", "hosts", "networks", "nics", "policies", "faults", "all"}, cobra.ShellCompDirectiveNoFileComp
	}
	kind, err := tenant.ParseKind(args[0])
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.names(kind), cobra.ShellCompDirectiveNoFileComp
}

// faultRules completes the action of a rule. Keys may follow it, so there is no blank behind it.
func faultRules(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return fault.ActionNames(), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// fixedValues are the values of flags, unless a command has others.
var fixedValues = map[string][]string{
	"for":  {"create", "delete", "ready", "failed", "elsewhere", "gone", "unknown", "unwatched"},
	"op":   {string(tenant.Send), string(tenant.Write), string(tenant.Read), string(tenant.Atomic)},
	"type": {"rc", "uc", "ud"},
}

// outputs are the formats that the help text of --output may name.
var outputs = []string{"wide", "yaml", "json", "name", "text", "csv", "podman", "docker", "lxc", "nspawn", "oci", "qemu", "libvirt"}

// completeFlags adds completions to the flags of a command.
func completeFlags(c *cobra.Command, names map[string]completion) {
	if f := c.Flags().Lookup("output"); f != nil {
		words := strings.FieldsFunc(f.Usage, func(r rune) bool { return !unicode.IsLetter(r) })
		values := slices.DeleteFunc(slices.Clone(outputs), func(v string) bool { return !slices.Contains(words, v) })
		if len(values) > 0 { // else it is a file or a directory
			complete(c, "output", values)
		}
	}
	for flag, values := range fixedValues {
		complete(c, flag, values)
	}
	for flag, list := range names {
		c.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) { // as in complete
			return list(), cobra.ShellCompDirectiveNoFileComp
		})
	}
	c.RegisterFlagCompletionFunc("fault", faultRules) // as in complete
}

// complete gives a flag fixed values. It does nothing if the command has no such flag, or the flag has a completion already.
func complete(c *cobra.Command, flag string, values []string) {
	c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// each calls f for a command and those below it.
func each(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		each(sub, f)
	}
}

// named returns a completion with the names of declared objects of these kinds.
func (o *options) named(kinds ...tenant.Kind) completion {
	return func() (out []string) {
		for _, k := range kinds {
			out = append(out, o.names(k)...)
		}
		return out
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
