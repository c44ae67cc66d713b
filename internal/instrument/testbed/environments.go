package testbed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// Environments makes the places where cells are measured, and keeps them: on this host, between two network namespaces that
// stand for hosts, in containers, in a guest, and with another machine.
type Environments struct {
	Lab *Lab
	// Source is the repository, for what makes a guest.
	Source string
	// Peer is USER@HOST, for setting remote, which Rsh reaches; "": there is none.
	Peer string
	Rsh  []string
	// Rootfs is the root directory of containers, or their image with Docker; "": this machine's programs.
	Rootfs string
	// Engine is what starts containers, one of EngineNames; "": the first that is there.
	Engine string

	image     string // that was made for Docker's containers
	swept     bool   // what killed runs left was looked for
	ThirdCard bool   // guests have one more ordinary card, with the interrupts that an emulated one of vhost-user has
	accounted bool   // control groups were tried
	kept      map[string]*Environment
	broken    map[string]error // places that could not be made: they are not tried again and again
}

// Close stops what was started.
func (in *Environments) Close() {
	for _, name := range slices.Sorted(maps.Keys(in.kept)) {
		in.kept[name].Close()
	}
	in.RemoveImage()
	in.Lab.Accounting.close()
}

// environmentName is what the place of a cell is called.
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

// forget closes the place of a cell if somebody there has died: the next cell has a new one made.
func (in *Environments) forget(c experiment.Cell) {
	name := environmentName(c)
	if p := in.kept[name]; p != nil && p.lost() {
		p.Close()
		delete(in.kept, name)
	}
}

// closeGuests closes the places of guests, and reports whether there were any. Whoever needs one again has it made.
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

// With calls f with the place of a cell. If f fails and somebody there has died, the next cell has a new one made.
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

// get finds or makes the place of a cell.
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
		in.closeGuests() // they take memory, and processor time when they rest
	}
	p, err := establish(ctx, in, c)
	if errors.Is(err, errNoMemory) && in.closeGuests() { // those of other settings may have it
		p, err = establish(ctx, in, c)
	}
	if err == nil {
		if err = p.measureIdle(ctx); err != nil {
			p.Close()
		}
	}
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, errNoMemory) { // memory may be free again
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
