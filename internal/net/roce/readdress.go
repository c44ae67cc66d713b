package roce

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// The addresses of a UDP may change while it is used: those of a container do. Messages that wait to be sent
// name their sender's endpoint by its number, so an endpoint keeps it, and one that has gone leaves a free place.

// Take moves the endpoints of o to u. o has none then.
func (u *UDP) Take(o *UDP) {
	for _, e := range o.ends {
		u.place(e)
	}
	o.ends = nil
}

// place puts an endpoint where one is free, or behind the others.
func (u *UDP) place(e endpoint) {
	for i := range u.ends {
		if !u.ends[i].addr.IsValid() { // at least one flush ago, see Drop
			u.ends[i] = e
			return
		}
	}
	u.ends = append(u.ends, e)
}

// Drop closes the sockets of an address. Who has new ones takes them first: messages that could not be sent yet name the old place, and shall
// not leave from another address.
func (u *UDP) Drop(a netip.Addr) {
	for i := range u.ends {
		if e := &u.ends[i]; e.addr == a.Unmap() {
			e.close()
			*e = endpoint{fd: -1}
			for k := range e.out {
				e.out[k] = -1
			}
		}
	}
}

// SetInterface says at which interface an address is now: groups are joined there from now on.
func (u *UDP) SetInterface(a netip.Addr, index int) {
	for i := range u.ends {
		e := &u.ends[i]
		if e.addr != a.Unmap() || e.iface == index {
			continue
		}
		e.iface = index
		for _, fd := range e.out {
			prepareGroups(e, fd) // fails if the interface has just gone again, which we will be told
		}
	}
}

// close closes its sockets.
func (e *endpoint) close() {
	if e.fd >= 0 {
		unix.Close(e.fd)
	}
	for _, fd := range e.out {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
