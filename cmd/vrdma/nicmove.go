package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func nicMoveCommand(o *options) *cobra.Command {
	var force, live bool
	var rsh, login string
	c := &cobra.Command{
		Use:   "move TENANT/NAME HOST",
		Short: "move a NIC to another host, with its address, policies and counters",
		Long: `Moves a NIC to another host, for a container that is stopped on one host and started on
another. The NIC keeps its address, its policies and the device's counters. Peers reach it at
the same address. The hosts share a store (docs/how-to/move-a-nic.md).

  podman rm -f web                                        # on node-a
  vrdma nic move red/web node-b                           # on either of them
  podman run --device vrdma.io/nic=red.web IMAGE …        # on node-b

A NIC in use is moved only with --force: its programs lose it. A NIC without spec.host needs
no move: it is where its container is started. A NIC in a network with way namespace or host
cannot be moved: its address does not belong to vrdma.

With --live the podman container that has the NIC moves while it runs, and its connections
continue (docs/how-to/move-a-program.md). Run it as root on the container's host. It runs
podman container checkpoint, and podman container restore on the other host through ssh. If
the other host cannot restore the container, the container continues here.`,
		Example: "  vrdma nic move red/web node-b\n  vrdma nic move --live red/web node-b\n  vrdma nic move --live red/web node-b --login root@10.0.0.2 --rsh 'ssh -p 2222'",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := objectKey(tenant.KindNIC, strings.Replace(args[0], ".", "/", 1), "", false)
			if err != nil {
				return err
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			var said string
			if live {
				said, err = moveLive(place, k, args[1], rsh, login, c.ErrOrStderr())
			} else if rsh != "" || login != "" {
				err = usage("--rsh and --login are for --live")
			} else {
				said, err = moveNIC(place, k, args[1], force)
			}
			if err == nil {
				fmt.Fprintln(c.OutOrStdout(), said)
			}
			return err
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also move a NIC in use: its programs lose it")
	c.Flags().BoolVar(&live, "live", false, "move the podman container that has the NIC, while it runs")
	c.Flags().StringVar(&rsh, "rsh", "", "with --live: the remote shell (default: VRDMA_RSH, else ssh)")
	c.Flags().StringVar(&login, "login", "", "with --live: what the remote shell connects to (default: HOST)")
	c.MarkFlagsMutuallyExclusive("live", "force")
	return c
}

// moveNIC moves a NIC to a host and returns a message about the result.
func moveNIC(place launch.Place, k tenant.Key, host string, force bool) (said string, err error) {
	item, n, err := declaredNIC(place, k)
	if err != nil {
		return "", err
	}
	if err := movable(place, n); err != nil {
		return "", err
	}
	if err := knownHost(place, host); err != nil {
		return "", err
	}
	at := ""
	if item.Status != nil {
		at = item.Status.Host
	}
	switch {
	case n.Spec.Host == host:
		return fmt.Sprintf("NIC %s is of host %s already", k.Path(), host), nil
	case n.Spec.Host == "" && (at == "" || at == host):
		return fmt.Sprintf("NIC %s may be anywhere: start its container on host %s, and it is there", k.Path(), host), nil
	case n.Spec.Host == "":
		return fmt.Sprintf("NIC %s may be anywhere, and is on host %s: end its container there, start it on host %s, and it is there", k.Path(), at, host), nil
	}
	text, err := withHost(item.Object, host)
	if err != nil {
		return "", err
	}
	apply := control.Apply
	if force {
		apply = control.ApplyForced
	}
	reply, err := apply(place.Socket, []control.File{{Name: "NIC " + k.Path(), Text: string(text)}}, false)
	if err != nil {
		return "", objectsError(place, err)
	}
	said = fmt.Sprintf("NIC %s is of host %s now, and was of %s", k.Path(), host, n.Spec.Host)
	if len(reply.Warnings) > 0 {
		said += ": " + strings.Join(reply.Warnings, "; ")
	}
	return said, nil
}

// withHost returns an object with another spec.host.
func withHost(object json.RawMessage, host string) ([]byte, error) {
	var all, spec map[string]json.RawMessage
	if err := json.Unmarshal(object, &all); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(all["spec"], &spec); err != nil {
		return nil, err
	}
	var err error
	if spec["host"], err = json.Marshal(host); err != nil {
		return nil, err
	}
	if all["spec"], err = json.Marshal(spec); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// declaredNIC returns a declared NIC with its status.
func declaredNIC(place launch.Place, k tenant.Key) (item control.Item, n *tenant.NIC, err error) {
	reply, err := control.Get(place.Socket, control.Selection{Kind: k.Kind, Tenant: k.Tenant, Name: k.Name})
	if err != nil {
		return item, nil, objectsError(place, err)
	}
	if len(reply.Items) != 1 {
		return item, nil, fmt.Errorf("there is no %v that you may see: vrdma get nics lists them", k)
	}
	o, err := tenant.Unmarshal(reply.Items[0].Object)
	if err != nil {
		return item, nil, err
	}
	n, ok := o.(*tenant.NIC)
	if !ok {
		return item, nil, fmt.Errorf("the daemon answers with %v", o.Key())
	}
	return reply.Items[0], n, nil
}

// movable returns an error if a NIC cannot be moved.
func movable(place launch.Place, n *tenant.NIC) error {
	reply, err := control.Get(place.Socket, control.Selection{Kind: tenant.KindNetwork, Tenant: n.Metadata.Tenant, Name: n.Spec.Network})
	if err != nil {
		return objectsError(place, err)
	}
	for _, item := range reply.Items {
		o, err := tenant.Unmarshal(item.Object)
		if err != nil {
			return err
		}
		network, ok := o.(*tenant.Network)
		switch {
		case !ok:
		case network.Spec.Way == tenant.WayNamespace:
			return fmt.Errorf("%v is in the container's own network (%v has way namespace): the engine owns the address, and gives the container one where it starts it; move the container with the engine, or use a network with way vxlan",
				n.Key(), network.Key())
		case network.Spec.Way == tenant.WayHost:
			return fmt.Errorf("%v has an address of its host (%v has way host): use a network with way vxlan", n.Key(), network.Key())
		}
	}
	return nil
}

// knownHost returns an error if a NIC cannot be on a host.
func knownHost(place launch.Place, host string) error {
	reply, err := control.Get(place.Socket, control.Selection{Kind: tenant.KindHost})
	if err != nil {
		return objectsError(place, err)
	}
	var names []string
	for _, item := range reply.Items {
		names = append(names, item.Key.Name)
		if item.Key.Name == host && item.Status != nil && item.Status.State == control.Unwatched {
			return fmt.Errorf("host %s runs no vrdma: its containers cannot have a vrdma NIC", host)
		}
	}
	if !slices.Contains(names, host) {
		return fmt.Errorf("there is no host %q: there are %s (vrdma get hosts)", host, strings.Join(names, ", "))
	}
	return nil
}
