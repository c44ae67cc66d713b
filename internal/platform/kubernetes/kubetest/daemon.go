// Package kubetest has a daemon for tests of the device plugin and of the DRA driver. It keeps NICs in memory.
package kubetest

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Daemon has declared objects, of type W, and the NICs that were made.
type Daemon[W any] struct {
	sync.Mutex // guards the fields below
	Declared   W
	Down       error // the answer to every request, unless it is nil
	Made       map[tenant.Key]*tenant.NIC
	Place      launch.Place
	// Answer decides the answer to Put for a NIC, by its name, and whether the NIC is stored; nil: it is.
	Answer func(name string) (stores bool, err error)
}

// Set calls f while it holds the lock.
func (d *Daemon[W]) Set(f func()) {
	d.Lock()
	defer d.Unlock()
	f()
}

// World returns the declared objects.
func (d *Daemon[W]) World() (W, error) {
	d.Lock()
	defer d.Unlock()
	return d.Declared, d.Down
}

// Put makes a NIC. Two NICs cannot have one address.
func (d *Daemon[W]) Put(n *tenant.NIC) error {
	d.Lock()
	defer d.Unlock()
	if d.Down != nil {
		return d.Down
	}
	stores, answer := true, error(nil)
	if d.Answer != nil {
		stores, answer = d.Answer(n.Metadata.Name)
	}
	if !stores {
		return answer
	}
	for k, other := range d.Made {
		if k != n.Key() && n.Spec.Address.IsValid() && other.Spec.Address == n.Spec.Address {
			return fmt.Errorf("%s is the address of %s", n.Spec.Address, k.Path())
		}
	}
	d.Made[n.Key()] = n
	return errors.Join(answer, d.Directory(n.Key()))
}

// Delete deletes NICs.
func (d *Daemon[W]) Delete(nics []tenant.Key) error {
	d.Lock()
	defer d.Unlock()
	if d.Down != nil {
		return d.Down
	}
	for _, k := range nics {
		if d.Made[k] == nil {
			return fmt.Errorf("there is no %s", k.Path())
		}
		delete(d.Made, k)
	}
	return nil
}

// NICs returns copies of the NICs with a label.
func (d *Daemon[W]) NICs(label, value string) (nics []*tenant.NIC, err error) {
	d.Lock()
	defer d.Unlock()
	for _, n := range d.Made {
		if n.Metadata.Labels[label] == value {
			copied := *n
			copied.Metadata.Labels = maps.Clone(n.Metadata.Labels)
			nics = append(nics, &copied)
		}
	}
	return nics, d.Down
}

// Names returns the names of the NICs that were made.
func (d *Daemon[W]) Names() (out []string) {
	d.Lock()
	defer d.Unlock()
	for k := range d.Made {
		out = append(out, k.Path())
	}
	slices.Sort(out)
	return out
}

// Directory makes the parts of a NIC's directory that plugin and driver read.
func (d *Daemon[W]) Directory(k tenant.Key) error {
	at, err := d.Place.NIC(k.Tenant, k.Name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(at.Dir(), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at.Preload(), nil, 0o644)
}
