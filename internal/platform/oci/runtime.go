package oci

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
)

// A Runtime is an OCI runtime that adds NICs to containers and then becomes another runtime.
type Runtime struct {
	Program     string // the other runtime; "": runc, else crun
	Hook        string // the path of vrdma for hooks; "none": no hooks; "": this program
	Annotations bool   // a container may ask for a NIC by an annotation
	// Place finds the daemon, and NIC a NIC of it that is mounted into a container. They are functions because only containers
	// that ask for a NIC need them, and because finding a NIC is the command line's: it prints its errors for people.
	Place func() (launch.Place, error)
	NIC   func(place launch.Place, nic string) (launch.Place, error)
}

// Run becomes the other runtime, with args, after it has added the NIC to the bundle of a container that is to be made.
func (r *Runtime) Run(args []string) error {
	path, err := find(r.Program)
	if err != nil {
		return err
	}
	if dir, makes := container.BundleOf(args); makes {
		if err := r.give(dir); err != nil {
			return err
		}
	}
	err = syscall.Exec(path, append([]string{path}, args...), os.Environ())
	return fmt.Errorf("cannot execute %s: %w", path, err)
}

// find finds the program of an OCI runtime.
func find(name string) (string, error) {
	names := []string{"runc", "crun"}
	if name != "" {
		names = []string{name}
	}
	for _, n := range names {
		if path, err := exec.LookPath(n); err == nil {
			return path, nil
		}
	}
	return "", exit.Lacks("there is no %s on the PATH: install one, or name it with --runtime", strings.Join(names, " or "))
}

// give adds the NIC that a container asks for to its bundle.
func (r *Runtime) give(dir string) error {
	b, err := container.OpenBundle(dir)
	if err != nil {
		return err
	}
	nic, err := b.Wanted(r.Annotations)
	if err != nil || nic == "" {
		return err
	}
	place, err := r.Place()
	if err != nil {
		return err
	}
	at, err := r.NIC(place, nic)
	if err != nil {
		return err
	}
	hook, err := container.HookProgram(r.Hook)
	if err != nil {
		return err
	}
	if err := b.Give(at, container.Hooks(hook, place.Socket, nic)); err != nil {
		return err
	}
	return b.Write()
}

// TellEngine writes an error to the file where an engine looks for errors of its runtime: --log FILE, with --log-format json or text.
func TellEngine(args []string, err error) {
	file := container.OptionOf(args, "--log")
	if err == nil || file == "" {
		return
	}
	f, ferr := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if ferr != nil {
		return // stderr has the error, too
	}
	defer f.Close()
	text, now := "vrdma: "+err.Error(), time.Now().UTC().Format(time.RFC3339)
	if container.OptionOf(args, "--log-format") != "json" {
		fmt.Fprintf(f, "time=%q level=error msg=%q\n", now, text)
		return
	}
	json.NewEncoder(f).Encode(map[string]string{"level": "error", "msg": text, "time": now})
}
