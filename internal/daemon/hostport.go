package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/tenancy/provision"
)

// hostPort is the daemon's port on the host's own network. The zero hostPort reaches no other host.
type hostPort struct {
	port           *roce.Port
	udp            *roce.UDP    // the port's sockets
	mtu            int          // the smallest MTU of the interfaces
	addresses      []netip.Addr // of the port
	wake           []int        // its descriptors
	window, flight uint32       // bytes in flight, of one queue pair and of all
}

// openHostPort opens sockets at the addresses of a device and sets the device's MTU. A device with loopback addresses only stays on
// this machine. follow says that the daemon follows the machine's addresses: one that is not usable yet is left out until it is.
func openHostPort(device *nic.Config, o roce.UDPOptions, follow bool, log *slog.Logger) (p hostPort, err error) {
	device.GIDs = slices.DeleteFunc(device.GIDs, func(g nic.GIDEntry) bool {
		a := addressOf(g.GID)
		if a.IsLoopback() || err != nil {
			return false
		}
		one, oerr := roce.ListenUDP(o, a)
		switch {
		case oerr == nil && p.udp == nil:
			p.udp = one
		case oerr == nil:
			p.udp.Take(one)
		default:
			if follow && errors.Is(oerr, unix.EADDRNOTAVAIL) {
				return true
			}
			err = oerr
			return false
		}
		p.addresses = append(p.addresses, a)
		p.mtu = min(cmp.Or(p.mtu, math.MaxInt), interfaceMTU(g.NetDev))
		device.MTU = nic.MTUWithin(p.mtu)
		return false
	})
	if err != nil {
		if p.udp != nil {
			p.udp.Close()
		}
		return hostPort{}, exit.Lacks("%w; --network=false serves this machine only", err)
	}
	if p.udp == nil {
		if follow { // a list of addresses is the user's choice
			log.Warn(provision.OnlyLoopback)
		}
		return p, nil
	}
	p.port, p.wake = roce.NewPort(p.udp), p.udp.Descriptors()
	p.window, p.flight = p.udp.Windows()
	log.Info("network", "addresses", p.addresses, "gso", p.udp.GSO(), "gro", p.udp.GRO(), "mtu", 128<<device.MTU)
	return p, nil
}

// follows reports whether the default NIC follows the machine's addresses. A list of addresses stays as it was given.
func (s *settings) follows() bool { return !s.Ephemeral && !s.NoDefault && len(s.Addr) == 0 }

// followAddresses makes the default NIC follow the machine's addresses, and the overlay wait for its first one, until end is called.
func (d *daemon) followAddresses(ctx context.Context) (end func()) {
	moved := make(chan struct{}, 1)
	tell := func([]netip.Addr) {
		select {
		case moved <- struct{}{}:
		default:
		}
	}
	go d.followUnderlay(ctx, moved)
	if !d.follows() {
		return func() {}
	}
	end, err := d.provisioner.FollowHost(provision.HostNIC{NIC: d.nics.Named(registry.Default), Serves: d.served(), UDP: d.port.udp, Changed: tell})
	if err != nil {
		d.log.Warn("the default NIC keeps the addresses that this machine had when the daemon started", "error", err)
		return func() {}
	}
	return end
}

// underlayAgain is the time between two attempts to tell other hosts this host's first address.
const underlayAgain = time.Second

// followUnderlay finds this host's address in virtual networks if the machine had none when the daemon started. moved receives when
// addresses have changed. Networks whose sockets are open keep their address.
func (d *daemon) followUnderlay(ctx context.Context, moved <-chan struct{}) {
	var again <-chan time.Time
	for said := ""; ; {
		select {
		case <-moved:
		case <-again:
		case <-ctx.Done():
			return
		}
		again = nil
		found, err := d.findUnderlay()
		if err != nil || len(found.addrs) == 0 {
			continue
		}
		if old := d.between.at(); len(old.addrs) > 0 {
			if text := addressTexts(found.addrs); text != addressTexts(old.addrs) && text != said {
				said = text
				d.log.Warn("virtual networks keep this host's former address: restart the daemon to use another", "address", old.addrs, "would_be", found.addrs)
			}
			continue
		}
		d.between.move(found)
		spec := d.plane.Self()
		spec.Addresses, spec.Capacity.MTU = found.addrs, found.mtu
		if err := d.plane.Announce(spec); err != nil {
			d.between.move(d.under)
			again = time.After(underlayAgain)
			continue
		}
		d.log.Info("virtual networks reach other hosts: this host has an address", "addresses", found.addrs)
		if nic.MTUWithin(found.mtu-found.head()) < nic.MTUWithin(d.under.mtu-d.under.head()) {
			d.log.Warn("packets of virtual networks are too long for the interface: restart the daemon", "interface_mtu", found.mtu, "assumed", d.under.mtu)
		}
	}
}

func (p *hostPort) close() {
	if p.port != nil {
		p.port.Close()
	}
}

// interfaceMTU is the MTU of an interface; 1500 if it is not known.
func interfaceMTU(name string) int {
	if i, err := net.InterfaceByName(name); err == nil {
		return i.MTU
	}
	return ethernetMTU
}
