// Command vrdma-kube gives pods of Kubernetes their NICs. It is the device plugin of vrdma.io/nic and the driver
// vrdma.io of dynamic resource allocation. It is separate from vrdma because it is large, and needed only there.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/platform/kubernetes/deviceplugin"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
	"vrdma.dev/vrdma/internal/platform/launch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "vrdma-kube:", err)
		os.Exit(1)
	}
}

// flags are the flags of all commands.
type flags struct {
	socket, node, kubelet, cdi string
	pods, token, ca            string
	fromKubelet                bool
	slots                      int
}

func command() *cobra.Command {
	root := &cobra.Command{Use: "vrdma-kube", Short: "NICs of vrdma for pods of Kubernetes", SilenceErrors: true, SilenceUsage: true}
	var f flags
	c := &cobra.Command{
		Use:   "device-plugin",
		Short: "offer vrdma.io/nic to the kubelet of this host",
		Long: `Offers the resource vrdma.io/nic to the kubelet of this host. A container that asks for one,

  resources: {limits: {vrdma.io/nic: 1}}

gets the NIC of its pod. The tenant is the one whose spec.namespaces contains the pod's
namespace. The annotation vrdma.io/nic names a declared NIC. Otherwise a NIC is created for
the pod, in the network that vrdma.io/network names, with the pod's labels. It is deleted with
the pod.

A vrdma daemon must run on the same host, as root.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return serve(c.Context(), &f) },
	}
	f.common(c)
	c.Flags().IntVar(&f.slots, "slots", 110, "at most `N` containers of this host have a NIC")
	c.Flags().BoolVar(&f.fromKubelet, "pods-of-kubelet", false, "--pods is a kubelet's read-only port, which lists only this host's pods")
	root.AddCommand(c, draCommand(), manCommand(), nodeCommand(), readyCommand(), versionCommand())
	return root
}

// common are the flags of every command.
func (f *flags) common(c *cobra.Command) {
	s := c.Flags()
	s.StringVar(&f.socket, "socket", "/var/lib/vrdma/vrdma.sock", "the daemon's `PATH`")
	s.StringVar(&f.node, "node", os.Getenv("NODE_NAME"), "the host's `NAME` in Kubernetes (default $NODE_NAME)")
	s.StringVar(&f.kubelet, "kubelet", "/var/lib/kubelet", "the kubelet's `DIR`")
	s.StringVar(&f.cdi, "cdi", "/var/run/cdi", "`DIR` of the Container Device Interface")
	s.StringVar(&f.pods, "pods", "", "`URL` of the API server (default: that of this pod's cluster)")
	s.StringVar(&f.token, "token", "", "`FILE` with a token for --pods (default: none)")
	s.StringVar(&f.ca, "ca", "", "`FILE` with the certificate authority of --pods; needs --token")
}

// ends returns the daemon and the API server.
func (f *flags) ends() (place launch.Place, api *deviceplugin.API, err error) {
	if f.node == "" {
		return place, api, errors.New("--node is needed: the host's name in Kubernetes")
	}
	if place, err = launch.At(f.socket); err == nil {
		api, err = f.api()
	}
	return place, api, err
}

func serve(ctx context.Context, f *flags) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	place, api, err := f.ends()
	if err != nil {
		return err
	}
	lookup := api.Pod
	if f.fromKubelet {
		lookup = api.OnHost
	}
	resources := filepath.Join(f.kubelet, kubelet.ResourcesSocket)
	node := &deviceplugin.Node{
		Name: f.node, Place: place, Slots: f.slots, Daemon: deviceplugin.Control{Socket: place.Socket}, Lookup: lookup, Log: log,
		Holders: func(ctx context.Context) (map[string]kubelet.Holder, error) {
			return kubelet.Holders(ctx, resources, deviceplugin.Resource)
		},
		Since: func() time.Time { // the kubelet creates the socket when it starts
			info, err := os.Stat(resources)
			if err != nil {
				return time.Now()
			}
			return info.ModTime()
		},
	}
	if err := node.Open(f.cdi); err != nil {
		return err
	}
	var both sync.WaitGroup
	if !f.fromKubelet { // the kubelet's port has no watch
		labeler := node.Labeler(api.Client)
		both.Go(func() { labeler.Run(ctx) })
	}
	both.Go(func() { node.Sweep(ctx) })
	plugin := &kubelet.Plugin{Resource: deviceplugin.Resource, Dir: filepath.Join(f.kubelet, "device-plugins"), Devices: node, Log: log}
	err = plugin.Run(ctx)
	both.Wait()
	return err
}

// api returns the client for pods.
func (f *flags) api() (*deviceplugin.API, error) {
	if f.pods == "" && f.fromKubelet {
		return nil, errors.New("--pods-of-kubelet needs --pods URL")
	}
	find := kubeapi.InCluster
	switch {
	case (f.token == "") != (f.ca == "") || f.token != "" && f.pods == "":
		return nil, errors.New("--token and --ca are both needed, with --pods, or none of them")
	case f.token != "":
		find = func() (*kubeapi.Client, error) { return kubeapi.With(f.pods, f.token, f.ca) }
	case f.pods != "":
		find = func() (*kubeapi.Client, error) { return kubeapi.At(f.pods) }
	}
	client, err := find()
	if err != nil {
		return nil, err
	}
	return &deviceplugin.API{Client: client, Node: f.node}, nil
}
