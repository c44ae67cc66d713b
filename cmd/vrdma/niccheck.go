package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/preflight"
)

func nicCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check CONTAINER|ROOTFS [PROGRAM...]",
		Short: "say whether the programs of a container or an image would see a NIC",
		Long: `Checks the root file system of a running container, by its name in podman or docker, or of an
image. Reports what would keep programs in it from a NIC: another C library than glibc,
another architecture, a static program, no rxe provider of libibverbs. It checks the named
programs, else the container's first program or the image's shell. A ROOTFS is a directory.
For an image of podman:

  podman unshare sh -c 'vrdma nic check $(podman image mount IMAGE)'

Status 0: no problem; 1: a problem.`,
		Example: "  vrdma nic check web ib_write_bw\n  vrdma nic check /var/lib/machines/bookworm",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			root, programs := args[0], args[1:]
			if info, err := os.Stat(root); (err != nil || !info.IsDir()) && !strings.Contains(root, "/") {
				running, err := findContainer(root)
				if err != nil {
					return err
				}
				root = fmt.Sprintf("/proc/%d/root", running.pid)
				if len(programs) == 0 && running.program != "" {
					programs = []string{running.program}
				}
			}
			found, err := preflight.Root(root, programs...)
			if err != nil {
				return usage("%w", err)
			}
			for _, f := range found {
				fmt.Fprintln(c.OutOrStdout(), f)
			}
			if len(found) > 0 {
				return &exit.Error{Status: exit.StatusFailed}
			}
			return nil
		},
	}
}

// A running container has a first process.
type running struct {
	pid     int
	program string
}

// findContainer asks the engines of this machine for a running container.
func findContainer(name string) (running, error) {
	var asked []string
	for _, engine := range []string{"podman", "docker"} {
		path, err := exec.LookPath(engine)
		if err != nil {
			continue
		}
		asked = append(asked, engine)
		// Of a name that begins with a dash the engine says that it is none.
		out, err := exec.Command(path, "container", "inspect", "--format", "{{.State.Pid}} {{.Path}}", "--", name).Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			continue // the engine has no such container
		}
		if err != nil {
			return running{}, lacks("%s container inspect %s: %w", engine, name, err)
		}
		number, program, _ := strings.Cut(string(bytes.TrimSpace(out)), " ")
		pid, err := strconv.Atoi(number)
		if err != nil {
			return running{}, lacks("%s container inspect %s answers %.80q, want a process", engine, name, out)
		}
		if pid == 0 {
			return running{}, lacks("container %s of %s does not run: start it, or name the directory of its root", name, engine)
		}
		return running{pid, program}, nil
	}
	if len(asked) == 0 {
		return running{}, usage("%s is no directory, and there is neither podman nor docker here that could have a container of that name", name)
	}
	return running{}, usage("%s is no directory, and %s has no container of that name", name, strings.Join(asked, " or "))
}
