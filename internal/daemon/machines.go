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

// makeGuests makes sockets for the virtual machines of --guest, which are not open.
func (d *daemon) makeGuests() error {
	for _, name := range d.Guests {
		tree, err := sysfsOf(d.place, name)
		if err != nil {
			return err
		}
		d.machines = append(d.machines, vm.New(vm.Config{
			NIC: name, Dir: d.place.Machine(name), SocketMode: d.mode, Tree: tree, Log: d.log,
			Host: &guestHost{name: name, nics: d.nics, server: d.server, provisioner: d.provisioner},
		}))
	}
	return nil
}

// openGuests opens the sockets, until closeGuests is called.
func (d *daemon) openGuests() error {
	if err := d.makeGuests(); err != nil {
		return err
	}
	for _, p := range d.machines {
		if err := p.Open(); err != nil {
			d.closeGuests()
			return exit.Lacks("%w", err)
		}
	}
	return nil
}

func (d *daemon) closeGuests() {
	for _, p := range d.machines {
		p.Close()
	}
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

// key is the key of the NIC; no NIC has it if the name is default.
func (h *guestHost) key() tenant.Key {
	of, nic, _ := strings.Cut(h.name, "/")
	return tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: nic}
}

// Card implements vm.Host.
func (h *guestHost) Card(u *net.UnixConn, dev *vhostuser.Device, ready func(*vhostuser.Conn)) error {
	return h.provisioner.ServeCard(h.key(), u, dev, ready)
}

// ThawCard implements vm.Host.
func (h *guestHost) ThawCard(u *net.UnixConn, dev *vhostuser.Device, st *vhostuser.ConnState, file func(uint32) (int, error)) (*vhostuser.Conn, func() error, error) {
	return h.provisioner.ThawCard(h.key(), u, dev, st, file)
}
