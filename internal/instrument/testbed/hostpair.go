package testbed

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A HostPair is two network namespaces that stand for hosts, with a veth pair between them and a daemon in each.
type HostPair struct {
	A, B       *Host
	Namespaces []*Namespace
	Daemons    []*Daemon
}

// NewHostPair makes two hosts whose interfaces have this MTU. args adds flags to each daemon.
func (l *Lab) NewHostPair(ctx context.Context, mtu int, args ...func(*Host) []string) (w *HostPair, err error) {
	w = &HostPair{}
	defer func() {
		if err != nil {
			w.Close()
			w = nil
		}
	}()
	a, err := l.NewNamespace(ctx)
	if err != nil {
		return w, err
	}
	w.Namespaces = append(w.Namespaces, a)
	b, err := l.namespaceBeside(ctx, a)
	if err != nil {
		return w, fmt.Errorf("no second network namespace: %w; %s", err, l.NamespaceRemedy())
	}
	w.Namespaces = append(w.Namespaces, b)
	l.HostsMade++
	w.A, w.B = l.namespaceHost(a, "a", 1), l.namespaceHost(b, "b", 2)

	size := fmt.Sprint(mtu)
	other := fmt.Sprint(b.holder.Process.Pid)
	commands := [][]string{w.A.At("ip", "link", "add", "eth0", "mtu", size, "type", "veth", "peer", "name", "eth0", "mtu", size, "netns", other)}
	for _, h := range []*Host{w.A, w.B} {
		commands = append(commands,
			h.At("ip", "link", "set", "eth0", "addrgenmode", "none"),
			h.At("ip", "address", "add", h.IP+"/24", "dev", "eth0"),
			h.At("ip", "link", "set", "eth0", "up"))
	}
	for _, argv := range commands {
		if _, err := l.Run(ctx, argv...); err != nil {
			return w, fmt.Errorf("no veth pair: %w; %s", err, l.NamespaceRemedy())
		}
	}
	for _, h := range []*Host{w.A, w.B} {
		flags := []string{"--addr", h.IP}
		for _, more := range args {
			flags = append(flags, more(h)...)
		}
		d, err := h.Start(ctx, flags...)
		if err != nil {
			return w, err
		}
		w.Daemons = append(w.Daemons, d)
	}
	return w, nil
}

// shape gives the link the rate and the delay of a cell, in both directions. Each packet counts 24 bytes more, for preamble, checksum
// and gap. The queue is long enough that no packet is lost: the experiment measures headers, not retransmission.
func (w *HostPair) shape(ctx context.Context, c experiment.Cell) error {
	for _, h := range []*Host{w.A, w.B} {
		for _, argv := range shaping(c) {
			if _, err := h.Lab.Run(ctx, h.At(argv...)...); err != nil {
				return fmt.Errorf("no such link: %w; vrdma doctor says what to do", err)
			}
		}
	}
	return nil
}

// shaping returns the tc commands for the rate and the delay of a cell on eth0. The bucket is twice what a 1 ms timer needs for 1 Gb/s
// (docs/how-to/benchmark.md). netem's queue holds all packets that a fast link has in flight.
func shaping(c experiment.Cell) (commands [][]string) {
	add := []string{"tc", "qdisc", "add", "dev", "eth0"}
	at := []string{"root"}
	if c.Delay != "" {
		commands = append(commands, slices.Concat(add, at, []string{"handle", "1:", "netem", "delay", c.Delay, "limit", "100000"}))
		at = []string{"parent", "1:1"}
	}
	if c.Rate != "" {
		commands = append(commands, slices.Concat(add, at, []string{"tbf", "rate", c.Rate, "burst", "256kb", "latency", "200ms", "overhead", "24"}))
	}
	return commands
}

// namespaceHost returns the host of a namespace.
func (l *Lab) namespaceHost(s *Namespace, name string, number int) *Host {
	return &Host{
		Socket: filepath.Join(l.Dir, fmt.Sprintf("%s%d", name, l.HostsMade)), IP: fmt.Sprintf("10.98.0.%d", number),
		Lab: l, Enter: s.Enter(), PID: s.holder.Process.Pid,
	}
}

// Route is from A, the client, to B, the server.
func (w *HostPair) Route() Route { return Route{Server: w.B, Client: w.A} }

// Close stops the daemons and ends the namespaces.
func (w *HostPair) Close() {
	for _, d := range w.Daemons {
		d.Stop()
	}
	for _, s := range w.Namespaces {
		s.Close()
	}
}
