package testbed

import (
	"context"
	"fmt"
	"os"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// NewVMsApart boots a guest on each of two hosts: network namespaces with a veth pair between them.
func NewVMsApart(ctx context.Context, in *Environments, _ experiment.Cell) (p *Environment, err error) {
	l := in.Lab
	if err := enoughMemory(2); err != nil {
		return nil, err
	}
	image, err := in.guestImage(ctx, experiment.VMsApart)
	if err != nil {
		return nil, err
	}
	initramfs, err := l.guestTools(ctx, image)
	if err != nil {
		return nil, err
	}
	w, err := l.NewHostPair(ctx, 9000, func(h *Host) []string { return []string{"--guest", "bench/a,bench/b", "--store", h.Socket + ".db"} })
	if err != nil {
		return nil, err
	}
	p = &Environment{Daemons: w.Daemons, Label: "two guests with one emulated processor each, on two network namespaces that stand for hosts"}
	p.Close = func() {
		for _, m := range p.VMs {
			m.Agent.close()
		}
		w.Close()
	}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	for i, h := range []*Host{w.A, w.B} {
		name, other := "a", "b"
		at := w.B
		if i == 1 {
			name, other, at = "b", "a", w.A
		}
		file := h.Socket + ".yaml"
		if err := os.WriteFile(file, []byte(OverlayObjects(other, at.IP)), 0o644); err != nil {
			return nil, err
		}
		for _, argv := range [][]string{
			h.At(l.Vrdma, "apply", "--socket", h.Socket, "-f", file),
			h.At("sh", "-c", "ip link add br0 type bridge && ip link set br0 up"),
		} {
			if _, err := l.Run(ctx, argv...); err != nil {
				return nil, err
			}
		}
		m, err := in.startVM(ctx, h, w.Namespaces[i], image, initramfs, memoryOf(2), i+1, name, false)
		if err != nil {
			return nil, err
		}
		m.VhostSide.IP = fmt.Sprintf("10.1.0.%d", i+1)
		p.VMs = append(p.VMs, m)
	}
	for _, m := range p.VMs {
		if err := m.ready(ctx); err != nil {
			return nil, err
		}
	}
	p.Route = Route{Server: p.VMs[1].VhostSide, Client: p.VMs[0].VhostSide}
	return p, nil
}
