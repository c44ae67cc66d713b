package provision

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// addresses has the interfaces of the host's addresses. It lists all of them at once, because NICs are often created by
// the hundred, and lists again for an address that it does not know.
type addresses struct {
	mu sync.Mutex
	of map[netip.Addr]int // guarded by mu, as what follows; numbers of interfaces
	on time.Time          // when they were listed
}

// addressesFor is how long a list is valid.
const addressesFor = time.Second

// at is the interface that has an address; "": none has, as for addresses of virtual networks.
func (l *addresses) at(a netip.Addr) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	index, ok := l.of[a]
	if !ok || time.Since(l.on) > addressesFor {
		l.of, l.on = list(), time.Now()
		if index, ok = l.of[a]; !ok {
			return ""
		}
	}
	i, err := net.InterfaceByIndex(index)
	if err != nil {
		return "" // the interface was removed
	}
	return i.Name
}

// list returns the index of the interface of every address. After an error it is empty, and NICs have no interface
// names.
func list() map[netip.Addr]int {
	of := make(map[netip.Addr]int)
	b, err := syscall.NetlinkRIB(syscall.RTM_GETADDR, syscall.AF_UNSPEC)
	if err != nil {
		return of
	}
	all, _ := syscall.ParseNetlinkMessage(b)
	for _, m := range all {
		if m.Header.Type != syscall.RTM_NEWADDR || len(m.Data) < syscall.SizeofIfAddrmsg {
			continue
		}
		attributes, _ := syscall.ParseNetlinkRouteAttr(&m)
		var own netip.Addr
		for _, x := range attributes {
			// IFA_LOCAL is the local address where IFA_ADDRESS is the other end of a point-to-point interface.
			a, ok := netip.AddrFromSlice(x.Value)
			if ok && (x.Attr.Type == syscall.IFA_LOCAL || x.Attr.Type == syscall.IFA_ADDRESS && !own.IsValid()) {
				own = a.Unmap()
			}
		}
		if _, first := of[own]; own.IsValid() && !first {
			of[own] = int(binary.NativeEndian.Uint32(m.Data[4:]))
		}
	}
	return of
}
