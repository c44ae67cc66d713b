package main

import (
	"os"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/net/netns"
	"vrdma.dev/vrdma/internal/platform/cni"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
)

func cniCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "cni",
		Short: "a CNI plugin: binds a NIC to a container's network namespace",
		Long: `A plugin of the Container Network Interface, for engines that use it: containerd, CRI-O,
podman 4. Engines find it under its own name in their plugin directory:

  ln -s /usr/bin/vrdma /usr/lib/cni/vrdma-cni

Chained after another plugin, it binds a NIC to the container's network namespace. No other
workload gets the NIC until the container is gone:

  {"cniVersion": "1.0.0", "name": "red", "plugins": [{"type": "bridge", …},
    {"type": "vrdma-cni", "nic": "red.web", "socket": "/var/lib/vrdma/vrdma.sock"}]}

Alone, it also creates an interface with the NIC's address, MAC and MTU in the container, if
the NIC's network has way vxlan:

  {"cniVersion": "1.0.0", "name": "red", "plugins": [{"type": "vrdma-cni", "nic": "red.web"}]}

With "tenant" instead of "nic" the container names a NIC of that tenant: by the annotation
vrdma.io/nic of a pod (with "capabilities": {"io.kubernetes.cri.pod-annotations": true}), or
by args.cni["vrdma.io/nic"]. A container that names none gets none. The plugin makes no
mounts: use --device vrdma.io/nic=red.web for these, see vrdma cdi.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			p := cni.Plugin{Getenv: os.Getenv, Cookie: credentials.CookieAt, Interfaces: netns.Interfaces, Daemon: func(socket string) (cni.Daemon, error) {
				if socket == "" {
					socket = o.socket
				}
				place, err := (&options{socket: socket}).place()
				return cniDaemon{place}, err
			}}
			if p.Run(os.Stdin, os.Stdout) != nil {
				return &exit.Error{Status: exit.StatusFailed} // the plugin printed the error on stdout, as CNI requires
			}
			return nil
		},
	}
}

// cniDaemon implements cni.Daemon for the daemon at a place.
type cniDaemon struct{ launch.Place }

func (d cniDaemon) Ready() error {
	_, err := protocol.QueryStatus(d.Socket)
	return err
}
func (d cniDaemon) Bind(b control.Binding) error { return control.Bind(d.Socket, b) }
func (d cniDaemon) Plug(b control.Binding) (control.Interface, error) {
	return control.Plug(d.Socket, b)
}
func (d cniDaemon) Unbind(list ...control.Binding) error { return control.Unbind(d.Socket, list...) }
func (d cniDaemon) Bindings() ([]control.Binding, error) { return control.Bindings(d.Socket) }
