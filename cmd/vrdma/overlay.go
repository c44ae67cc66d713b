package main

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/netip"
	"runtime"
	"strings"

	"vrdma/internal/budget"
	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/overlay"
	"vrdma/internal/rack"
	"vrdma/internal/tenant"
)

// underlay is where this host takes and sends the packets of virtual networks.
type underlay struct {
	addrs []netip.Addr // one a family at most
	port  uint16
	mtu   int // of their interfaces, the smallest; 0: virtual networks stay on this host
	opts  link.UDPOptions
}

// underlay is what the flags say: the addresses of --underlay; else the first of each family among
// those that --addr or the file gives the device; else those that the default route is taken from;
// else the machine's first.
func (f *daemonFlags) underlay(c config) (u underlay, err error) {
	if c.Overlay.Port != 0 && f.overlayPort == overlay.DefaultPort {
		f.overlayPort = c.Overlay.Port
	}
	if f.overlayPort < 1 || f.overlayPort > math.MaxUint16 {
		return u, usage("--overlay-port %d: a UDP port is from 1 to 65535, VXLAN's is %d", f.overlayPort, overlay.DefaultPort)
	}
	u.port = uint16(f.overlayPort)
	u.opts = link.UDPOptions{NoGSO: f.noGSO, NoGRO: f.noGRO, Port: u.port}
	if !f.network || f.ephemeral {
		return u, nil
	}
	all, err := machineAddresses()
	if err != nil {
		return u, lacks("%w", err)
	}
	if len(f.under) == 0 {
		f.under = c.Underlay
	}
	list := f.under
	if len(list) == 0 {
		if list = f.addr; len(list) == 0 {
			list = c.Addr
		}
	}
	var from []address
	switch {
	case len(list) > 0:
		if from, err = parseAddresses(list, all); err != nil {
			return u, usage("%w", err)
		}
	default:
		from = append(defaultRoute(all), defaultOrder(all)...)
	}
	for _, a := range from {
		if a.ip.IsLoopback() && len(f.under) == 0 {
			continue
		}
		if len(u.addrs) > 0 && (len(u.addrs) == 2 || u.addrs[0].Is4() == a.ip.Is4()) {
			if len(f.under) > 0 {
				return u, usage("--underlay %s: give one address of IPv4 and one of IPv6 at most", strings.Join(f.under, ","))
			}
			continue
		}
		u.addrs = append(u.addrs, a.ip)
		u.mtu = min(cmp.Or(u.mtu, math.MaxInt), interfaceMTU(a.netdev))
	}
	return u, nil
}

// defaultRoute are the addresses of this machine that it reaches the world from.
func defaultRoute(all []address) (out []address) {
	// Nothing is sent: the kernel only chooses the address.
	for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		c, err := net.Dial("udp", to)
		if err != nil {
			continue
		}
		at, err := netip.ParseAddrPort(c.LocalAddr().String())
		c.Close()
		for _, a := range all {
			if err == nil && a.ip == at.Addr().Unmap() {
				out = append(out, a)
			}
		}
	}
	return out
}

// head is how many bytes the overlay takes of the underlay's packets.
func (u *underlay) head() int {
	for _, a := range u.addrs {
		if !a.Is4() {
			return overlay.Outer6
		}
	}
	return overlay.Outer4
}

// self is this host as others reach it.
func (d *daemon) self() tenant.HostSpec {
	return tenant.HostSpec{
		Addresses: d.under.addrs, Port: int(d.under.port), Version: version, Features: d.engine.Features(), Capacity: tenant.Capacity{MTU: d.under.mtu, Processors: runtime.NumCPU(), Memory: tenant.Bytes(budget.ThisMachine().Memory)},
		PublicKey: d.publicKey(), TunnelPort: int(d.tunnel.port),
	}
}

// openOverlay opens the sockets of virtual networks, when the first of them is between hosts.
func (d *daemon) openOverlay() (*rack.Overlay, error) {
	u := &d.under
	if len(u.addrs) == 0 {
		return nil, fmt.Errorf("this host has no address that others could reach: give it one with --underlay")
	}
	udp, err := link.ListenUDP(u.opts, u.addrs...)
	if err != nil {
		return nil, err
	}
	d.frames.open(u.addrs, d.log)
	o := &rack.Overlay{Overlay: link.NewOverlay(link.OverlayConfig{Bind: udp, Addrs: u.addrs}), Wake: udp.Descriptors()}
	o.Window, o.Flight = windows(udp)
	mtu, plain := nic.MTUWithin(u.mtu-u.head()), nic.MTUWithin(u.mtu)
	d.log.Info("overlay", "addresses", u.addrs, "port", u.port, "gso", udp.GSO(), "gro", udp.GRO(), "interface_mtu", u.mtu, "mtu", 128<<mtu)
	if mtu < plain {
		d.log.Warn("packets of virtual networks are smaller than those of the host's own network: VXLAN needs room in the interface's packets",
			"interface_mtu", u.mtu, "mtu", 128<<mtu, "without_overlay", 128<<plain, "do", fmt.Sprintf("raise the interface's MTU by %d on all hosts", u.head()))
	}
	return o, nil
}

// windows are how much a queue pair, and all of them, may have on their way. Hosts are mostly
// alike: what our receive buffer can take, a peer's can. Several senders share it.
func windows(udp *link.UDP) (window, flight uint32) {
	window = uint32(min(max(udp.ReceiveBuffer()/8, 64<<10), widestWindow))
	return window, max(uint32(udp.ReceiveBuffer()/4), window)
}
