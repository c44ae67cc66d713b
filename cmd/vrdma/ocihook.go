package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"vrdma/internal/caller"
	"vrdma/internal/container"
	"vrdma/internal/control"
	"vrdma/internal/launch"
	"vrdma/internal/preflight"
	"vrdma/internal/tenant"
)

func ociHookCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:    "oci-hook",
		Short:  "what OCI runtimes run while they make a container with a NIC",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usage("say which: look NIC, merge, end NIC; make NETWORK, mount NETWORK, unmake NETWORK")
		},
	}
	c.AddCommand(&cobra.Command{
		Use:   "look NIC",
		Short: "createRuntime: look at the container's root, say what keeps programs from the NIC, and bind it",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var refused error
			hook(c, "NIC "+args[0], func() (err error) {
				refused, err = lookAt(o, c.ErrOrStderr(), args[0])
				return err
			})
			if refused != nil {
				tellRuntime(refused)
			}
			return refused
		},
	}, &cobra.Command{
		Use:   "make NETWORK",
		Short: "createRuntime: make a NIC for the container, and do as look does",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			err := makeFor(o, c.ErrOrStderr(), args[0])
			if err != nil {
				tellRuntime(err)
			}
			return err
		},
	}, &cobra.Command{
		Use:   "mount NETWORK",
		Short: "createContainer: mount the directory of the NIC that was made",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			err := mountMade(o, args[0])
			if err != nil {
				tellRuntime(err)
			}
			return err
		},
	}, &cobra.Command{
		Use:   "unmake NETWORK",
		Short: "poststop: take away the NIC that was made",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			hook(c, "network "+args[0], func() error { return unmake(o, args[0]) })
			return nil
		},
	}, &cobra.Command{
		Use:   "end NIC",
		Short: "poststop: the container is gone, and has the NIC no more",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			hook(c, "NIC "+args[0], func() error { return endOf(o, args[0]) })
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

// hook runs a hook. Whatever happens, the container starts: a NIC may be all that it lacks. Only a NIC that another container
// has keeps it from starting.
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
// refused is why the container cannot have the NIC: another one has it.
func lookAt(o *options, w io.Writer, device string) (refused, err error) {
	state, bundle, err := bundleOfHook()
	if err != nil {
		return nil, err
	}
	place, err := o.place()
	if err != nil {
		return nil, err
	}
	if refused, err = bindTo(place, w, state, device); refused != nil {
		return refused, nil
	}
	return nil, errors.Join(err, lookAtRoot(place, w, state, bundle, device))
}

// bindTo binds a declared NIC to the container's network namespace. That of the host is no container's.
func bindTo(place launch.Place, w io.Writer, state *container.State, device string) (refused, err error) {
	key, cookie := keyOfDevice(device), workloadOf(state.Pid)
	if key == (tenant.Key{}) || cookie == 0 {
		return nil, nil
	}
	is, err := control.Plug(place.Socket, control.Binding{
		NIC: key, Cookie: cookie, Namespace: fmt.Sprintf("/proc/%d/ns/net", state.Pid), Container: state.ID, Name: state.Name(), Ends: true,
	})
	if is.Missing != "" {
		fmt.Fprintf(w, "vrdma: container %s with NIC %s: %s: %s\n", state.Name(), device, control.OnlyRDMA, is.Missing)
	}
	if e := (*control.Error)(nil); errors.As(err, &e) && e.InUse {
		return fmt.Errorf("container %s cannot start: %w", state.Name(), err), nil
	}
	if err != nil {
		return nil, fmt.Errorf("it is not bound to the container: %w", err)
	}
	return nil, nil
}

// endOf undoes bindTo.
func endOf(o *options, device string) error {
	state, err := container.ReadState(os.Stdin)
	if err != nil {
		return err
	}
	key := keyOfDevice(device)
	if key == (tenant.Key{}) {
		return nil
	}
	place, err := o.place()
	if err != nil {
		return err
	}
	return control.Unbind(place.Socket, control.Binding{NIC: key, Container: state.ID})
}

// lookAtRoot says what keeps the container's programs from the NIC.
func lookAtRoot(place launch.Place, w io.Writer, state *container.State, bundle *container.Bundle, device string) error {
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

// tellRuntime says on the runtime's own stderr why the container does not start: crun throws a hook's away. An engine shows that
// only if it cannot make sense of crun's log, where crun will write that a hook failed and not why: so the reason goes there, too, before
// it. What podman shows then is the stderr.
func tellRuntime(why error) {
	runtime := fmt.Sprintf("/proc/%d/", os.Getppid())
	name, err := os.ReadFile(runtime + "comm")
	if err != nil || strings.TrimSpace(string(name)) != "crun" {
		return
	}
	text := fmt.Sprintf("vrdma: %v\n", why)
	appendTo(runtime+"fd/2", text)
	args, err := os.ReadFile(runtime + "cmdline")
	if err != nil {
		return
	}
	list := strings.Split(string(args), "\x00")
	for i, a := range list {
		path, is := strings.CutPrefix(a, "--log=")
		if a == "--log" && i+1 < len(list) {
			path, is = list[i+1], true
		}
		if is && filepath.IsAbs(path) {
			line, _ := json.Marshal(map[string]string{"msg": strings.TrimSpace(text), "level": "error", "time": time.Now().UTC().Format(time.RFC3339Nano)}) // strings only
			appendTo(path, string(line)+"\n")
		}
	}
}

// appendTo writes to a file that is there, as far as that goes.
func appendTo(path, text string) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	f.WriteString(text)
}
