package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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

// precise is the processor time of a daemon's threads as the scheduler counts it, in nanoseconds; in ticks
// if this kernel does not.
func (d *daemon) precise() (total time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", d.cmd.Process.Pid))
	if err != nil || len(files) == 0 {
		return d.cpu()
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that ended
		}
		word, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return d.cpu()
		}
		total += time.Duration(n)
	}
	return total, nil
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

// vxlan makes a tunnel of the kernel's between the hosts, and is the route through it.
func (r Route) vxlan(ctx context.Context) (Route, error) {
	over := Route{}
	for i, side := range []struct {
		at, other *Host
		to        **Host
	}{{r.Client, r.Server, &over.Client}, {r.Server, r.Client, &over.Server}} {
		if side.at.far != nil || side.at.pid == 0 {
			return over, errors.New("an overlay is made between namespaces only")
		}
		h := *side.at
		h.IP, h.eth = fmt.Sprintf("10.97.0.%d", i+1), "vxlan0"
		for _, argv := range [][]string{
			{"ip", "link", "add", h.eth, "type", "vxlan", "id", "42", "dstport", "4789", "local", side.at.IP, "remote", side.other.IP, "dev", "eth0"},
			{"ip", "address", "add", h.IP + "/24", "dev", h.eth},
			{"ip", "link", "set", h.eth, "up"},
		} {
			if _, err := h.lab.Run(ctx, side.at.At(argv...)...); err != nil {
				return over, fmt.Errorf("no overlay: %w; this kernel may have no vxlan", err)
			}
		}
		*side.to = &h
	}
	return over, nil
}

// A view is what can be seen from outside before and after a run.
type view struct {
	at      time.Time
	counted time.Time // when bytes was
	bytes   uint64
	packets float64 // of the kernel's device, if that is measured, else of ours
	daemons time.Duration
	qemu    time.Duration
	links   map[string]uint64 // what guests' cards have sent
	ticks   experiment.Ticks
	groups  map[string]time.Duration // processor time by control group
}

// look asks the devices how much they sent, and then the kernel for processor time, which asking
// takes, too.
func (p *place) look(ctx context.Context, kernel *kernelDevice) (v view, err error) {
	for _, h := range p.hosts() {
		if h.far != nil && h.seen == nil {
			far, err := h.far.look(ctx)
			if err != nil {
				return v, err
			}
			v.bytes += far.Bytes
			v.daemons += time.Duration(far.Daemon * float64(time.Second))
			continue
		}
		begin := time.Now()
		n, packets, err := cmp.Or(h.seen, h).counted(ctx)
		if err != nil {
			return v, err
		}
		v.bytes += n
		v.packets += float64(packets)
		v.counted = begin.Add(time.Since(begin) / 2)
	}
	if kernel != nil {
		v.packets = kernel.sent("/sys")
	}
	v.links = make(map[string]uint64)
	for _, m := range p.machines {
		far, err1 := m.agent.look(ctx)
		used, err2 := m.used()
		if err := errors.Join(err1, err2); err != nil {
			return v, err
		}
		v.qemu += used
		for eth, n := range far.Links {
			v.links[eth] += n
		}
	}
	for _, d := range p.daemons {
		used, err := d.cpu()
		if err != nil {
			return v, err
		}
		v.daemons += used
	}
	v.groups = p.route.Client.lab.accounts.used()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return v, err
	}
	v.ticks, err = experiment.ParseTicks(string(stat))
	v.at = time.Now()
	return v, err
}

// sent is what the kernel's device has sent, in packets: rxe counts them, hardware counts words, too.
func (k *kernelDevice) sent(sysfs string) float64 {
	for _, name := range []string{"hw_counters/sent_pkts", "counters/port_xmit_packets", "counters/port_xmit_data"} {
		text, err := os.ReadFile(filepath.Join(sysfs, "class/infiniband", k.name, "ports/1", name))
		if err != nil {
			continue
		}
		if n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err == nil {
			return n
		}
	}
	return 0
}

// until is what happened between two views.
func (v view) until(o view) experiment.Measurement {
	m := experiment.Measurement{
		CPU:     map[string]float64{"daemon": (o.daemons - v.daemons).Seconds(), "machine": (o.ticks.Busy - v.ticks.Busy) / ticksPerSecond},
		Seconds: o.at.Sub(v.at).Seconds(),
		Bytes:   float64(o.bytes - v.bytes),
		Packets: o.packets - v.packets,
	}
	if o.qemu > 0 {
		m.CPU["qemu"] = (o.qemu - v.qemu).Seconds()
	}
	for eth, n := range o.links {
		if m.Links == nil {
			m.Links = make(map[string]float64)
		}
		m.Links[eth] = float64(n - v.links[eth])
	}
	if all := o.ticks.All - v.ticks.All; all > 0 {
		m.Steal = (o.ticks.Steal - v.ticks.Steal) / all
	}
	return m
}
