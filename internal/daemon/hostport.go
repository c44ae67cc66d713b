package daemon

import (
	"cmp"
	"log/slog"
	"math"
	"net"
	"net/netip"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/net/roce"
)

// hostPort is the daemon's port on the host's own network. The zero hostPort reaches no other host.
type hostPort struct {
	port           *roce.Port
	udp            *roce.UDP    // its sockets
	mtu            int          // the smallest MTU of the interfaces
	addresses      []netip.Addr // of the port
	wake           []int        // its descriptors
	window, flight uint32       // bytes in flight, of one queue pair and of all
}

// openHostPort opens sockets at the addresses of a device and sets the device's MTU. A device with loopback addresses only stays on
// this machine.
func openHostPort(device *nic.Config, o roce.UDPOptions, log *slog.Logger) (p hostPort, err error) {
	for _, g := range device.GIDs {
		if a := addressOf(g.GID); !a.IsLoopback() {
			p.addresses = append(p.addresses, a)
			p.mtu = min(cmp.Or(p.mtu, math.MaxInt), interfaceMTU(g.NetDev))
			device.MTU = nic.MTUWithin(p.mtu)
		}
	}
	if len(p.addresses) == 0 {
		return p, nil
	}
	udp, err := roce.ListenUDP(o, p.addresses...)
	if err != nil {
		return p, exit.Lacks("%w; --network=false serves this machine only", err)
	}
	p.port, p.udp, p.wake = roce.NewPort(udp), udp, udp.Descriptors()
	p.window, p.flight = udp.Windows()
	log.Info("network", "addresses", p.addresses, "gso", udp.GSO(), "gro", udp.GRO(), "mtu", 128<<device.MTU)
	return p, nil
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
	return 1500
}
