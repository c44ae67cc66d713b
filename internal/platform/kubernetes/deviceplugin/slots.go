package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/platform/container"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Slots are names that the kubelet or the scheduler allocates to pods. Each is a symbolic link in a directory. It leads to
// the gate of a NIC (package provision) while a pod has the slot, and does not exist otherwise. The device plugin and the
// DRA driver (package dra) have a directory each.

// mostSlots bounds the slots of a host.
const mostSlots = 4096

// OpenSlots makes a directory of slots, and describes in a directory of the Container Device Interface how they are
// mounted. Both stay when the process ends, for the pods that run then.
func OpenSlots(dir, cdi, kind string, names []string) error {
	if len(names) < 1 || len(names) > mostSlots {
		return fmt.Errorf("%d slots: a host has 1 to %d", len(names), mostSlots)
	}
	if err := os.Mkdir(dir, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return Describe(cdi, kind, dir, names)
}

// Declare declares a NIC that is made for a pod, and tells the labeler of an error.
func Declare(d Daemon, made *tenant.NIC, labels *Labeler) error {
	err := d.Put(made)
	if err != nil && labels != nil {
		labels.Failed(err)
	}
	return err
}

// Gate is the directory that a slot leads to: the gate of a NIC on this host.
func Gate(place launch.Place, nic tenant.Key) (string, error) {
	at, err := place.NIC(nic.Tenant, nic.Name)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(at.Preload()); err != nil {
		return "", fmt.Errorf("NIC %s is not on this host: %w", nic.Path(), err)
	}
	return at.Gate(), nil
}

// Describe writes a CDI file for slots.
func Describe(cdi, kind, dir string, names []string) error {
	spec := &container.Spec{Version: container.CDIVersion, Kind: kind}
	for _, name := range names {
		// A NIC's directory is the one inside its gate.
		spec.Devices = append(spec.Devices, container.NewDevice(name, launch.Place{Socket: filepath.Join(dir, name, "nic", "vrdma.sock")}))
	}
	if err := os.MkdirAll(cdi, 0o755); err != nil {
		return err
	}
	return Replace(filepath.Join(cdi, strings.ReplaceAll(kind, "/", "-")+".json"), spec.Text())
}

// Replace writes a file atomically.
func Replace(path string, text []byte) error {
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync() // otherwise the file may be empty after a power loss
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// Occupy links a slot to a gate. It replaces an earlier link.
func Occupy(slot, gate string) error {
	part := filepath.Join(filepath.Dir(slot), ".part")
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(gate, part); err != nil {
		return err
	}
	return os.Rename(part, slot)
}

// Repeat calls f periodically until ctx ends. It calls say once for each different error in a row.
func Repeat(ctx context.Context, every time.Duration, f func(context.Context) error, say func(error)) {
	said := ""
	for {
		err := f(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && err.Error() != said {
			say(err)
			said = err.Error()
		} else if err == nil {
			said = ""
		}
		if !kubelet.Pause(ctx, every) {
			return
		}
	}
}
