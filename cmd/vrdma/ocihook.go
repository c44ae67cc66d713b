package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"vrdma/internal/caller"
	"vrdma/internal/container"
	"vrdma/internal/control"
	"vrdma/internal/preflight"
	"vrdma/internal/tenant"
)

func ociHookCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:    "oci-hook",
		Short:  "what OCI runtimes run while they make a container with a NIC",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return usage("say which: look NIC, or merge") },
	}
	c.AddCommand(&cobra.Command{
		Use:   "look NIC",
		Short: "createRuntime: look at the container's root, and say what keeps programs from the NIC",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			hook(c, "NIC "+args[0], func() error { return lookAt(o, c.ErrOrStderr(), args[0]) })
			return nil
		},
	}, &cobra.Command{
		Use:   "merge",
		Short: "createContainer: make one file of the image's /etc/ld.so.preload and the NIC's",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			hook(c, "the image's "+container.Preload+" is not loaded", mergePreload)
			return nil
		},
	})
	return c
}

// hook runs a hook. Whatever happens, the container starts: a NIC may be all that it lacks.
func hook(c *cobra.Command, what string, f func() error) {
	if err := f(); err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "vrdma: %s: %v\n", what, err)
	}
}

// bundleOfHook is the container that the hook is called for.
func bundleOfHook() (*container.State, *container.Bundle, error) {
	state, err := container.ReadState(os.Stdin)
	if err != nil {
		return nil, nil, err
	}
	b, err := container.OpenBundle(state.Bundle)
	return state, b, err
}

// lookAt looks at the container's root, and tells the daemon and whoever reads our stderr. Some engines show it, some do not.
func lookAt(o *options, w io.Writer, device string) error {
	state, bundle, err := bundleOfHook()
	if err != nil {
		return err
	}
	root, err := bundle.Root()
	if err != nil {
		return err
	}
	found, err := preflight.Start(root, bundle.Program())
	if err != nil {
		return err
	}
	told := control.Container{ID: state.ID, Name: state.Name(), NIC: keyOfDevice(device)}
	for _, f := range found {
		told.Warnings = append(told.Warnings, f.String())
		fmt.Fprintf(w, "vrdma: container %s with NIC %s: %v\n", told.Name, device, f)
	}
	told.Cookie = workloadOf(state.Pid)
	place, err := o.place()
	if err != nil {
		return err
	}
	if err := control.Tell(place.Socket, told); err != nil {
		return fmt.Errorf("the daemon is not told: %w", err)
	}
	return nil
}

// keyOfDevice is the NIC of which an engine says TENANT.NAME; the default NIC has no key.
func keyOfDevice(device string) (k tenant.Key) {
	if of, name, ok := strings.Cut(strings.Replace(device, "/", ".", 1), "."); ok {
		k = tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: name}
	}
	return k
}

// workloadOf is the cookie of a container's network namespace; 0: not known, or it is ours, the host's.
func workloadOf(pid int) uint64 {
	if pid <= 0 {
		return 0
	}
	cookie, err := caller.CookieAt(fmt.Sprintf("/proc/%d/ns/net", pid))
	own, oerr := caller.CookieAt("/proc/self/ns/net")
	if err != nil || oerr != nil || cookie == own {
		return 0
	}
	return cookie
}

// mergePreload makes one file of two, in the container's namespaces.
func mergePreload() error {
	_, bundle, err := bundleOfHook()
	if err != nil {
		return err
	}
	root, err := bundle.Root()
	if err != nil {
		return err
	}
	_, err = container.Merge(root)
	return err
}
