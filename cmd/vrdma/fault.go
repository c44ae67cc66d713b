package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func faultCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "fault",
		Short: "make NICs fail on purpose, for tests",
		Long: `Adds, lists and removes Faults: rules by which packets, messages, connections and calls of NICs
fail on purpose. vrdma run --fault does so for one program. docs/reference/faults.md lists the
rules.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usage("say what: vrdma fault add SPEC, vrdma fault list, or vrdma fault remove NAME")
		},
	}
	c.AddCommand(faultAddCommand(o), faultListCommand(o), faultRemoveCommand(o))
	return c
}

func faultAddCommand(o *options) *cobra.Command {
	var name, of, nic string
	c := &cobra.Command{
		Use:   "add [flags] SPEC...",
		Short: "make NICs fail by rules, until the fault is removed",
		Long: `Declares a Fault with the rules SPEC: an action and selectors, separated by commas. It prints
the name of the Fault. Without --nic and --tenant it applies to the default NIC.

  vrdma fault add drop,probability=1%
  vrdma fault add --nic red/web delay,time=5ms,op=write
  vrdma fault add --tenant red --name blink port-down,from=1s,for=200ms`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			f, err := newFault(name, of, nic, args)
			if err != nil {
				return err
			}
			text, err := tenant.YAML(f)
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			reply, err := control.Apply(place.Socket, []control.File{{Name: "fault add", Text: string(text)}}, false)
			if err != nil {
				return objectsError(place, err)
			}
			printResults(c, reply, false)
			return nil
		},
	}
	c.Flags().SetInterspersed(false)
	c.Flags().StringVar(&name, "name", "", "name of the Fault (default: a random one)")
	c.Flags().StringVarP(&of, "tenant", "t", "", "tenant whose NICs fail (default: that of the default NIC)")
	c.Flags().StringVar(&nic, "nic", "", "the NIC that fails, TENANT/NAME; default: every NIC of the tenant")
	return c
}

// newFault makes the object that the flags and rules describe.
func newFault(name, of, nic string, specs []string) (*tenant.Fault, error) {
	f := &tenant.Fault{Metadata: tenant.Metadata{Name: cmp.Or(name, fmt.Sprintf("fault-%06x", rand.Uint32N(1<<24))), Tenant: of}}
	if nic != "" && nic != tenant.DefaultTenant {
		before, after, slash := strings.Cut(nic, "/")
		if !slash || of != "" && of != before {
			return nil, usage("--nic %s: write TENANT/NAME, or leave it out for the default NIC", nic)
		}
		f.Metadata.Tenant, f.Spec.NICs.Names = before, []string{after}
	}
	f.Metadata.Tenant = cmp.Or(f.Metadata.Tenant, tenant.DefaultTenant)
	for _, spec := range specs {
		rule, err := fault.Parse(spec)
		if err != nil {
			return nil, usage("%s: %v", spec, err)
		}
		f.Spec.Rules = append(f.Spec.Rules, rule)
	}
	return f, nil
}

func faultListCommand(o *options) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use:   "list",
		Short: "list Faults and how often they have hit",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			get := getCommand(o)
			get.SetOut(c.OutOrStdout())
			get.SetErr(c.ErrOrStderr())
			get.SetArgs([]string{"faults", "-o", output})
			get.SilenceErrors, get.SilenceUsage = true, true
			return get.Execute()
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "wide, yaml, json or name (default: a table)")
	return c
}

func faultRemoveCommand(o *options) *cobra.Command {
	var of string
	c := &cobra.Command{
		Use:   "remove [flags] NAME...",
		Short: "remove Faults",
		Long: `Removes Faults by name, as NAME for the default NIC or TENANT/NAME. What a Fault has done to a
port ends with it.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var keys []tenant.Key
			for _, name := range args {
				k, err := objectKey(tenant.KindFault, name, of, true)
				if err != nil {
					return err
				}
				k.Tenant = cmp.Or(k.Tenant, tenant.DefaultTenant)
				keys = append(keys, k)
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			reply, err := control.Delete(place.Socket, keys, false, false)
			if err != nil {
				return objectsError(place, err)
			}
			printResults(c, reply, false)
			return nil
		},
	}
	c.Flags().StringVarP(&of, "tenant", "t", "", "the tenant of names without one")
	return c
}
