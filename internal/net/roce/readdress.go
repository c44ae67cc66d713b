package roce

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// The addresses of a UDP may change while it is in use, for instance those of a container. Queued messages refer to
// their sender's endpoint by index. So an endpoint keeps its index, and a removed one leaves a free entry.

// Take moves the endpoints of o to u.
func (u *UDP) Take(o *UDP) {
	for _, e := range o.ends {
		u.place(e)
	}
	o.ends = nil
}

// place stores an endpoint in a free entry, or appends it.
func (u *UDP) place(e endpoint) {
	for i := range u.ends {
		if !u.ends[i].addr.IsValid() { // free since at least one flush, see Drop
			u.ends[i] = e
			return
		}
	}
	u.ends = append(u.ends, e)
}

// Drop closes the sockets of an address. The caller takes new endpoints before that: queued messages refer to the
// old entry and must not leave from another address.
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

// SetInterface sets the interface that has an address now; groups are joined there from now on.
func (u *UDP) SetInterface(a netip.Addr, index int) {
	for i := range u.ends {
		e := &u.ends[i]
		if e.addr != a.Unmap() || e.iface == index {
			continue
		}
		e.iface = index
		for _, fd := range e.out {
			prepareGroups(e, fd) // fails if the interface has gone again; another notification follows
		}
	}
}

// close closes the sockets of the endpoint.
func (e *endpoint) close() {
	e.closeShards()
	if e.fd >= 0 {
		unix.Close(e.fd)
	}
	for _, fd := range e.out {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
