package rdmacm

import (
	"net/netip"
	"slices"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// A Group is a multicast group that an ID has joined.
type Group struct {
	Name     uint32
	id       *ID
	uid      uint64
	reported uint32
}

// anyQP is the destination queue pair number of multicast datagrams.
const anyQP = 0xffffff

// Join joins a group. RoCEv2 needs no negotiation: the group's GID is the IP address. The program attaches its queue pair when it reads the
// event.
func (id *ID) Join(uid uint64, addr netip.Addr) (*Group, error) {
	switch id.state {
	case Bound, Resolved, Routed, Connecting:
	default:
		return nil, syscall.EINVAL
	}
	// Like the kernel, this does not check that addr is a multicast address.
	if !id.ud() || !id.device {
		return nil, syscall.EINVAL
	}
	g := &Group{id: id, uid: uid}
	var err error
	if g.Name, err = id.client.groups.add(g); err != nil {
		return nil, err
	}
	id.groups = append(id.groups, g)
	e := &event{id: id, group: g, resp: abi.CMEventResp{UID: uid, ID: g.Name, Event: abi.CMEventMulticastJoin}}
	if !id.cma.allowed(nic.RefusedGroup, ib.GID(addr.As16()), abi.QPTypeUD, ib.Them, 0, id.client) {
		e.resp.Event, e.resp.Status = abi.CMEventMulticastError, uint32(failure(syscall.EACCES))
	}
	to, err := id.address(addr.As16())
	if err != nil {
		e.resp.Event, e.resp.Status = abi.CMEventMulticastError, uint32(failure(syscall.EADDRNOTAVAIL))
	}
	e.fill(nil, &abi.CMUDParam{QPNum: anyQP, QKey: id.key(), AHAttr: to})
	id.ch.post(e)
	return g, nil
}

// Leave leaves a group and returns how many of its events were read.
func (ch *Channel) Leave(name uint32) (uint32, error) {
	g := ch.client.groups.items[name]
	switch {
	case g == nil:
		return 0, syscall.ENOENT
	case g.id.ch != ch:
		return 0, syscall.EINVAL
	}
	ch.client.groups.remove(name)
	g.id.groups = slices.DeleteFunc(g.id.groups, func(o *Group) bool { return o == g })
	ch.withdraw(func(e *event) bool { return e.group == g })
	return g.reported, nil
}
