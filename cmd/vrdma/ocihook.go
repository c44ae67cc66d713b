package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/oci"
)

func ociHookCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:    "oci-hook",
		Short:  "hooks that OCI runtimes run for a container with a NIC",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usage("say which: look NIC, merge, end NIC; make NETWORK, mount NETWORK, unmake NETWORK")
		},
	}
	c.AddCommand(&cobra.Command{
		Use:   "look NIC",
		Short: "createRuntime: bind the NIC and report what keeps programs from it",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var refused error
			hook(c, "NIC "+args[0], func() error {
				h, err := ociHook(o, c)
				if err == nil {
					refused, err = h.Look(args[0])
				}
				return err
			})
			if refused != nil {
				oci.TellRuntime(refused)
			}
			return refused
		},
	}, &cobra.Command{
		Use:   "make NETWORK",
		Short: "createRuntime: declare a NIC for the container, then do what look does",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			h, err := ociHook(o, c)
			if err == nil {
				err = h.Make(args[0])
			}
			if err != nil {
				oci.TellRuntime(err)
			}
			return err
		},
	}, &cobra.Command{
		Use:   "mount NETWORK",
		Short: "createContainer: mount the directory of the declared NIC",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			h, err := ociHook(o, c)
			if err == nil {
				err = h.Mount(args[0])
			}
			if err != nil {
				oci.TellRuntime(err)
			}
			return err
		},
	}, &cobra.Command{
		Use:   "unmake NETWORK",
		Short: "poststop: delete the declared NIC",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			hook(c, "network "+args[0], func() error {
				h, err := ociHook(o, c)
				if err != nil {
					return err
				}
				return h.Unmake(args[0])
			})
			return nil
		},
	}, &cobra.Command{
		Use:   "end NIC",
		Short: "poststop: release the NIC",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			hook(c, "NIC "+args[0], func() error {
				h, err := ociHook(o, c)
				if err != nil {
					return err
				}
				return h.End(args[0])
			})
			return nil
		},
	}, &cobra.Command{
		Use:   "merge",
		Short: "createContainer: merge the image's /etc/ld.so.preload with the NIC's",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			hook(c, "the image's "+container.Preload+" is not loaded", (&oci.Hook{State: os.Stdin, Log: c.ErrOrStderr()}).Merge)
			return nil
		},
	})
	return c
}

// ociHook is a hook that the runtime calls with the container's state on stdin.
func ociHook(o *options, c *cobra.Command) (*oci.Hook, error) {
	place, err := o.place()
	return &oci.Hook{Place: place, State: os.Stdin, Log: c.ErrOrStderr()}, err
}

// hook runs a hook and prints its error. The container starts anyway: it may need nothing but the NIC that it lacks.
func hook(c *cobra.Command, what string, f func() error) {
	if err := f(); err != nil {
		fmt.Fprintf(c.ErrOrStderr(), "vrdma: %s: %v\n", what, err)
	}
}
