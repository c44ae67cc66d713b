package testbed

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A Snapshot has the counters of an environment before or after a run.
type Snapshot struct {
	at      time.Time
	Counted time.Time // when bytes were counted
	bytes   uint64
	packets float64 // of the kernel's device if that is measured, else of vrdma's
	daemons time.Duration
	qemu    time.Duration
	links   map[string]uint64 // bytes that each card of the guests has sent
	ticks   experiment.Ticks
	Groups  map[string]time.Duration // processor time by control group
}

// Snapshot reads the devices' counters first and processor times last, because reading the counters takes processor time.
func (p *Environment) Snapshot(ctx context.Context, kernel *KernelDevice) (v Snapshot, err error) {
	for _, h := range p.hosts() {
		if h.Agent != nil && h.DaemonSide == nil {
			far, err := h.Agent.counters(ctx)
			if err != nil {
				return v, err
			}
			v.bytes += far.Bytes
			v.daemons += time.Duration(far.Daemon * float64(time.Second))
			continue
		}
		begin := time.Now()
		n, packets, err := cmp.Or(h.DaemonSide, h).sentCounters(ctx)
		if err != nil {
			return v, err
		}
		v.bytes += n
		v.packets += float64(packets)
		v.Counted = begin.Add(time.Since(begin) / 2)
	}
	if kernel != nil {
		v.packets = kernel.sentPackets("/sys")
	}
	v.links = make(map[string]uint64)
	for _, m := range p.VMs {
		far, err1 := m.Agent.counters(ctx)
		used, err2 := m.cpuTime()
		if err := errors.Join(err1, err2); err != nil {
			return v, err
		}
		v.qemu += used
		for eth, n := range far.Links {
			v.links[eth] += n
		}
	}
	for _, d := range p.Daemons {
		used, err := d.CPUTime()
		if err != nil {
			return v, err
		}
		v.daemons += used
	}
	v.Groups = p.Route.Client.Lab.Accounting.usage()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return v, err
	}
	v.ticks, err = experiment.ParseTicks(string(stat))
	v.at = time.Now()
	return v, err
}

// Until returns what happened between two snapshots.
func (v Snapshot) Until(o Snapshot) experiment.Measurement {
	m := experiment.Measurement{
		CPU:     map[string]float64{"daemon": (o.daemons - v.daemons).Seconds(), "machine": (o.ticks.Busy - v.ticks.Busy) / TicksPerSecond},
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
