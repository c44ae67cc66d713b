package bench

import (
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"time"

	"vrdma/internal/experiment"
)

// An Instrument measures the cells of experiments: on this host, and between two network namespaces
// that stand for hosts. Daemons and namespaces are made when the first cell needs them, and stay.
type Instrument struct {
	Lab    *Lab
	places map[string]*place
}

// A place is where a cell is measured.
type place struct {
	route   Route
	daemons []*daemon
	close   func()
}

// Close stops what was started.
func (in *Instrument) Close() {
	for _, name := range slices.Sorted(maps.Keys(in.places)) {
		in.places[name].close()
	}
}

// place finds or makes the place of a cell.
func (in *Instrument) place(ctx context.Context, c experiment.Cell) (*place, error) {
	name := fmt.Sprintf("%s %d %s", c.Setting, c.MTU, c.Rate)
	if p := in.places[name]; p != nil {
		return p, nil
	}
	var p *place
	switch c.Setting {
	case experiment.Host:
		d, err := in.Lab.Here.Start(ctx, "--network=false")
		if err != nil {
			return nil, err
		}
		p = &place{in.Lab.Here.loop(), []*daemon{d}, d.stop}
	case experiment.Hosts:
		w, err := in.Lab.Wire(ctx, c.MTU)
		if err != nil {
			return nil, err
		}
		if err := w.limit(ctx, c.Rate); err != nil {
			w.Close()
			return nil, err
		}
		p = &place{w.Route(), w.daemons, w.Close}
	default:
		return nil, fmt.Errorf("setting %s cannot be measured by this version", c.Setting)
	}
	if in.places == nil {
		in.places = make(map[string]*place)
	}
	in.places[name] = p
	return p, nil
}

// ways are how each transport is used.
var ways = map[string]way{experiment.TCP: plain, experiment.Verbs: device, experiment.Sockets: carried}

// Measure runs the tool of a cell once.
func (in *Instrument) Measure(ctx context.Context, c experiment.Cell, seconds int) (m experiment.Measurement, err error) {
	w, known := ways[c.Transport]
	if !known {
		return m, fmt.Errorf("transport %s cannot be measured by this version", c.Transport)
	}
	d, known := drivers[c.Tool]
	if !known {
		return m, fmt.Errorf("%s cannot be run by this version", c.Tool)
	}
	p, err := in.place(ctx, c)
	if err != nil {
		return m, err
	}
	before, err := p.look(ctx)
	if err != nil {
		return m, err
	}
	list, err := p.route.couples(ctx, w, c.Pairs, func(port int) (server, client []string) {
		return d.commands(c, p.route.Server.IP, port, seconds)
	})
	if err != nil {
		return m, err
	}
	after, err := p.look(ctx)
	if err != nil {
		return m, err
	}
	m = before.until(after)
	for _, one := range list {
		m.CPU["client"] += one.client.Seconds()
		m.CPU["server"] += one.server.Seconds()
		m.Commands = append(m.Commands, one.commands...)
		m.Output += one.output
	}
	return m, collect(c, d, list, &m)
}

// collect takes the values of what the tools printed.
func collect(c experiment.Cell, d driver, list []couple, m *experiment.Measurement) error {
	m.Values = make(map[string]float64)
	var shares []float64
	for _, one := range list {
		got, err := d.parse(one.output)
		if err != nil {
			return err
		}
		for name, v := range got.values {
			if name == experiment.Bandwidth || name == experiment.Rate {
				m.Values[name] += v // the pairs together
			} else {
				m.Values[name] = max(m.Values[name], v) // the slowest
			}
		}
		shares = append(shares, got.values[experiment.Bandwidth])
		m.Samples += got.samples
	}
	if len(list) > 1 && shares[0] > 0 {
		m.Values["fairness"] = experiment.Jain(shares)
	}
	if found := pathMTU.FindStringSubmatch(list[0].output); found != nil {
		m.MTU, _ = strconv.Atoi(found[1]) // digits only
	}
	m.Proof = proof(c, m)
	return nil
}

// pathMTU is what perftest prints of it.
var pathMTU = regexp.MustCompile(`Mtu\s*: (\d+)\[B\]`)

// proof says what carried the bytes. An RDMA program must have moved bytes of the device, and a TCP
// program none.
func proof(c experiment.Cell, m *experiment.Measurement) string {
	if c.Transport == experiment.TCP {
		if m.Bytes > 0 {
			return fmt.Sprintf("WRONG: %.0f bytes went through the device", m.Bytes)
		}
		return "the device's counters stood still"
	}
	if m.Bytes == 0 {
		return "WRONG: no byte went through the device"
	}
	return fmt.Sprintf("the device's counters: %s sent", Quantity(m.Bytes, "B"))
}

// A view is what can be seen from outside before and after a run.
type view struct {
	at      time.Time
	bytes   uint64
	daemons time.Duration
	ticks   experiment.Ticks
}

// look asks the devices how much they sent, and then the kernel for processor time, which asking
// takes, too.
func (p *place) look(ctx context.Context) (v view, err error) {
	for _, h := range slices.Compact([]*Host{p.route.Client, p.route.Server}) {
		n, err := h.sent(ctx)
		if err != nil {
			return v, err
		}
		v.bytes += n
	}
	for _, d := range p.daemons {
		used, err := d.cpu()
		if err != nil {
			return v, err
		}
		v.daemons += used
	}
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return v, err
	}
	v.ticks, err = experiment.ParseTicks(string(stat))
	v.at = time.Now()
	return v, err
}

// until is what happened between two views.
func (v view) until(o view) experiment.Measurement {
	m := experiment.Measurement{
		CPU:     map[string]float64{"daemon": (o.daemons - v.daemons).Seconds(), "machine": (o.ticks.Busy - v.ticks.Busy) / ticksPerSecond},
		Seconds: o.at.Sub(v.at).Seconds(),
		Bytes:   float64(o.bytes - v.bytes),
	}
	if all := o.ticks.All - v.ticks.All; all > 0 {
		m.Steal = (o.ticks.Steal - v.ticks.Steal) / all
	}
	return m
}
