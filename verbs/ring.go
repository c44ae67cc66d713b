package verbs

import (
	"encoding/binary"
	"fmt"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/verbs/internal/ipc"
)

// A ring is a queue in memory that is shared with the device: struct rxe_queue_buf. The producer writes
// elements and advances the producer index; the consumer reads them and advances the consumer index.
type ring struct {
	mem  ipc.Mapped
	data []byte
	own  bool // mem is a separate mapping; close unmaps it
	mask uint32
	log2 uint32
	pos  uint32 // this side's index
}

// newRing maps the ring at the location that the device returned.
func (d *Device) newRing(at *abi.MMInfo) (*ring, error) {
	m, own, err := d.backend.Ring(at)
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

// slot returns the element at a position.
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

// full reports whether the producer (this side) must wait.
func (r *ring) full() bool { return (r.pos+1)&r.mask == r.consumer() }

// push publishes the element at pos.
func (r *ring) push() {
	r.pos = (r.pos + 1) & r.mask
	protocol.Shared32(r.mem.Mem, abi.QueueProducerIndex).Store(r.pos)
}

// waiting returns the number of elements for the consumer (this side).
func (r *ring) waiting() uint32 { return (r.producer() - r.pos) & r.mask }

// empty reports whether the consumer has no element. It reads only the indices in shared memory.
func (r *ring) empty() bool { return r.producer() == r.consumer() }

// pop releases n elements.
func (r *ring) pop(n uint32) {
	r.pos = (r.pos + n) & r.mask
	protocol.Shared32(r.mem.Mem, abi.QueueConsumerIndex).Store(r.pos)
}

var order = binary.NativeEndian

func put32(b []byte, off int, v uint32) { order.PutUint32(b[off:], v) }
func put64(b []byte, off int, v uint64) { order.PutUint64(b[off:], v) }
