package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vrdma/internal/container"
	"vrdma/internal/launch"
	"vrdma/internal/protocol"
	"vrdma/internal/vnic"
)

func ociRuntimeCommand(o *options) *cobra.Command {
	var runtime, hook string
	var annotations bool
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
			err := runOCI(o, runtime, hook, annotations, args)
			tellEngine(args, err)
			return err
		},
	}
	c.Flags().StringVar(&runtime, "runtime", "", "the OCI runtime that makes containers (default: runc, else crun)")
	c.Flags().StringVar(&hook, "hook", "", "vrdma itself as a hook, none for none (default: this program)")
	c.Flags().BoolVar(&annotations, "annotations", false, "a container may also ask by the annotation vrdma.io/nic: where no image can set it")
	c.Flags().SetInterspersed(false)
	return c
}

// runOCI is the runtime, after it has seen to the bundle of a container that is to be made.
func runOCI(o *options, runtime, hook string, annotations bool, args []string) error {
	path, err := ociRuntime(runtime)
	if err != nil {
		return err
	}
	if dir, makes := container.BundleOf(args); makes {
		if err := giveNIC(o, hook, annotations, dir); err != nil {
			return err
		}
	}
	err = syscall.Exec(path, append([]string{path}, args...), os.Environ())
	return fmt.Errorf("cannot execute %s: %w", path, err)
}

// ociRuntime finds the program.
func ociRuntime(name string) (string, error) {
	names := []string{"runc", "crun"}
	if name != "" {
		names = []string{name}
	}
	for _, n := range names {
		if path, err := exec.LookPath(n); err == nil {
			return path, nil
		}
	}
	return "", lacks("there is no %s on the PATH: install one, or name it with --runtime", strings.Join(names, " or "))
}

// giveNIC gives the container of a bundle the NIC that it asks for.
func giveNIC(o *options, hook string, annotations bool, dir string) error {
	b, err := container.OpenBundle(dir)
	if err != nil {
		return err
	}
	nic, err := b.Wanted(annotations)
	if err != nil || nic == "" {
		return err
	}
	place, err := o.place()
	if err != nil {
		return err
	}
	at, err := madeNIC(place, nic)
	if err != nil {
		return err
	}
	if hook, err = hookProgram(hook); err != nil {
		return err
	}
	if err := b.Give(at, container.Hooks(hook, place.Socket, nic)); err != nil {
		return err
	}
	return b.Write()
}

// madeNIC is the place of a NIC for a container, in an engine's words. No daemon is started for it: it
// would be the engine's, and end before the container does.
func madeNIC(place launch.Place, nic string) (launch.Place, error) {
	if nic == vnic.Default {
		if _, err := protocol.QueryStatus(place.Socket); err != nil {
			return place, lacks("no daemon serves %s (%w): start one with vrdma daemon, or choose another with --socket", place.Socket, err)
		}
	}
	return containerPlace(place, nic)
}

// hookProgram is the path of our program for hooks: what a flag says, else ourselves; "" is none.
func hookProgram(flag string) (string, error) {
	switch flag {
	case "none":
		return "", nil
	case "":
		path, err := os.Executable()
		return strings.TrimSuffix(path, " (deleted)"), err // of one that was replaced, the new one
	}
	return flag, nil
}

// tellEngine writes an error where an engine looks for those of its runtime: --log FILE, of --log-format json or text.
func tellEngine(args []string, err error) {
	file := container.OptionOf(args, "--log")
	if err == nil || file == "" {
		return
	}
	f, ferr := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if ferr != nil {
		return // it is on stderr, too
	}
	defer f.Close()
	text, now := "vrdma: "+err.Error(), time.Now().UTC().Format(time.RFC3339)
	if container.OptionOf(args, "--log-format") != "json" {
		fmt.Fprintf(f, "time=%q level=error msg=%q\n", now, text)
		return
	}
	json.NewEncoder(f).Encode(map[string]string{"level": "error", "msg": text, "time": now})
}

// byName are subcommands that are programs of their own under another name: a link to vrdma.
var byName = []struct {
	name string
	args []string
}{
	{"vrdma-oci-runtime", []string{"oci-runtime", "--"}},
	{"vrdma-cni", []string{"cni"}},
}

// argumentsOf are our arguments, by the name that we were called by.
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
