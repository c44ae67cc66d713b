package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/preflight"
)

// engineRun returns the position for flags of a new container in the command line of a container
// engine, and their format. 0 means no engine, or no new container. The first word "run" or "create" counts
// as the subcommand.
func engineRun(args []string) (format string, at int) {
	if len(args) == 0 {
		return "", 0
	}
	format = filepath.Base(args[0])
	if format != "podman" && format != "docker" {
		return "", 0
	}
	i := slices.IndexFunc(args, func(word string) bool { return word == "run" || word == "create" })
	if i < 1 {
		return "", 0
	}
	return format, i + 1
}

// runEngine runs an engine whose container gets the device.
func runEngine(o *options, nic string, sockets bool, args []string, format string, at int) error {
	if sockets {
		return usage("--sockets is for programs, not for %s: run it inside of the container", format)
	}
	path, status, err := preflight.Find(args[0])
	if err != nil {
		return &exit.Error{Status: status, Err: err}
	}
	place, err := o.place()
	if err != nil {
		return err
	}
	if nic == "" {
		nic = registry.Default
		lease, err := ensureDaemon(place) // until the engine ends
		if err != nil {
			return err
		}
		if err := bequeath(lease); err != nil {
			return err
		}
	}
	mounted, err := containerPlace(place, nic)
	if err != nil {
		return err
	}
	words, err := container.Args(format, mounted)
	if err != nil {
		return err
	}
	err = syscall.Exec(path, slices.Insert(slices.Clone(args), at, words...), os.Environ())
	return &exit.Error{Status: 126, Err: fmt.Errorf("cannot execute %s: %w", path, err)}
}
