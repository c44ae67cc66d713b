package testbed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// Environments makes the environments of cells and keeps them until Close: this host, two network namespaces that stand for hosts,
// containers, guests, another machine.
type Environments struct {
	Lab *Lab
	// Source is the repository. It builds the image of guests.
	Source string
	// Peer is USER@HOST for setting remote, reached with Rsh; "": there is none.
	Peer string
	Rsh  []string
	// Rootfs is the root directory of containers, or with Docker their image; "": this machine's programs.
	Rootfs string
	// Engine starts containers, one of EngineNames; "": the first that works.
	Engine string

	image     string // made for Docker's containers
	swept     bool   // abandoned containers were looked for
	ThirdCard bool   // guests have one more tap card, without MSI-X, as the emulated vhost-user card has none
	accounted bool   // control groups were tried
	kept      map[string]*Environment
	broken    map[string]error // environments that could not be made: a second try would fail, too
}

// Close stops all environments.
func (in *Environments) Close() {
	for _, name := range slices.Sorted(maps.Keys(in.kept)) {
		in.kept[name].Close()
	}
	in.RemoveImage()
	in.Lab.Accounting.close()
}

// environmentName identifies the environment of a cell.
func environmentName(c experiment.Cell) string {
	name := fmt.Sprintf("%s %d %s %s", c.Setting, c.MTU, c.Rate, c.Delay)
	if c.Transport == experiment.OVS {
		name += " " + c.Transport // with guests of its own
	}
	if c.PerSide != 0 {
		name += fmt.Sprintf(" %d a side", c.PerSide)
	}
	return name
}

// forget closes the environment of a cell if a guest or machine in it no longer answers. The next cell gets a new one.
func (in *Environments) forget(c experiment.Cell) {
	name := environmentName(c)
	if p := in.kept[name]; p != nil && p.lost() {
		p.Close()
		delete(in.kept, name)
	}
}

// closeGuests closes the environments with guests and reports whether there were any. A later cell makes them again.
func (in *Environments) closeGuests() (any bool) {
	for name, p := range in.kept {
		if p.VMs != nil || p.Guest != nil {
			any = true
			p.Close()
			delete(in.kept, name)
		}
	}
	return any
}

// With calls f with the environment of a cell. If f fails and a guest or machine no longer answers, the next cell gets a new
// environment.
func (in *Environments) With(ctx context.Context, c experiment.Cell, f func(*Environment) error) error {
	p, err := in.get(ctx, c)
	if err != nil {
		return err
	}
	if err = f(p); err != nil {
		in.forget(c)
	}
	return err
}

// get returns the environment of a cell and makes it if necessary.
func (in *Environments) get(ctx context.Context, c experiment.Cell) (*Environment, error) {
	if !in.accounted {
		in.accounted, in.Lab.Accounting = true, newAccounting()
	}
	name := environmentName(c)
	if p := in.kept[name]; p != nil {
		return p, nil
	}
	if err := in.broken[name]; err != nil {
		return nil, err
	}
	establish, known := constructors[c.Setting]
	if !known {
		return nil, fmt.Errorf("setting %s cannot be measured by this version", c.Setting)
	}
	if c.PerSide != 0 && c.Setting == experiment.VMs {
		in.closeGuests() // idle guests take memory and processor time
	}
	p, err := establish(ctx, in, c)
	if errors.Is(err, errNoMemory) && in.closeGuests() { // guests of other settings may have the memory
		p, err = establish(ctx, in, c)
	}
	if err == nil {
		if err = p.measureIdle(ctx); err != nil {
			p.Close()
		}
	}
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, errNoMemory) { // memory may become free
			if in.broken == nil {
				in.broken = make(map[string]error)
			}
			in.broken[name] = err
		}
		return nil, err
	}
	if in.kept == nil {
		in.kept = make(map[string]*Environment)
	}
	in.kept[name] = p
	return p, nil
}
