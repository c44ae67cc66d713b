package rdmacm

import (
	"net/netip"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
)

// The ports that programs are given who ask for none in particular: the kernel's
// default ip_local_port_range.
const (
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// portKey names a port of a port space.
type portKey struct {
	ps   uint16
	port uint16
}

// A port is one that is bound, by one ID or by several with different addresses.
type port struct {
	key    portKey
	owners []*ID
}

// bindPort gives the ID a port of its address, any if the address names none.
func (id *ID) bindPort() error {
	if id.src.Port() == 0 {
		return id.bindAny()
	}
	return id.usePort(portKey{id.space(), id.src.Port()})
}

// space returns the port space: programs that name no queue pair type in it share one.
func (id *ID) space() uint16 { return id.ps }

// bindAny finds a port that nobody has.
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
	p.owners = append(p.owners, id)
	id.cma.ports[k] = p
	id.port = p
	return nil
}

// conflict reports why id may not have the port beside those who have it, as
// cma_check_port does.
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

// release gives the port back.
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

// listener finds who listens at an address: an exact match before a wildcard.
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

// serviceID returns what stands in a REQ for a port (IBA annex A11).
func serviceID(k portKey) uint64 { return uint64(k.ps)<<16 | uint64(k.port) }

// keyOf returns the port that a service identifier stands for.
func keyOf(service uint64) (portKey, bool) {
	k := portKey{uint16(service >> 16), uint16(service)}
	switch k.ps {
	case abi.PSTCP, abi.PSUDP, abi.PSIB, abi.PSIPoIB:
		return k, service>>32 == 0
	}
	return k, false
}
