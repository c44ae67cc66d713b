package provision

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// addresses are at which interfaces the host's addresses are. All are listed at once, because many NICs come at once, and again for one that was
// not there.
type addresses struct {
	mu sync.Mutex
	of map[netip.Addr]int // guarded by mu, as what follows; numbers of interfaces
	on time.Time          // when they were listed
}

// addressesFor is how long a list is good for.
const addressesFor = time.Second

// at is the interface that has an address here; "": none has, as it is with addresses of virtual networks.
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
		return "" // it has gone
	}
	return i.Name
}

// list is the interfaces' numbers by the addresses that they have. Without it there are no names.
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
			// IFA_LOCAL is ours where IFA_ADDRESS is the other end of a point-to-point interface.
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
