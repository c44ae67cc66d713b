package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
)

func nicCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "nic",
		Short: "give a container a NIC, or move one to another host",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usage("say what: vrdma nic args NIC, vrdma nic check CONTAINER|ROOTFS, or vrdma nic move NIC HOST")
		},
	}
	c.AddCommand(nicArgsCommand(o), nicCheckCommand(), nicMoveCommand(o), nicLeaveCommand(o), nicStayCommand(o), nicArriveCommand(o))
	return c
}

func nicArgsCommand(o *options) *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "args NIC",
		Short: "print the arguments that give a container a NIC",
		Long: `Prints the arguments, or the lines of a configuration file, that give a container the NIC:
default, or a declared NIC, TENANT/NAME. They are two read-only mounts, without variables and
without any file of vrdma in the image. For default a daemon is started if none runs. It ends
when nobody uses it, at the earliest a minute after this command. For containers that stay,
start vrdma daemon.

  podman, docker   arguments for run and create
  nspawn           arguments for systemd-nspawn
  lxc              lines for the container's config
  oci              entries for "mounts" in a bundle's config.json`,
		Example: "  podman run $(vrdma nic args default) IMAGE ib_write_bw\n  docker run $(vrdma nic args red/web -o docker) IMAGE ib_write_bw",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if !slices.Contains(container.Formats, format) {
				return usage("-o %s: choose among %s", format, strings.Join(container.Formats, ", "))
			}
			place, err := o.place()
			if err != nil {
				return err
			}
			at, err := containerPlace(place, args[0])
			if err != nil {
				return err
			}
			words, err := container.Args(format, at)
			if err != nil {
				return err
			}
			between := " "
			if container.Lines(format) {
				between = "\n"
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), strings.Join(words, between))
			return err
		},
	}
	c.Flags().StringVarP(&format, "output", "o", "podman", "podman, docker, lxc, nspawn or oci")
	return c
}

// expectation is how long a daemon waits for the container after nic args.
const expectation = time.Minute

// containerPlace returns the place of a NIC for containers, and checks that this process may open it. It
// starts a daemon for the default NIC.
func containerPlace(place launch.Place, name string) (launch.Place, error) {
	if name != registry.Default {
		return findNIC(place, strings.Replace(name, ".", "/", 1))
	}
	lease, err := ensureDaemon(place)
	if err != nil {
		return place, err
	}
	defer lease.Close()
	at, err := place.NIC(registry.Default, registry.Default)
	if err != nil {
		return place, usage("%w", err)
	}
	switch _, err := protocol.QueryStatus(at.Socket); {
	case absent(err):
		return place, lacks("the daemon at %s has no directory for containers (%w): its log says why, or it is an older one", place.Socket, err)
	case errors.Is(err, fs.ErrPermission):
		return place, lacks("the default NIC is not ours to give to a container (%w): have the daemon's owner start it with --mode 0666", err)
	case err != nil:
		return place, lacks("the default NIC at %s does not answer properly: %w", at.Socket, err)
	}
	if place.Ephemeral() {
		err := place.Expect(expectation)
		if err == nil { // the directory must outlive the daemon: a container mounts it
			err = os.WriteFile(filepath.Join(filepath.Dir(at.Socket), ".keep"), nil, 0o600)
		}
		if err != nil {
			return place, lacks("cannot have the daemon wait for the container: %w", err)
		}
	}
	return at, nil
}
