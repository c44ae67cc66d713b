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
		Long: `Is to an engine what runc is: it adds the NIC's mounts to a container that asks for one, and then
is runc, or crun if there is no runc, or PROGRAM. For engines that know nothing of CDI, Docker
20.10 for instance, whose /etc/docker/daemon.json then says

  {"runtimes": {"vrdma": {"path": "/usr/bin/vrdma", "runtimeArgs":
    ["--socket", "/var/lib/vrdma/vrdma.sock", "oci-runtime", "--"]}}}

A container asks by a device vrdma.io/nic=TENANT.NAME, and not by a variable: an image could set
it. An annotation of that name counts only with --annotations: some engines, podman among them,
give a container the annotations of its image, which would choose its NIC. Under the name
vrdma-oci-runtime (a link) everything on the command line is the runtime's.`,
		Example: "  docker run --runtime vrdma --device /dev/null:/vrdma.io/nic=red.web IMAGE ib_write_bw",
		RunE: func(_ *cobra.Command, args []string) error {
			err := runtime.Run(args)
			oci.TellEngine(args, err)
			return err
		},
	}
	c.Flags().StringVar(&runtime.Program, "runtime", "", "the OCI runtime that makes containers (default: runc, else crun)")
	c.Flags().StringVar(&runtime.Hook, "hook", "", "vrdma itself as a hook, none for none (default: this program)")
	c.Flags().BoolVar(&runtime.Annotations, "annotations", false, "a container may also ask by the annotation vrdma.io/nic: where no image can set it")
	c.Flags().SetInterspersed(false)
	return c
}

// runtimeNIC is the place of a NIC for a container, by its name at engines. It starts no daemon, which would end with the engine and
// before the container.
func runtimeNIC(place launch.Place, nic string) (launch.Place, error) {
	if nic == registry.Default {
		if _, err := protocol.QueryStatus(place.Socket); err != nil {
			return place, lacks("no daemon serves %s (%w): start one with vrdma daemon, or choose another with --socket", place.Socket, err)
		}
	}
	return containerPlace(place, nic)
}

// byName are subcommands that a link to vrdma of another name runs.
var byName = []struct {
	name string
	args []string
}{
	{"vrdma-oci-runtime", []string{"oci-runtime", "--"}},
	{"vrdma-cni", []string{"cni"}},
}

// argumentsOf are the arguments of the command line, with the subcommand that the name of the program stands for.
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
