package daemon

import (
	"fmt"
	"net"
	"strings"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/client/vm"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/net/vhostuser"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/provision"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// sysfsOf is the directory that stands for /sys of a NIC.
func sysfsOf(place launch.Place, nic string) (string, error) {
	if nic == registry.Default {
		return place.Sysfs(), nil
	}
	of, name, ok := strings.Cut(nic, "/")
	if !ok {
		return "", exit.Usage("--guest %s: want default or TENANT/NAME", nic)
	}
	at, err := place.NIC(of, name)
	return at.Sysfs(), err
}

// openGuests opens sockets for the virtual machines of --guest, until closed is called.
func (d *daemon) openGuests() (closed func(), err error) {
	var ports []*vm.Sockets
	closed = func() {
		for _, p := range ports {
			p.Close()
		}
	}
	for _, name := range d.Guests {
		tree, err := sysfsOf(d.place, name)
		if err != nil {
			closed()
			return nil, err
		}
		p, err := vm.Listen(vm.Config{
			NIC: name, Dir: d.place.Machine(name), SocketMode: d.mode, Tree: tree, Log: d.log,
			Host: &guestHost{name: name, nics: d.nics, server: d.server, provisioner: d.provisioner},
		})
		if err != nil {
			closed()
			return nil, exit.Lacks("%w", err)
		}
		ports = append(ports, p)
	}
	return closed, nil
}

// guestHost serves the virtual machine of one NIC, which may be declared later or deleted. It implements vm.Host.
type guestHost struct {
	name        string // default, or TENANT/NAME
	nics        *registry.Table
	server      *server.Server
	provisioner *provision.Provisioner
}

// Vouch implements vm.Host.
func (h *guestHost) Vouch(u *net.UnixConn) (credentials.Caller, error) {
	n := h.nics.Named(h.name)
	if n == nil {
		return credentials.Caller{}, fmt.Errorf("there is no NIC %s: declare it with vrdma apply", h.name)
	}
	return h.server.Vouch(n, u)
}

// Charge implements vm.Host.
func (h *guestHost) Charge(who credentials.Caller, b budget.Bill) (func(), error) {
	n := h.nics.Named(h.name)
	if n == nil {
		return nil, fmt.Errorf("there is no NIC %s any more", h.name)
	}
	return h.server.Charge(n, who, b)
}

// Receive implements vm.Host.
func (h *guestHost) Receive(c *protocol.Conn, l server.ClientEnd, who credentials.Caller) error {
	n := h.nics.Named(h.name)
	if n == nil {
		c.Close()
		return fmt.Errorf("there is no NIC %s any more", h.name)
	}
	return h.server.Receive(n, c, l, who)
}

// Card implements vm.Host.
func (h *guestHost) Card(u *net.UnixConn, dev *vhostuser.Device, ready func(*vhostuser.Conn)) error {
	of, nic, _ := strings.Cut(h.name, "/")
	return h.provisioner.ServeCard(tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: nic}, u, dev, ready)
}
