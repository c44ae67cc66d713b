package main

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"vrdma/internal/budget"
	"vrdma/internal/caller"
	"vrdma/internal/frontdoor"
	"vrdma/internal/launch"
	"vrdma/internal/protocol"
	"vrdma/internal/tenant"
	"vrdma/internal/vhostuser"
	"vrdma/internal/vm"
	"vrdma/internal/vnic"
)

// guestDir is where the sockets for the virtual machine of a NIC are.
func guestDir(place launch.Place, nic string) string {
	if nic == vnic.Default {
		nic = "default/default"
	}
	return filepath.Join(place.Socket+".guests", nic)
}

// guestTree is where the device tree of a NIC is.
func guestTree(place launch.Place, nic string) (string, error) {
	if nic == vnic.Default {
		return place.Sysfs(), nil
	}
	of, name, ok := strings.Cut(nic, "/")
	if !ok {
		return "", usage("--guest %s: want default or TENANT/NAME", nic)
	}
	at, err := place.NIC(of, name)
	return at.Sysfs(), err
}

// openGuests opens the ports for virtual machines.
func (d *daemon) openGuests(nics []string) (closed func(), err error) {
	var ports []*vm.Port
	closed = func() {
		for _, p := range ports {
			p.Close()
		}
	}
	for _, name := range nics {
		tree, err := guestTree(d.place, name)
		if err != nil {
			closed()
			return nil, err
		}
		of, nic, _ := strings.Cut(name, "/")
		key := tenant.Key{Kind: tenant.KindNIC, Tenant: of, Name: nic}
		p, err := vm.Listen(vm.Config{
			Card: func(u *net.UnixConn, dev *vhostuser.Device, ready func(*vhostuser.Conn)) error {
				return d.rack.ServeCard(key, u, dev, ready)
			},
			NIC: name, Dir: guestDir(d.place, name), SocketMode: d.mode, Tree: tree, Log: d.log,
			Vouch: func(u *net.UnixConn) (caller.Caller, error) {
				n := d.nics.Named(name)
				if n == nil {
					return caller.Caller{}, fmt.Errorf("there is no NIC %s: declare it with vrdma apply", name)
				}
				return d.server.Vouch(n, u)
			},
			Charge: func(who caller.Caller, b budget.Bill) (func(), error) {
				n := d.nics.Named(name)
				if n == nil {
					return nil, fmt.Errorf("there is no NIC %s any more", name)
				}
				return d.server.Charge(n, who, b)
			},
			Receive: func(c *protocol.Conn, l frontdoor.Line, who caller.Caller) error {
				n := d.nics.Named(name)
				if n == nil {
					c.Close()
					return fmt.Errorf("there is no NIC %s any more", name)
				}
				return d.server.Receive(n, c, l, who)
			},
		})
		if err != nil {
			closed()
			return nil, lacks("%w", err)
		}
		ports = append(ports, p)
	}
	return closed, nil
}
