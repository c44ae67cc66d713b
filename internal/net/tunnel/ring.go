package tunnel

import (
	"net/netip"
	"sync/atomic"
)

// A ring holds messages between one writer and one reader, which never block each other. Its data is one memory area, in the
// order of the messages. A message that would cross the end of the area starts at its beginning.
//
//	data  ┌────────┬───────────────┬─────┬──────────┐
//	      │ msg 4  │     free      │msg 2│  msg 3   │
//	      └────────┴───────────────┴─────┴──────────┘
//	           made ▲         freed ▲                   both only increase
type ring struct {
	slots []slot // a power of two
	data  []byte

	tail atomic.Uint64 // the writer's: messages written
	made uint64        // the writer's: bytes allocated, including those skipped at the end
	head atomic.Uint64 // the reader's: messages released
	// freed is the reader's: bytes of released messages.
	freed atomic.Uint64
}

// A slot is a message in the ring.
type slot struct {
	from, to netip.AddrPort
	data     []byte
	segment  int    // length of each datagram in data except the last
	end      uint64 // value of made after it
}

func newRing(slots, bytes int) *ring {
	return &ring{slots: make([]slot, slots), data: make([]byte, bytes)}
}

// reserve returns space for a message of n bytes, or nil if there is none. It has no effect until commit.
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

// commit makes the message reserved last visible to the reader.
func (r *ring) commit(s *slot) {
	r.made = s.end
	r.tail.Add(1)
}

// next returns the reader's next message; nil if there is none.
func (r *ring) next() *slot {
	head := r.head.Load()
	if head == r.tail.Load() {
		return nil
	}
	return &r.slots[head&uint64(len(r.slots)-1)]
}

// done releases the message that next returned.
func (r *ring) done(s *slot) {
	r.freed.Store(s.end)
	r.head.Add(1)
}
