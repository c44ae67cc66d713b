package ucma

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/abi/abitext"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
)

// This file has the newer rdma_cm commands, whose addresses have a length and fit any family. They mean the same as the older ones.

// fromStorage decodes an address of a size; it fails for an unknown family.
func fromStorage(s *abi.CMStorage, size uint16) (netip.AddrPort, error) {
	want := uint16(unix.SizeofSockaddrInet4)
	switch binary.NativeEndian.Uint16(s[:]) {
	case unix.AF_INET:
	case unix.AF_INET6:
		want = unix.SizeofSockaddrInet6
	case unix.AF_UNSPEC:
		return netip.AddrPort{}, syscall.EINVAL
	default:
		return netip.AddrPort{}, syscall.EAFNOSUPPORT
	}
	if size != want {
		return netip.AddrPort{}, syscall.EINVAL
	}
	a, _ := abi.FromSockaddr((*abi.Sockaddr)(s[:]))
	return a, nil
}

// toStorage encodes an address and returns its size, 0 for an invalid address.
func toStorage(a netip.AddrPort) (s abi.CMStorage, size uint16) {
	b := abi.ToSockaddr(a)
	copy(s[:], b[:])
	switch {
	case !a.IsValid():
		return s, 0
	case a.Addr().Is4():
		return s, unix.SizeofSockaddrInet4
	}
	return s, unix.SizeofSockaddrInet6
}

func bind(c *Call, req *abi.CMBind) error {
	addr, err := fromStorage(&req.Addr, req.AddrSize)
	if err != nil {
		return err
	}
	if req.Reserved != 0 {
		return syscall.EINVAL
	}
	return c.withID(req.ID, func(id *rdmacm.ID) error { return id.Bind(addr) })
}

func resolveAddr(c *Call, req *abi.CMResolveAddr) error {
	var src netip.AddrPort
	dst, err := fromStorage(&req.DstAddr, req.DstSize)
	if err == nil && req.SrcSize != 0 {
		src, err = fromStorage(&req.SrcAddr, req.SrcSize)
	}
	if err != nil || req.Reserved != 0 {
		return syscall.EINVAL
	}
	return c.resolve(req.ID, src, dst, req.TimeoutMS)
}

// A program joins a group to receive, or only to send. The daemon treats both alike: the program decides whether it attaches a queue pair.
const (
	joinFull = iota
	joinSendOnly
)

func joinMcast(c *Call, req *abi.CMJoinMcast, resp *abi.CMCreateIDResp) error {
	addr, err := fromStorage(&req.Addr, req.AddrSize)
	if err != nil || req.JoinFlags != joinFull && req.JoinFlags != joinSendOnly {
		return syscall.EINVAL
	}
	return c.join(req.ID, req.UID, addr.Addr(), resp)
}

// query handles three queries, whose answers have different formats.
func query(c *Call) error {
	var req abi.CMQuery
	abi.Decode(c.in, &req)
	c.at = req.Response
	if c.traced {
		c.Args = abitext.Arguments(&req)
	}
	var q rdmacm.Query
	if err := c.lookAt(req.ID, func(id *rdmacm.ID) error { q = id.Query(); return nil }); err != nil {
		return err
	}
	switch req.Option {
	case abi.CMQueryAddr:
		return c.answerAddr(&q, q.Src, q.Dst)
	case abi.CMQueryGID:
		return c.answerGID(&q)
	case abi.CMQueryPath:
		return c.answerPath(&q)
	}
	return syscall.ENOSYS
}

func (c *Call) describe(q *rdmacm.Query) (r abi.CMQueryAddrResp) {
	r.IBDevIndex = noIndex
	if q.Device {
		r.NodeGUID = bits.ReverseBytes64(c.ch.NodeGUID())
		r.PortNum, r.PKey = 1, 0xffff
	}
	return r
}

// addrMin is the size of the response in older kernels, without the index.
const addrMin = 272

func (c *Call) answerAddr(q *rdmacm.Query, src, dst netip.AddrPort) error {
	if c.out < addrMin {
		return syscall.ENOSPC
	}
	r := c.describe(q)
	r.SrcAddr, r.SrcSize = toStorage(src)
	r.DstAddr, r.DstSize = toStorage(dst)
	c.resp = abi.Encode(nil, &r)
	return nil
}

// answerGID returns the addresses of the device's port as struct sockaddr_ib.
func (c *Call) answerGID(q *rdmacm.Query) error {
	if c.out < addrMin {
		return syscall.ENOSPC
	}
	const afIB, size, all = 27, 48, ^uint64(0)
	r := c.describe(q)
	write := func(s *abi.CMStorage, gid [16]byte, service, mask uint64) uint16 {
		binary.NativeEndian.PutUint16(s[:], afIB)
		binary.BigEndian.PutUint16(s[2:], r.PKey)
		copy(s[8:], gid[:])
		binary.BigEndian.PutUint64(s[24:], service)
		binary.BigEndian.PutUint64(s[32:], mask)
		return size
	}
	if q.Device {
		r.SrcSize = write(&r.SrcAddr, q.SGID, q.Service(q.Src), all)
		r.DstSize = write(&r.DstAddr, q.DGID, q.Service(q.Dst), all)
	}
	c.resp = abi.Encode(nil, &r)
	return nil
}

// answerPath returns the path in the format of a subnet administrator.
func (c *Call) answerPath(q *rdmacm.Query) error {
	const header = 8
	if c.out < header {
		return syscall.ENOSPC
	}
	var r abi.CMQueryPathResp
	if q.Routed {
		const exactly = 2 << 6
		r.NumPaths, r.Flags = 1, 1|1<<1|1<<3|1<<5 // GMP, primary, both directions
		p := r.PathRec[:]
		copy(p[8:], q.DGID[:])
		copy(p[24:], q.SGID[:])
		p[47], p[48] = 64, q.TOS // hop limit, traffic class
		p[49] = 1<<7 | 1         // reversible, one path
		binary.BigEndian.PutUint16(p[50:], 0xffff)
		p[54], p[55], p[56] = exactly|q.MTU, exactly|16, exactly|q.Life
	}
	c.resp = abi.Encode(nil, &r)
	if r.NumPaths == 0 {
		c.resp = c.resp[:header]
	}
	return nil
}
