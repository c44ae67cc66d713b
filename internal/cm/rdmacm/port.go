package rdmacm

import (
	"net/netip"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
)

// The range of ephemeral ports: the kernel's default ip_local_port_range.
const (
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// portKey identifies a port of a port space.
type portKey struct {
	ps   uint16
	port uint16
}

// A port is a bound port, of one ID or of several IDs with different addresses.
type port struct {
	key    portKey
	owners []*ID // in the order of their binds
}

// bindPort binds the ID to the port of its address, or to a free one if the address has none.
func (id *ID) bindPort() error {
	if id.src.Port() == 0 {
		return id.bindAny()
	}
	return id.usePort(portKey{id.space(), id.src.Port()})
}

// space returns the port space; IDs with different queue pair types share it.
func (id *ID) space() uint16 { return id.ps }

// bindAny finds a free port.
func (id *ID) bindAny() error {
	a := id.cma
	for range lastEphemeral - firstEphemeral + 1 {
		p := a.nextPort
		if a.nextPort++; a.nextPort > lastEphemeral {
			a.nextPort = firstEphemeral
		}
		if a.ports[portKey{id.space(), p}] == nil {
			id.src = netip.AddrPortFrom(id.src.Addr(), p)
			return id.usePort(portKey{id.space(), p})
		}
	}
	return syscall.EADDRNOTAVAIL
}

func (id *ID) usePort(k portKey) error {
	p := id.cma.ports[k]
	if p == nil {
		p = &port{key: k}
	} else if err := p.conflict(id, id.reuse); err != nil {
		return err
	}
	id.cma.turns++
	id.turn = id.cma.turns
	p.owners = append(p.owners, id)
	id.cma.ports[k] = p
	id.port = p
	return nil
}

// conflict returns an error if id may not share the port with its owners, as cma_check_port does.
func (p *port) conflict(id *ID, reuse bool) error {
	for _, o := range p.owners {
		switch {
		case o == id, reuse && o.reuse:
		case id.afOnly && o.afOnly && id.src.Addr().Is4() != o.src.Addr().Is4():
		case id.src.Addr().IsUnspecified() || o.src.Addr().IsUnspecified():
			return syscall.EADDRNOTAVAIL
		case id.src.Addr() == o.src.Addr():
			return syscall.EADDRINUSE
		}
	}
	return nil
}

// release releases the port.
func (id *ID) release() {
	p := id.port
	if p == nil {
		return
	}
	id.port = nil
	for i, o := range p.owners {
		if o == id {
			p.owners = append(p.owners[:i], p.owners[i+1:]...)
			break
		}
	}
	if len(p.owners) == 0 {
		delete(id.cma.ports, p.key)
	}
}

// listener returns the listener at an address: an exact match before a wildcard.
func (a *CMA) listener(k portKey, to netip.Addr) *ID {
	p := a.ports[k]
	if p == nil {
		return nil
	}
	var found *ID
	for _, o := range p.owners {
		if o.state != Listening {
			continue
		}
		at := o.src.Addr()
		if at == to {
			return o
		}
		if at.IsUnspecified() && (at.Is4() == to.Is4() || !o.afOnly) {
			found = o
		}
	}
	return found
}

// serviceID returns the service ID of a port (IBA annex A11).
func serviceID(k portKey) uint64 { return uint64(k.ps)<<16 | uint64(k.port) }

// keyOf returns the port of a service ID.
func keyOf(service uint64) (portKey, bool) {
	k := portKey{uint16(service >> 16), uint16(service)}
	switch k.ps {
	case abi.PSTCP, abi.PSUDP, abi.PSIB, abi.PSIPoIB:
		return k, service>>32 == 0
	}
	return k, false
}
