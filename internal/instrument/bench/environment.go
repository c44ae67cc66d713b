package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A place is where cells are measured: two hosts, or one, with their daemons.
type place struct {
	route   Route
	daemons []*daemon
	close   func()
	// label says what stands for what, if it is not what the setting says.
	label string
	// overlay is the route over VXLAN, once there is one.
	overlay *Route
	// idle is what the daemons take when nobody uses them, in processors.
	idle float64
	// guest measures by itself.
	guest *agent
	// machines are the guests of setting vms, and plain the route between their ordinary cards.
	machines []*machine
	plain    *Route
	// others are the routes between further containers or guests, as route and plain are between the first.
	others, othersPlain []Route
	base                *Host // that they are on
	bridge              *space
	ovs                 *ovs // the switch between those cards; nil: a bridge
}

// settings make places.
var settings = map[string]func(ctx context.Context, in *Environments, c experiment.Cell) (*place, error){
	experiment.Host:       onHost,
	experiment.Hosts:      betweenHosts,
	experiment.Containers: inContainers,
	experiment.GuestRXE:   inGuest,
	experiment.Remote:     withPeer,
	experiment.VMs:        inMachines,
	experiment.VMsApart:   apartMachines,
}

// lost reports whether a guest or the other machine no longer answers.
func (p *place) lost() bool {
	agents := []*agent{p.guest}
	if p.route.Server != nil {
		agents = append(agents, p.route.Server.far)
	}
	for _, m := range p.machines {
		agents = append(agents, m.agent)
	}
	return slices.ContainsFunc(agents, func(a *agent) bool { return a != nil && a.lost() })
}

func onHost(ctx context.Context, in *Environments, _ experiment.Cell) (*place, error) {
	d, err := in.Lab.Here.Start(ctx, "--network=false")
	if err != nil {
		return nil, err
	}
	return &place{route: in.Lab.Here.loop(), daemons: []*daemon{d}, close: d.stop}, nil
}

func betweenHosts(ctx context.Context, in *Environments, c experiment.Cell) (*place, error) {
	w, err := in.Lab.Wire(ctx, c.MTU)
	if err != nil {
		return nil, err
	}
	if err := w.limit(ctx, c); err != nil {
		w.Close()
		return nil, err
	}
	return &place{route: w.Route(), daemons: w.daemons, close: w.Close}, nil
}

// resting is how long daemons are watched before the first run.
const resting = 2 * time.Second

// rest measures what the daemons take when nobody uses them: it is part of what a solution costs.
func (p *place) rest(ctx context.Context) error {
	if len(p.daemons) == 0 {
		return nil
	}
	spent := func() (all time.Duration, err error) {
		for _, d := range p.daemons {
			used, err := d.precise()
			if err != nil {
				return 0, err
			}
			all += used
		}
		return all, nil
	}
	if err := wait(ctx, settling); err != nil {
		return err
	}
	before, err := spent()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := wait(ctx, resting); err != nil {
		return err
	}
	after, err := spent()
	p.idle = (after - before).Seconds() / time.Since(begin).Seconds()
	return err
}

// routes are those of all containers or guests of a cell, of which r is the first's.
func (p *place) routes(c experiment.Cell, r Route) ([]Route, error) {
	switch {
	case c.PerSide == 0:
		return []Route{r}, nil
	case p.plain != nil && r == *p.plain:
		return append([]Route{r}, p.othersPlain...), nil
	case r == p.route:
		return append([]Route{r}, p.others...), nil
	}
	return nil, fmt.Errorf("transport %s is measured between two only by this version, not with %d a side", c.Transport, c.PerSide)
}

// hosts are all that have a device.
func (p *place) hosts() (list []*Host) {
	for _, r := range append([]Route{p.route}, p.others...) {
		list = append(list, slices.Compact([]*Host{r.Client, r.Server})...)
	}
	return list
}

// carrier is the route that a cell's transport has at a place, and the kernel's device if it is that.
func (p *place) carrier(ctx context.Context, c experiment.Cell, kernel string) (Route, *kernelDevice, error) {
	switch c.Transport {
	case experiment.TCP, experiment.OVS:
		if p.plain != nil {
			return *p.plain, nil, nil
		}
	case experiment.Sockets:
		if p.route.Server.box != "" || p.route.Server.far != nil && p.route.Server.seen == nil {
			return p.route, nil, fmt.Errorf("sockets over RDMA are not measured in setting %s by this version", c.Setting)
		}
	case experiment.Kernel:
		k, err := findKernelDevice(kernel, "/sys")
		if err != nil {
			return p.route, nil, err
		}
		if p.route.Server != p.route.Client {
			return p.route, nil, fmt.Errorf("the kernel's device is measured in setting host and in a guest only: in setting %s this version does not know where it is", c.Setting)
		}
		return k.host(p.route.Server).loop(), &k, nil
	case experiment.Overlay:
		if p.overlay == nil {
			r, err := p.route.vxlan(ctx)
			if err != nil {
				return p.route, nil, err
			}
			p.overlay = &r
		}
		return *p.overlay, nil, nil
	}
	return p.route, nil, nil
}
