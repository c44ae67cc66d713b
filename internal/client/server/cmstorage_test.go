package server

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
)

func storageOf(s string) (out abi.CMStorage) {
	b := sockaddrOf(s)
	copy(out[:], b[:])
	return out
}

// addrMin is what the answer to CM_QUERY_ADDR had before it grew an index, and
// joinSendOnly a flag of joining: numbers of the ABI.
const (
	addrMin      = 272
	joinSendOnly = 1
)

// The younger commands: an identifier is bound, resolved, routed, asked about and joins a
// group without one of the older ones.
func TestCMStorage(t *testing.T) {
	s := testServer(t)
	a := channelOf(t, s, process1(t, s))
	const v4, v6 = 16, 28
	id := a.cmID(1, abi.PSUDP)
	bind := func(addr abi.CMStorage, size uint16) []byte {
		return ucm(abi.CMCmdBind, &abi.CMBind{ID: id, Addr: addr, AddrSize: size}, 0)
	}
	a.fails("an address that is too long", bind(storageOf("192.0.2.1:0"), v6), syscall.EINVAL)
	a.fails("no address", bind(abi.CMStorage{}, 0), syscall.EINVAL)
	a.fails("an address of InfiniBand, which librdmacm tries", bind(abi.CMStorage{27}, 48), syscall.EAFNOSUPPORT)
	a.must(bind(storageOf("192.0.2.1:7100"), v4))
	resolve := abi.CMResolveAddr{ID: id, TimeoutMS: 1000, DstAddr: storageOf("192.0.2.1:7000"), DstSize: v4}
	wrong := resolve
	wrong.DstSize = 5
	a.fails("a destination of five bytes", ucm(abi.CMCmdResolveAddr, &wrong, 0), syscall.EINVAL)
	a.must(ucm(abi.CMCmdResolveAddr, &resolve, 0))
	a.event(abi.CMEventAddrResolved)

	query := func(option uint32, room int) []byte {
		return ucm(abi.CMCmdQuery, &abi.CMQuery{Response: respAddr, ID: id, Option: option}, room)
	}
	if b := a.must(query(abi.CMQueryPath, 256)); len(b) != 8 || binary.NativeEndian.Uint32(b) != 0 {
		t.Errorf("paths before there is one: %x", b)
	}
	a.must(ucm(abi.CMCmdResolveRoute, &abi.CMResolveRoute{ID: id}, 0))
	a.event(abi.CMEventRouteResolved)
	a.fails("no room", query(abi.CMQueryAddr, 100), syscall.ENOSPC)
	a.fails("an unknown question", query(9, 512), syscall.ENOSYS)

	var r abi.CMQueryAddrResp
	abi.Decode(a.must(query(abi.CMQueryAddr, abi.Size[abi.CMQueryAddrResp]())), &r)
	if r.SrcAddr != storageOf("192.0.2.1:7100") || r.DstAddr != storageOf("192.0.2.1:7000") || r.SrcSize != v4 || r.DstSize != v4 || r.PortNum != 1 || r.NodeGUID == 0 {
		t.Errorf("addresses: %+v", r)
	}
	if b := a.must(query(abi.CMQueryAddr, addrMin)); len(b) != addrMin {
		t.Errorf("an old library gets %d bytes, want %d", len(b), addrMin)
	}
	gid := netip.MustParseAddr("192.0.2.1").As16()
	abi.Decode(a.must(query(abi.CMQueryGID, abi.Size[abi.CMQueryAddrResp]())), &r)
	if r.SrcAddr[0] != 27 || [16]byte(r.SrcAddr[8:24]) != gid || [16]byte(r.DstAddr[8:24]) != gid || r.DstSize != 48 || binary.BigEndian.Uint64(r.DstAddr[24:]) != 0x01111b58 {
		t.Errorf("GIDs: %+v", r)
	}
	b := a.must(query(abi.CMQueryPath, 256))
	var p abi.CMQueryPathResp
	if !abi.Decode(b, &p) || p.NumPaths != 1 || [16]byte(p.PathRec[8:24]) != gid || [16]byte(p.PathRec[24:40]) != gid || p.PathRec[47] != 64 || p.PathRec[56] != 0x80|18 {
		t.Errorf("path: %+v", p)
	}

	join := abi.CMJoinMcast{Response: respAddr, UID: 9, ID: id, Addr: storageOf("224.0.1.9:0"), AddrSize: v4, JoinFlags: joinSendOnly}
	a.must(ucm(abi.CMCmdJoinMcast, &join, 4))
	if e := a.event(abi.CMEventMulticastJoin); e.UID != 9 {
		t.Errorf("joined: %+v", e)
	}
	join.JoinFlags = 7
	a.fails("join as nobody can", ucm(abi.CMCmdJoinMcast, &join, 4), syscall.EINVAL)
}
