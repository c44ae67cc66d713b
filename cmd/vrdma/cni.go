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
		Long: `Is a plugin of the Container Network Interface, for engines that use it: containerd, CRI-O, podman 4.
They look for it under its own name in a directory of theirs:

  ln -s /usr/bin/vrdma /usr/lib/cni/vrdma-cni

Chained after another plugin in a network's configuration, it has the daemon bind a NIC to the
container's network namespace, so that no other workload has it until the container is gone:

  {"cniVersion": "1.0.0", "name": "red", "plugins": [{"type": "bridge", …},
    {"type": "vrdma-cni", "nic": "red.web", "socket": "/var/lib/vrdma/vrdma.sock"}]}

By itself it makes the NIC an interface of the container as well, with its address, MAC and MTU, if
the NIC's network has way vxlan:

  {"cniVersion": "1.0.0", "name": "red", "plugins": [{"type": "vrdma-cni", "nic": "red.web"}]}

With "tenant" in place of "nic" the container names one of that tenant's: by the annotation
vrdma.io/nic of a pod (with "capabilities": {"io.kubernetes.cri.pod-annotations": true}), or
as args.cni["vrdma.io/nic"]. One that names none has none. The mounts by which programs find the NIC
are the engine's part: --device vrdma.io/nic=red.web, see vrdma cdi.`,
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
				return &exit.Error{Status: exit.StatusFailed} // it is told on stdout
			}
			return nil
		},
	}
}

// cniDaemon is the daemon at a place, for the plugin.
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
