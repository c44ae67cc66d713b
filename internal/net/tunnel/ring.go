package tunnel

import (
	"net/netip"
	"sync/atomic"
)

// A ring holds messages between one writer and one reader, which never wait for each other. Its data
// lies in one piece of memory, in the order of the messages; a message that would cross the end begins
// at the beginning.
//
//	data  ┌────────┬───────────────┬─────┬──────────┐
//	      │ msg 4  │     free      │msg 2│  msg 3   │
//	      └────────┴───────────────┴─────┴──────────┘
//	           made ▲         freed ▲                   both count on without end
type ring struct {
	slots []slot // a power of two
	data  []byte

	tail atomic.Uint64 // the writer's: messages written
	made uint64        // the writer's: bytes given out, what was skipped at the end included
	head atomic.Uint64 // the reader's: messages done with
	// freed is the reader's: bytes of messages done with.
	freed atomic.Uint64
}

// A slot is a message in the ring.
type slot struct {
	from, to netip.AddrPort
	data     []byte
	segment  int    // the length of each datagram in data but the last
	end      uint64 // where made was behind it
}

func newRing(slots, bytes int) *ring {
	return &ring{slots: make([]slot, slots), data: make([]byte, bytes)}
}

// reserve gives the writer room for a message of n bytes; nil: there is none. Nothing has happened
// until commit.
func (r *ring) reserve(n int) *slot {
	tail := r.tail.Load()
	if tail-r.head.Load() == uint64(len(r.slots)) {
		return nil
	}
	size := uint64(len(r.data))
	at := r.made % size
	skip := uint64(0)
	if at+uint64(n) > size {
		skip, at = size-at, 0
	}
	end := r.made + skip + uint64(n)
	if end-r.freed.Load() > size {
		return nil
	}
	s := &r.slots[tail&uint64(len(r.slots)-1)]
	s.data, s.end = r.data[at:at+uint64(n):at+uint64(n)], end
	return s
}

// commit shows the reader the message that was reserved last.
func (r *ring) commit(s *slot) {
	r.made = s.end
	r.tail.Add(1)
}

// next returns the reader's next message; nil: there is none.
func (r *ring) next() *slot {
	head := r.head.Load()
	if head == r.tail.Load() {
		return nil
	}
	return &r.slots[head&uint64(len(r.slots)-1)]
}

// done gives back the message that next returned.
func (r *ring) done(s *slot) {
	r.freed.Store(s.end)
	r.head.Add(1)
}
