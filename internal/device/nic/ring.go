package nic

import (
	"math/bits"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
)

// A ring is a queue in shared memory, a struct rxe_queue_buf: two sizes, then the two
// indices in cache lines of their own, then a power of two of elements. The size and the index of our own side are
// kept here; the shared copies are written for the client and never read back.
type ring struct {
	arena *Arena
	at    MMap
	mem   []byte
	data  []byte
	mask  uint32
	log2  uint32
}

// newRing makes a ring for at least entries elements of at least elem bytes. One
// slot stays empty, that is how full and empty differ.
func newRing(a *Arena, entries, elem uint32) (ring, error) {
	log2 := uint32(bits.Len32(elem - 1))
	slots := uint32(1) << bits.Len32(entries)
	size := uint64(abi.QueueData) + uint64(slots)<<log2
	if size > 1<<31 {
		return ring{}, syscall.ENOMEM
	}
	at, mem, err := a.alloc(size)
	if err != nil {
		return ring{}, err
	}
	r := ring{arena: a, at: at, mem: mem, data: mem[abi.QueueData:], mask: slots - 1, log2: log2}
	shared32(mem, abi.QueueLog2ElemSize).Store(log2)
	shared32(mem, abi.QueueIndexMask).Store(slots - 1)
	return r, nil
}

// maxMove is how many bytes of a queue that is resized may be in use: the loop copies them.
const maxMove = 1 << 20

// move copies n elements of from, beginning at position pos, to the new ring r. A queue
// with too much in it cannot be resized before some of that is gone: EBUSY.
func (r *ring) move(from *ring, pos, n uint32) error {
	if uint64(n)<<r.log2 > maxMove {
		return syscall.EBUSY
	}
	for i := range n {
		copy(r.slot(i), from.slot(pos+i))
	}
	r.setProducer(n)
	return nil
}

func (r *ring) release() {
	if r.mem != nil {
		r.arena.release(r.at)
		*r = ring{}
	}
}

// slot is the element at a position; any number is safe.
func (r *ring) slot(pos uint32) []byte {
	off := uint64(pos&r.mask) << r.log2
	return r.data[off : off+1<<r.log2 : off+1<<r.log2]
}

func (r *ring) elem() uint32     { return 1 << r.log2 }
func (r *ring) producer() uint32 { return shared32(r.mem, abi.QueueProducerIndex).Load() }
func (r *ring) consumer() uint32 { return shared32(r.mem, abi.QueueConsumerIndex).Load() }

func (r *ring) setProducer(pos uint32) {
	storeFenced(shared32(r.mem, abi.QueueProducerIndex), pos&r.mask)
}
func (r *ring) setConsumer(pos uint32) { shared32(r.mem, abi.QueueConsumerIndex).Store(pos & r.mask) }

// A work ring is one that the client fills and we empty.
type workRing struct {
	ring
	cons uint32 // free running: how many we have taken
}

// posted is how many elements wait, by the client's word, never more than fit.
func (r *workRing) posted() uint32 { return (r.producer() - r.cons) & r.mask }

// advance gives the slots before pos back to the client.
func (r *workRing) advance(pos uint32) {
	r.cons = pos
	r.setConsumer(pos)
}

// drop forgets everything that is posted.
func (r *workRing) drop() { r.advance(r.cons + r.posted()) }
