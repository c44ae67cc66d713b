package simnet

import (
	"encoding/binary"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Base is the address of the first byte of every node's memory.
const Base = 1 << 20

// A Region is a part of a node's memory with a key.
type Region struct {
	Addr, Length uint64
	Access       ib.Access
}

// A Node is what the queue pairs of one process share: memory and keys.
type Node struct {
	Mem     []byte // at address Base
	regions map[uint32]Region
	nextKey uint32
	Faults  int // rejected accesses
	Line    wireQueue
}

// NewNode makes a node with size bytes of memory.
func NewNode(size int) *Node {
	return &Node{Mem: make([]byte, size), regions: map[uint32]Region{}, nextKey: 0x100}
}

// Register returns a key for a part of the memory, for local and remote use.
func (n *Node) Register(addr, length uint64, a ib.Access) uint32 {
	n.nextKey += 0x101
	n.regions[n.nextKey] = Region{addr, length, a}
	return n.nextKey
}

// Deregister removes a key.
func (n *Node) Deregister(key uint32) { delete(n.regions, key) }

// Bytes returns the node's memory at an address.
func (n *Node) Bytes(addr uint64, length uint32) []byte {
	return n.Mem[addr-Base:][:length:length]
}

// at returns the memory of a key, if the key allows the access.
func (n *Node) at(key uint32, addr uint64, length uint32, a ib.Access) ([]byte, bool) {
	r, ok := n.regions[key]
	l := uint64(length)
	if !ok || r.Access&a != a || addr < r.Addr || l > r.Length || addr-r.Addr > r.Length-l {
		n.Faults++
		return nil, false
	}
	return n.Bytes(addr, length), true
}

// list calls f for the part [off, off+n) of a scatter/gather list.
func (n *Node) list(sge []transport.SGE, off, length uint32, a ib.Access, f func([]byte)) transport.Status {
	for i := range sge {
		e := &sge[i]
		if off >= e.Length {
			off -= e.Length
			continue
		}
		k := min(e.Length-off, length)
		if k == 0 {
			break
		}
		mem, ok := n.at(e.LKey, e.Addr+uint64(off), k, a)
		if !ok {
			return transport.LocProtErr
		}
		f(mem)
		length -= k
		off = 0
	}
	if length > 0 {
		return transport.LocLenErr
	}
	return transport.Success
}

// reader copies out of a span piece by piece.
type reader struct {
	pieces []memory.Piece
	off    int
}

func (r *reader) read(dst []byte) {
	for len(dst) > 0 {
		k := copy(dst, r.pieces[0].Mem[r.off:])
		dst = dst[k:]
		if r.off += k; r.off == len(r.pieces[0].Mem) {
			r.pieces, r.off = r.pieces[1:], 0
		}
	}
}

// atomic performs one 8-byte operation.
func (n *Node) atomic(k transport.Kind, key uint32, va, compare, swap uint64) (uint64, transport.Status) {
	a := ib.AccessRemoteAtomic
	if k == transport.KindAtomicWrite {
		a = ib.AccessRemoteWrite
	}
	mem, ok := n.at(key, va, 8, a)
	if !ok {
		return 0, transport.RemAccessErr
	}
	old := binary.LittleEndian.Uint64(mem)
	switch {
	case k == transport.KindFetchAdd:
		binary.LittleEndian.PutUint64(mem, old+swap)
	case k == transport.KindAtomicWrite, old == compare:
		binary.LittleEndian.PutUint64(mem, swap)
	}
	return old, transport.Success
}
