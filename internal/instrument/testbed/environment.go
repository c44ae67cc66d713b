package testbed

import (
	"context"
	"fmt"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// An Environment is where cells are measured: one host or two, with their daemons.
type Environment struct {
	Route   Route
	Daemons []*Daemon
	Close   func()
	// Label says what the setting stands for, where that is not obvious.
	Label string
	// vxlan is the route over the kernel's VXLAN; nil until it is needed.
	vxlan *Route
	// Idle is the processor time of the idle daemons, in processors.
	Idle float64
	// Guest measures cells by itself; nil: there is no such guest.
	Guest *Agent
	// VMs are the guests of settings vms and vms-apart. TapRoute is the route between their tap cards.
	VMs      []*VM
	TapRoute *Route
	// others and otherTaps are the routes between the second pair of containers or guests, the third, and so on.
	others, otherTaps []Route
	host              *Host // the host of the guests
	bridge            *Namespace
	OVS               *OVS // the switch between the second cards; nil: a bridge
}

// constructors make the environment of each setting.
var constructors = map[string]func(ctx context.Context, in *Environments, c experiment.Cell) (*Environment, error){
	experiment.Host:       newOneHost,
	experiment.Hosts:      newTwoHosts,
	experiment.Containers: newContainers,
	experiment.GuestRXE:   newRXEGuest,
	experiment.Remote:     newRemote,
	experiment.VMs:        NewVMs,
	experiment.VMsApart:   NewVMsApart,
}

// lost reports whether a guest or the other machine no longer answers.
func (p *Environment) lost() bool {
	agents := []*Agent{p.Guest}
	if p.Route.Server != nil {
		agents = append(agents, p.Route.Server.Agent)
	}
	for _, m := range p.VMs {
		agents = append(agents, m.Agent)
	}
	return slices.ContainsFunc(agents, func(a *Agent) bool { return a != nil && a.isLost() })
}

func newOneHost(ctx context.Context, in *Environments, _ experiment.Cell) (*Environment, error) {
	d, err := in.Lab.Here.Start(ctx, "--network=false")
	if err != nil {
		return nil, err
	}
	return &Environment{Route: in.Lab.Here.Loopback(), Daemons: []*Daemon{d}, Close: d.Stop}, nil
}

func newTwoHosts(ctx context.Context, in *Environments, c experiment.Cell) (*Environment, error) {
	w, err := in.Lab.NewHostPair(ctx, c.MTU)
	if err != nil {
		return nil, err
	}
	if err := w.shape(ctx, c); err != nil {
		w.Close()
		return nil, err
	}
	return &Environment{Route: w.Route(), Daemons: w.Daemons, Close: w.Close}, nil
}

// resting is how long the idle daemons are watched before the first run.
const resting = 2 * time.Second

// measureIdle measures the processor time of idle daemons, which is part of the cost of a solution.
func (p *Environment) measureIdle(ctx context.Context) error {
	if len(p.Daemons) == 0 {
		return nil
	}
	spent := func() (all time.Duration, err error) {
		for _, d := range p.Daemons {
			used, err := d.preciseCPUTime()
			if err != nil {
				return 0, err
			}
			all += used
		}
		return all, nil
	}
	if err := Sleep(ctx, SettleTime); err != nil {
		return err
	}
	before, err := spent()
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := Sleep(ctx, resting); err != nil {
		return err
	}
	after, err := spent()
	p.Idle = (after - before).Seconds() / time.Since(begin).Seconds()
	return err
}

// Routes returns the routes between all containers or guests of a cell. r is the first.
func (p *Environment) Routes(c experiment.Cell, r Route) ([]Route, error) {
	switch {
	case c.PerSide == 0:
		return []Route{r}, nil
	case p.TapRoute != nil && r == *p.TapRoute:
		return append([]Route{r}, p.otherTaps...), nil
	case r == p.Route:
		return append([]Route{r}, p.others...), nil
	}
	return nil, fmt.Errorf("transport %s is measured between two only by this version, not with %d a side", c.Transport, c.PerSide)
}

// hosts returns all hosts with a device.
func (p *Environment) hosts() (list []*Host) {
	for _, r := range append([]Route{p.Route}, p.others...) {
		list = append(list, slices.Compact([]*Host{r.Client, r.Server})...)
	}
	return list
}

// Carrier returns the route of a cell's transport. For transport kernel it also returns the device.
func (p *Environment) Carrier(ctx context.Context, c experiment.Cell, kernel string) (Route, *KernelDevice, error) {
	switch c.Transport {
	case experiment.TCP, experiment.OVS:
		if p.TapRoute != nil {
			return *p.TapRoute, nil, nil
		}
	case experiment.Sockets:
		if p.Route.Server.Container != "" || p.Route.Server.Agent != nil && p.Route.Server.DaemonSide == nil {
			return p.Route, nil, fmt.Errorf("sockets over RDMA are not measured in setting %s by this version", c.Setting)
		}
	case experiment.Kernel:
		k, err := FindKernelDevice(kernel, "/sys")
		if err != nil {
			return p.Route, nil, err
		}
		if p.Route.Server != p.Route.Client {
			return p.Route, nil, fmt.Errorf("the kernel's device is measured in setting host and in a guest only: in setting %s this version does not know where it is", c.Setting)
		}
		return k.Host(p.Route.Server).Loopback(), &k, nil
	case experiment.Overlay:
		if p.vxlan == nil {
			r, err := p.Route.overVXLAN(ctx)
			if err != nil {
				return p.Route, nil, err
			}
			p.vxlan = &r
		}
		return *p.vxlan, nil, nil
	}
	return p.Route, nil, nil
}
