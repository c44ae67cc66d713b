package main

import (
	"cmp"
	"math"
	"net"
	"net/netip"

	"vrdma/internal/link"
	"vrdma/internal/nic"
)

// connect opens the way to other hosts at the device's addresses that have one. A
// device with loopback addresses only stays on this machine.
func (d *daemon) connect(device *nic.Config, o link.UDPOptions) error {
	var addrs []netip.Addr
	for _, g := range device.GIDs {
		if a := addressOf(g.GID); !a.IsLoopback() {
			addrs = append(addrs, a)
			d.underlay = min(cmp.Or(d.underlay, math.MaxInt), interfaceMTU(g.NetDev))
			device.MTU = nic.MTUWithin(d.underlay)
		}
	}
	if len(addrs) == 0 {
		return nil
	}
	udp, err := link.ListenUDP(o, addrs...)
	if err != nil {
		return lacks("%w; --network=false serves this machine only", err)
	}
	d.port, d.wake, d.addresses = link.NewPort(udp), udp.Descriptors(), addrs
	d.window, d.flight = windows(udp)
	d.log.Info("network", "addresses", addrs, "gso", udp.GSO(), "gro", udp.GRO(), "mtu", 128<<device.MTU)
	return nil
}

// widestWindow is how much a queue pair may have on its way. Sender and receiver are two
// threads, and each is without a processor now and then: what is under way has to last that
// long, or both wait for each other. Of 128 KiB to 2 MiB, the rate of one stream grows up to
// 1 MiB; and what comes behind a stream waits for all of it.
const widestWindow = 1 << 20

// interfaceMTU is the MTU of an interface; 1500 if it is not known.
func interfaceMTU(name string) int {
	if i, err := net.InterfaceByName(name); err == nil {
		return i.MTU
	}
	return 1500
}
