package rdmacm

import "vrdma.dev/vrdma/internal/abi"

// A Shelf is shared memory from which a client takes events without a command while several wait (shim/protocol.h). Events are
// numbered. The shelf contains the events from Taken up to the last argument of SetReady.
type Shelf interface {
	Taken() uint64
	Lay(n uint64, reply []byte) bool
	SetReady(n uint64)
	Claim(n uint64) bool
	Freeze() uint64
	Thaw(n uint64)
}

// A shelf is a channel's state of its Shelf. Code that reads the channel's events, or anything that taking an event changes, calls settle
// first.
//
//	events:   first                                  last
//	          ├── on the shelf ──┤── not yet there ──┤
//	numbers:  next               laid
//
// The last event is never on the shelf. So the client must request it with a command, which lowers the signal.
type shelf struct {
	Shelf  // nil: none
	slots  uint64
	encode func(*abi.CMEventResp) []byte // encodes the reply with an event

	next uint64 // number of the first event
	laid uint64 // number of the first event that is not on the shelf

	thawed bool // the numbers are from a ChannelState, and the Shelf is not known yet
}

// Stock makes the channel put events on s, which has so many slots; nil stops that. encode returns the reply with an event, which
// is used at once. For a restored channel, the first s must be the shelf that the channel had before: the client may have taken events
// from it since the snapshot. Stock runs on the loop.
func (ch *Channel) Stock(s Shelf, slots int, encode func(*abi.CMEventResp) []byte) {
	if ch.shelf.thawed {
		ch.shelf.Shelf, ch.shelf.thawed = s, false
	}
	if ch.shelf.Shelf != nil {
		ch.clear()
	}
	ch.shelf = shelf{Shelf: s, slots: uint64(slots), encode: encode}
	if s != nil {
		ch.shelf.next = s.Freeze()
		ch.refill()
	}
}

// settle processes the events that the client has taken.
func (ch *Channel) settle() {
	if s := &ch.shelf; s.Shelf != nil {
		ch.took(s.Taken())
	}
}

// took records that the client's next event is n.
func (ch *Channel) took(n uint64) {
	s := &ch.shelf
	if n < s.next || n > s.laid { // the client wrote an invalid number
		s.Freeze()
		s.Shelf = nil
		return
	}
	for s.next < n {
		ch.pop()
		s.next++
	}
}

// lay puts events on the shelf.
func (ch *Channel) lay() {
	s := &ch.shelf
	if s.Shelf == nil {
		return
	}
	begin := s.laid
	for s.laid-s.next+1 < uint64(len(ch.events)) && s.laid-s.next < s.slots {
		if !s.Lay(s.laid, s.encode(&ch.events[s.laid-s.next].resp)) {
			break
		}
		s.laid++
	}
	if s.laid != begin {
		s.SetReady(s.laid)
	}
}

// claim keeps the client from taking the first event itself; it returns false if there is no event.
func (ch *Channel) claim() bool {
	s := &ch.shelf
	for range s.slots + 1 { // each failure means that the client has taken one
		if ch.settle(); s.Shelf == nil || len(ch.events) == 0 {
			break
		}
		if s.Claim(s.next) {
			if s.next++; s.laid < s.next {
				s.laid = s.next
				s.SetReady(s.laid)
			}
			return true
		}
	}
	if s.Shelf != nil && len(ch.events) > 0 { // the client wrote there itself
		s.Freeze()
		s.Shelf = nil
	}
	return len(ch.events) > 0
}

// clear removes the events that the client has not taken.
func (ch *Channel) clear() {
	if s := &ch.shelf; s.Shelf != nil {
		ch.took(s.Freeze())
	}
}

// refill reverts clear. The client may have copied old entries, so the numbers continue after a gap.
func (ch *Channel) refill() {
	s := &ch.shelf
	if s.Shelf == nil {
		return
	}
	s.next = max(s.next, s.laid) + 1
	s.laid = s.next
	s.SetReady(s.laid)
	ch.lay()
	s.Thaw(s.next)
}
