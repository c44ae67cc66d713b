package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"io/fs"

	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/provision"
)

// cdiDirectory is the directory for CDI files: that of --cdi, else the system's if this is the system's daemon, which is root's with
// its socket in /run or /var/lib. "" is none.
func (s *settings) cdiDirectory() string {
	switch {
	case s.CDI == "none":
		return ""
	case s.CDI != "":
		return s.CDI
	case os.Geteuid() != 0 || s.Ephemeral:
		return ""
	}
	for _, dir := range []string{"/run/", "/var/run/", "/var/lib/"} {
		if strings.HasPrefix(s.place.Socket, dir) {
			return SystemCDI
		}
	}
	return ""
}

// cdiFiles keeps the CDI files of this daemon's NICs current.
type cdiFiles struct {
	dir         string // "": there are none
	mode        fs.FileMode
	place       launch.Place
	hook        string // the path of vrdma as engines see it; "": the files have no hooks
	nics        *registry.Table
	provisioner *provision.Provisioner // set before NICs are created
	log         *slog.Logger
	keeper      *container.Keeper // nil: another daemon has the directory
	wake        chan struct{}     // holds one: NICs were created or removed
}

const (
	// cdiRest is the pause before the files are written: NICs often come together.
	cdiRest = 20 * time.Millisecond
	// cdiPatience is the time between two attempts to take the directory: an older daemon may be about to end.
	cdiPatience = time.Second
)

// take takes the directory. If another daemon has it, keep waits for that daemon. An error counts only if --cdi names the directory.
func (c *cdiFiles) take(asked bool) error {
	if c.dir == "" {
		return nil
	}
	k, err := container.Keep(c.dir, c.mode)
	switch {
	case err == nil:
		c.keeper = k
		return nil
	case errors.Is(err, container.ErrKept):
		c.log.Warn("engines will not know this daemon's vrdma.io/nic until the other daemon ends; choose another directory with --cdi, or none", "error", err)
		return nil
	}
	err = fmt.Errorf("cannot keep CDI files: %w; choose another directory with --cdi, or none", err)
	if asked {
		return exit.Lacks("%w", err)
	}
	c.log.Warn("engines will not know vrdma.io/nic", "error", err)
	return nil
}

// stay reports whether the files stay when the daemon ends. Engines then find the devices, and the hook says that no daemon runs.
func (c *cdiFiles) stay() bool { return c.dir != "" && c.hook != "" }

// release gives the directory back.
func (c *cdiFiles) release() error {
	if c.keeper == nil {
		return nil
	}
	return c.keeper.Close(c.stay())
}

// changed is called when NICs were created or removed.
func (c *cdiFiles) changed() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// keep keeps the files current until stop is called. Without hooks it removes them then.
func (c *cdiFiles) keep() (stop func()) {
	if c.dir == "" {
		return func() {}
	}
	done, ended := make(chan struct{}), make(chan struct{})
	if c.keeper != nil {
		c.write()
	}
	go func() {
		defer close(ended)
		if !c.await(done) {
			return
		}
		for {
			select {
			case <-c.wake:
			case <-done:
				return
			}
			time.Sleep(cdiRest)
			c.write()
		}
	}()
	return func() {
		close(done)
		<-ended
		if err := c.release(); err != nil {
			c.log.Warn("CDI files are left", "error", err)
		}
	}
}

// await waits until the directory is this daemon's. It reports false if done is closed before, or the directory cannot be used.
func (c *cdiFiles) await(done <-chan struct{}) bool {
	for c.keeper == nil {
		select {
		case <-time.After(cdiPatience):
		case <-done:
			return false
		}
		k, err := container.Keep(c.dir, c.mode)
		if err == nil {
			c.keeper = k
			c.log.Info("container engines can use the device vrdma.io/nic", "cdi", c.dir)
			c.write()
		} else if !errors.Is(err, container.ErrKept) {
			return false // take has logged it
		}
	}
	return true
}

// write writes the NICs that exist now.
func (c *cdiFiles) write() {
	var nics []container.NIC
	var errs []error
	add := func(name string) {
		n, err := container.Of(c.place, name, c.hook)
		if err != nil {
			errs = append(errs, err)
			return
		}
		nics = append(nics, n)
	}
	if c.nics.Named(registry.Default) != nil {
		add(registry.Default)
	}
	for _, key := range c.provisioner.Keys() {
		add(key.Path())
	}
	if at, err := c.place.Waiting(); err != nil {
		errs = append(errs, err)
	} else if c.hook != "" {
		for _, key := range c.provisioner.Networks() {
			n := container.NIC{Tenant: key.Tenant, Name: key.Name, Place: at, Network: true}
			n.Hooks = container.NetworkHooks(c.hook, c.place.Socket, n.Device())
			nics = append(nics, n)
		}
	}
	if err := errors.Join(append(errs, c.keeper.Put(nics))...); err != nil {
		c.log.Warn("CDI files are not current", "error", err)
	}
}
