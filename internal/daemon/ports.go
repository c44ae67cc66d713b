package daemon

import (
	"log/slog"
	"net/netip"

	"vrdma.dev/vrdma/internal/net/roce"
)

// holdersAt and holdersPort are the address and port under which a daemon hands the sockets that hold its ports to the next one.
var holdersAt = netip.IPv6Unspecified()

const holdersPort = 0

// holdPorts takes ports from which only this daemon can send; nil: there are none, and other hosts accept packets from any port.
func holdPorts(a netip.Addr, port uint16, log *slog.Logger) *roce.Ports {
	p, err := roce.HoldPorts(roce.PortSeed(a, port))
	if err != nil {
		log.Warn("other users of this host can forge its packets: no UDP ports can be held", "error", err)
		return nil
	}
	return p
}

// inheritPorts takes the ports of the daemon before that receives at a port; nil: it has left none.
func inheritPorts(left func(port uint16, addr netip.Addr) []int, port uint16) *roce.Ports {
	if left == nil {
		return nil
	}
	fds := left(port, holdersAt)
	if len(fds) == 0 {
		return nil
	}
	p, err := roce.InheritPorts(fds)
	if err != nil {
		return nil
	}
	return p
}

// holdPorts takes the ports from which the host's own network is served: those of the daemon before, if it has left some.
func (d *daemon) holdPorts() *roce.Ports {
	if d.from != nil {
		if p := inheritPorts(d.from.sockets, holdersPort); p != nil {
			return p
		}
	}
	first := netip.IPv4Unspecified()
	for _, g := range d.device.GIDs {
		if a := addressOf(g.GID); !a.IsLoopback() {
			first = a
			break
		}
	}
	return holdPorts(first, holdersPort, d.log)
}
