package main

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/platform/kubernetes/deviceplugin"
	"vrdma.dev/vrdma/internal/platform/kubernetes/dra"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
)

func draCommand() *cobra.Command {
	var f flags
	c := &cobra.Command{
		Use:   "dra",
		Short: "run the driver vrdma.io of dynamic resource allocation on this host",
		Long: `The driver vrdma.io of dynamic resource allocation (resource.k8s.io/v1, Kubernetes 1.34) on
this host. It publishes slots for NICs. A pod with a ResourceClaim gets the NIC that the
claim describes:

  config:
    - opaque:
        driver: vrdma.io
        parameters:
          apiVersion: vrdma.io/v1
          kind: ClaimParameters
          network: train          # needed if the tenant has more than one
          address: 10.7.0.10      # default: allocated
          rate: {out: 10Gbit}
          limits: {qps: 64}

The tenant is the one whose spec.namespaces contains the claim's namespace; a claim with
another tenant: NAME is refused. nic: NAME is a declared NIC of the tenant.

A vrdma daemon must run on the same host, as root.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return serveClaims(c.Context(), &f) },
	}
	f.common(c)
	c.Flags().IntVar(&f.slots, "slots", 110, "at most `N` claims have a NIC on this host")
	return c
}

func serveClaims(ctx context.Context, f *flags) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	place, api, err := f.ends()
	if err != nil {
		return err
	}
	daemon := deviceplugin.Control{Socket: place.Socket}
	node := &dra.Node{Name: f.node, Place: place, Slots: f.slots, Daemon: daemon, Client: api.Client, Lookup: api.Pod, Log: log}
	if err := node.Open(f.cdi); err != nil {
		return err
	}
	publisher := &dra.Publisher{Client: api.Client, Node: f.node, Slots: node.SlotNames(), Log: log, Works: func() bool {
		_, err := daemon.World()
		return err == nil
	}}
	labeler := node.Labeler()
	var all sync.WaitGroup
	all.Go(func() { labeler.Run(ctx) })
	all.Go(func() { node.Sweep(ctx) })
	all.Go(func() { publisher.Run(ctx) })
	driver := &kubelet.Driver{Name: dra.Driver, Dir: f.kubelet, Claims: node, Log: log}
	err = driver.Run(ctx)
	all.Wait()
	return err
}
