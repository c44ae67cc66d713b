package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"vrdma/internal/container"
	"vrdma/internal/launch"
	"vrdma/internal/protocol"
	"vrdma/internal/vnic"
)

// systemCDI is where engines look for CDI files that a program keeps.
const systemCDI = "/var/run/cdi"

func cdiCommand(o *options) *cobra.Command {
	var hook string
	c := &cobra.Command{
		Use:   "cdi [TENANT]",
		Short: "print the NICs of this host as CDI files",
		Long: `Prints what the daemon writes with --cdi: files of the Container Device Interface, by which
an engine gives a NIC to a container: podman run --device vrdma.io/nic=default, or
vrdma.io/nic=TENANT.NAME for a declared one. One document for each tenant with NICs on
this host, and one for NIC default; with an argument that tenant's alone (default is the
tenant of NIC default). Of NICs that we may open.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			place, err := o.place()
			if err != nil {
				return err
			}
			doors, err := protocol.QueryNICs(place.Socket)
			if absent(err) {
				return lacks("no daemon serves %s: start one with vrdma daemon, or choose another with --socket", place.Socket)
			}
			if err != nil {
				return improper(place, err)
			}
			program, err := hookProgram(hook)
			if err != nil {
				return err
			}
			var nics []container.NIC
			for _, d := range doors {
				n, err := containerNIC(place, d.Name, program)
				if err != nil {
					return err
				}
				nics = append(nics, n)
			}
			specs := container.Specs(nics)
			wanted := slices.Sorted(maps.Keys(specs))
			if len(args) == 1 {
				of := strings.TrimPrefix(args[0], vnic.Default)
				if specs[of] == nil {
					return fmt.Errorf("tenant %s has no NIC here that we may open", args[0])
				}
				wanted = []string{of}
			}
			for _, of := range wanted {
				if _, err := c.OutOrStdout().Write(specs[of].Text()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().StringVar(&hook, "hook", "", "the path of vrdma as engines see it, for hooks, none for none (default: this program)")
	return c
}

// containerNIC is a NIC of the daemon at place, by its name there, for containers. hook is our program, as engines see it.
func containerNIC(place launch.Place, name, hook string) (n container.NIC, err error) {
	of, nic, declared := strings.Cut(name, "/")
	if declared {
		n = container.NIC{Tenant: of, Name: nic}
		n.Place, err = place.NIC(of, nic)
	} else {
		n = container.NIC{Name: vnic.Default}
		n.Place, err = place.NIC(vnic.Default, vnic.Default)
	}
	n.Hooks = container.Hooks(hook, place.Socket, n.Device())
	return n, err
}

// cdiDirectory is where this daemon keeps CDI files: what --cdi says, else that of the system if this
// is the system's daemon: root's, with its socket in /run or /var/lib. "" is nowhere.
func (f *daemonFlags) cdiDirectory(place launch.Place) string {
	switch {
	case f.cdi == "none":
		return ""
	case f.cdi != "":
		return f.cdi
	case os.Geteuid() != 0 || f.ephemeral:
		return ""
	}
	for _, dir := range []string{"/run/", "/var/run/", "/var/lib/"} {
		if strings.HasPrefix(place.Socket, dir) {
			return systemCDI
		}
	}
	return ""
}

// cdiRest is how long the files rest after a change: many NICs often come together.
const cdiRest = 20 * time.Millisecond

// cdiPatience is how long a daemon waits before it tries again to have the directory: an older one may be about to end.
const cdiPatience = time.Second

// takeCDI takes the directory; nil: there is none, or another daemon still has it, which keepCDI waits for. If nobody asked for
// it, a daemon without it serves all the same.
func (d *daemon) takeCDI(dir string, asked bool) (*container.Keeper, error) {
	if dir == "" {
		return nil, nil
	}
	k, err := container.Keep(dir, d.mode)
	switch {
	case err == nil:
		return k, nil
	case errors.Is(err, container.ErrKept):
		d.log.Warn("engines will not know this daemon's vrdma.io/nic until the other one ends; choose another directory with --cdi, or none", "error", err)
		return nil, nil
	}
	err = fmt.Errorf("cannot keep CDI files: %w; choose another directory with --cdi, or none", err)
	if asked {
		return nil, lacks("%w", err)
	}
	d.log.Warn("engines will not know vrdma.io/nic", "error", err)
	return nil, nil
}

// keepCDI keeps the files in dir current until the returned function is called, which removes them. k is nil if the directory is
// still to be had.
func (d *daemon) keepCDI(dir string, k *container.Keeper) (stop func()) {
	if dir == "" {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	if k != nil {
		d.writeCDI(k)
	}
	go func() {
		defer close(ended)
		for k == nil {
			select {
			case <-time.After(cdiPatience):
			case <-done:
				return
			}
			var err error
			if k, err = container.Keep(dir, d.mode); err == nil {
				d.log.Info("engines know vrdma.io/nic", "cdi", dir)
				d.writeCDI(k)
			} else if !errors.Is(err, container.ErrKept) {
				return // takeCDI has said so
			}
		}
		for {
			select {
			case <-d.racked:
			case <-done:
				return
			}
			time.Sleep(cdiRest)
			d.writeCDI(k)
		}
	}()
	return func() {
		close(done)
		<-ended
		if k == nil {
			return
		}
		if err := k.Close(); err != nil {
			d.log.Warn("CDI files are left", "error", err)
		}
	}
}

// writeCDI writes the NICs that are here now.
func (d *daemon) writeCDI(k *container.Keeper) {
	var nics []container.NIC
	var errs []error
	add := func(name string) {
		n, err := containerNIC(d.place, name, d.hook)
		if err != nil {
			errs = append(errs, err)
			return
		}
		nics = append(nics, n)
	}
	if d.nics.Named(vnic.Default) != nil {
		add(vnic.Default)
	}
	for _, key := range d.rack.Keys() {
		add(key.Path())
	}
	if at, err := d.place.Waiting(); err != nil {
		errs = append(errs, err)
	} else if d.hook != "" {
		for _, key := range d.rack.Networks() {
			n := container.NIC{Tenant: key.Tenant, Name: key.Name, Place: at, Network: true}
			n.Hooks = container.NetworkHooks(d.hook, d.place.Socket, n.Device())
			nics = append(nics, n)
		}
	}
	if err := errors.Join(append(errs, k.Put(nics))...); err != nil {
		d.log.Warn("CDI files are not current", "error", err)
	}
}

// rackChanged is told that NICs were put in or pulled out.
func (d *daemon) rackChanged() {
	select {
	case d.racked <- struct{}{}:
	default:
	}
	select {
	case d.plugs <- struct{}{}:
	default:
	}
}
