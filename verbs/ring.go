package verbs

import (
	"encoding/binary"
	"fmt"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/verbs/internal/ipc"
)

// A ring is a queue that is shared with the device: struct rxe_queue_buf. One side fills it and
// moves the producer's index, the other empties it and moves the consumer's.
type ring struct {
	mem  ipc.Mapped
	data []byte
	own  bool // mem is a mapping of its own, to be unmapped
	mask uint32
	log2 uint32
	pos  uint32 // our own index
}

// newRing finds a ring where the device says that it is.
func (d *Device) newRing(at *abi.MMInfo) (*ring, error) {
	m, own, err := d.door.Ring(at)
	if err != nil {
		return nil, err
	}
	r := &ring{mem: m, own: own}
	if len(m.Mem) >= abi.QueueData {
		r.data = m.Mem[abi.QueueData:]
		r.log2, r.mask = protocol.Shared32(m.Mem, abi.QueueLog2ElemSize).Load(), protocol.Shared32(m.Mem, abi.QueueIndexMask).Load()
	}
	if r.log2 > 16 || r.mask&(r.mask+1) != 0 || (uint64(r.mask)+1)<<r.log2 > uint64(len(r.data)) {
		r.close()
		return nil, fmt.Errorf("the device's queue has %d bytes for %d entries of %d", len(m.Mem), uint64(r.mask)+1, uint64(1)<<r.log2)
	}
	return r, nil
}

func (r *ring) close() {
	if r.own {
		r.mem.Unmap()
	}
}

// slot is the element at a position.
func (r *ring) slot(pos uint32) []byte {
	off := uint64(pos&r.mask) << r.log2
	return r.data[off : off+1<<r.log2 : off+1<<r.log2]
}

func (r *ring) producer() uint32 {
	return protocol.Shared32(r.mem.Mem, abi.QueueProducerIndex).Load() & r.mask
}
func (r *ring) consumer() uint32 {
	return protocol.Shared32(r.mem.Mem, abi.QueueConsumerIndex).Load() & r.mask
}

// full reports whether we, who fill it, have to wait.
func (r *ring) full() bool { return (r.pos+1)&r.mask == r.consumer() }

// push hands the element at pos over.
func (r *ring) push() {
	r.pos = (r.pos + 1) & r.mask
	protocol.Shared32(r.mem.Mem, abi.QueueProducerIndex).Store(r.pos)
}

// waiting is how many elements are there for us, who empty it.
func (r *ring) waiting() uint32 { return (r.producer() - r.pos) & r.mask }

// empty reports whether nothing is there for us, from the indices alone: ours is in the ring, too.
func (r *ring) empty() bool { return r.producer() == r.consumer() }

// pop gives n elements back.
func (r *ring) pop(n uint32) {
	r.pos = (r.pos + n) & r.mask
	protocol.Shared32(r.mem.Mem, abi.QueueConsumerIndex).Store(r.pos)
}

var order = binary.NativeEndian

func put32(b []byte, off int, v uint32) { order.PutUint32(b[off:], v) }
func put64(b []byte, off int, v uint64) { order.PutUint64(b[off:], v) }
