package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/platform/oci"
)

func ociRuntimeCommand(o *options) *cobra.Command {
	runtime := oci.Runtime{Place: o.place, NIC: runtimeNIC}
	c := &cobra.Command{
		Use:   "oci-runtime [--runtime PROGRAM] [--annotations] [-- ARGUMENT...]",
		Short: "an OCI runtime that gives containers NICs, for engines without CDI",
		Long: `An OCI runtime for engines without CDI, for instance Docker 20.10. It adds the NIC's mounts to
a container that asks for a NIC. Then it executes PROGRAM; by default runc, or crun if there
is no runc. In /etc/docker/daemon.json:

  {"runtimes": {"vrdma": {"path": "/usr/bin/vrdma", "runtimeArgs":
    ["--socket", "/var/lib/vrdma/vrdma.sock", "oci-runtime", "--"]}}}

A container asks by a device vrdma.io/nic=TENANT.NAME. It cannot ask by a variable, because an
image could set it. An annotation of that name counts only with --annotations: some engines,
for instance podman, give a container the annotations of its image, which would choose the
NIC. Under the name vrdma-oci-runtime (a link) all arguments belong to the runtime.`,
		Example: "  docker run --runtime vrdma --device /dev/null:/vrdma.io/nic=red.web IMAGE ib_write_bw",
		RunE: func(_ *cobra.Command, args []string) error {
			err := runtime.Run(args)
			oci.TellEngine(args, err)
			return err
		},
	}
	c.Flags().StringVar(&runtime.Program, "runtime", "", "the OCI runtime that creates containers (default: runc, else crun)")
	c.Flags().StringVar(&runtime.Hook, "hook", "", "the path of vrdma for hooks; none: no hooks (default: this program)")
	c.Flags().BoolVar(&runtime.Annotations, "annotations", false, "also accept the annotation vrdma.io/nic; only where images cannot set annotations")
	c.Flags().SetInterspersed(false)
	return c
}

// runtimeNIC returns the place of a NIC by its device name. It starts no daemon, which would end with the engine, before the
// container.
func runtimeNIC(place launch.Place, nic string) (launch.Place, error) {
	if nic == registry.Default {
		if _, err := protocol.QueryStatus(place.Socket); err != nil {
			return place, lacks("no daemon serves %s (%w): start one with vrdma daemon, or choose another with --socket", place.Socket, err)
		}
	}
	return containerPlace(place, nic)
}

// byName maps names of links to vrdma to subcommands.
var byName = []struct {
	name string
	args []string
}{
	{"vrdma-oci-runtime", []string{"oci-runtime", "--"}},
	{"vrdma-cni", []string{"cni"}},
}

// argumentsOf returns the arguments, with the subcommand for the program's name in front.
func argumentsOf(argv []string) []string {
	if len(argv) == 0 {
		return nil
	}
	base := argv[0][strings.LastIndexByte(argv[0], '/')+1:]
	for _, c := range byName {
		if base == c.name {
			return append(slices.Clone(c.args), argv[1:]...)
		}
	}
	return argv[1:]
}
