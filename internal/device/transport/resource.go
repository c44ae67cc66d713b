package transport

import "vrdma.dev/vrdma/internal/ib"

// MaxResources is the largest MaxDestRDAtomic of a queue pair.
const MaxResources = 128

// resources are the responder resources: the newest READs and atomics, stored for in-order responses and for
// duplicates (IBA 9.7.5.1.5, 9.7.7). They form a ring of MaxDestRDAtomic entries (the parameter n of the
// methods) in the order of the requests:
//
//	 answered, kept for duplicates     to be answered
//	─────────────────────────────┬───────────────────────┬──▶
//	                            Next                    Head: the oldest, reused next
type resources struct {
	Pending uint8                  `cbor:"1,keyasint,omitempty"` // number of resources with a response to send
	Next    uint8                  `cbor:"2,keyasint,omitempty"` // index of the oldest of them
	Head    uint8                  `cbor:"3,keyasint,omitempty"` // index of the resource to reuse next
	Ring    [MaxResources]resource `cbor:"-"`
}

// resource is one READ or atomic.
type resource struct {
	Value  uint64 // atomics: the former value; READs: the address
	PSN    uint32 // PSN of the first response packet
	End    uint32 // READs: the byte to stop at
	RKey   uint32
	Length uint32
	Off    uint32 // READs: the next byte to send
	Kind   Kind   // zero: unused
	Due    due
	Again  bool // answered before; Due because of a duplicate request
}

// due is the progress of a resource's response.
type due uint8

const (
	dueNo due = iota
	dueNew
	dueStarted
)

// packets returns the number of packets, and PSNs, of the response.
func (e *resource) packets(mtu uint32) uint32 {
	if e.Kind != KindReadReq {
		return 1
	}
	return packetsOf(e.Length, mtu)
}

// atomic reports whether the response is that of an atomic operation with a result.
func (e *resource) atomic() bool { return e.Kind == KindCmpSwap || e.Kind == KindFetchAdd }

// full reports whether no further request can be stored.
func (s *resources) full(n uint8) bool {
	return n == 0 || s.Ring[s.Head].Due != dueNo && !s.Ring[s.Head].Again
}

// put stores a request in place of the oldest.
func (s *resources) put(e *resource, n uint8) (i uint8) {
	i = s.Head
	if s.Ring[i].Due != dueNo {
		s.done(&s.Ring[i], n) // the peer has sent newer requests: it does not wait for this one
	}
	s.Ring[i] = *e
	s.Head = (i + 1) % n
	return i
}

// queue marks resource i as having a response to send.
func (s *resources) queue(i, n uint8) {
	e := &s.Ring[i]
	if e.Due == dueNo {
		if s.Pending == 0 || s.age(i, n) > s.age(s.Next, n) {
			s.Next = i
		}
		s.Pending++
	}
	e.Due = dueNew
}

// age returns how many resources are newer than i.
func (s *resources) age(i, n uint8) uint8 { return (s.Head + n - 1 - i) % n }

// done marks e as sent and finds the next resource with a response to send.
func (s *resources) done(e *resource, n uint8) {
	e.Due = dueNo
	s.Pending--
	for range n {
		if s.Pending == 0 || s.Ring[s.Next].Due != dueNo {
			return
		}
		s.Next = (s.Next + 1) % n
	}
}

// find returns the resource that b, a duplicate, repeats fully or partly, and the byte offset in it.
func (s *resources) find(b *Burst, mtu uint32, n uint8) (i uint8, off uint32, ok bool) {
	for i := range n {
		e := &s.Ring[i]
		at := ib.PSNDist(e.PSN, b.PSN)
		if e.Kind != b.Kind || at >= e.packets(mtu) || e.RKey != b.RKey {
			continue
		}
		off := at * mtu
		if e.Kind == KindReadReq && (b.VA != e.Value+uint64(off) || b.Length > e.Length-off) {
			continue
		}
		return i, off, true
	}
	return 0, 0, false
}

// repeat queues the bytes from off up to end once more. If a response of the same resource is pending, both
// become one response.
func (e *resource) repeat(off, end uint32) {
	if e.Due == dueNo {
		e.Again = true
		e.Off, e.End = off, end
	} else {
		e.Off, e.End = min(e.Off, off), max(e.End, end)
	}
}

// before returns how many packets from psn on, at most most, come before the first resource.
func (s *resources) before(psn, most uint32, n uint8) uint32 {
	for i := range n {
		if e := &s.Ring[i]; e.Kind != 0 {
			most = min(most, ib.PSNDist(psn, e.PSN))
		}
	}
	return most
}
