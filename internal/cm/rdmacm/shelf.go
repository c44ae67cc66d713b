package rdmacm

import "vrdma.dev/vrdma/internal/abi"

// A Shelf is memory from which a client takes events by itself while several wait
// (shim/protocol.h). Events are numbered; on the shelf are those from Taken to what SetReady was
// last told.
type Shelf interface {
	Taken() uint64
	Lay(n uint64, reply []byte) bool
	SetReady(n uint64)
	Claim(n uint64) bool
	Freeze() uint64
	Thaw(n uint64)
}

// A shelf is what a channel knows of its Shelf. Whoever looks at the channel's events, or at what
// taking one changes, calls settle first.
//
//	events:   first                                  last
//	          ├── on the shelf ──┤── not yet there ──┤
//	numbers:  next               laid
//
// The last is never there, so the client cannot take all: it has to ask for the last, and the
// signal is lowered then.
type shelf struct {
	Shelf  // nil: none
	slots  uint64
	encode func(*abi.CMEventResp) []byte // the reply with which an event is handed out

	next uint64 // number of the first event
	laid uint64 // of the first that is not on the shelf
}

// Stock has the channel put events on s, which has so many slots; nil: it does not any more.
// encode makes the reply that hands an event out; what it returns is used at once. It runs on
// the loop.
func (ch *Channel) Stock(s Shelf, slots int, encode func(*abi.CMEventResp) []byte) {
	if ch.shelf.Shelf != nil {
		ch.clear()
	}
	ch.shelf = shelf{Shelf: s, slots: uint64(slots), encode: encode}
	if s != nil {
		ch.shelf.next = s.Freeze()
		ch.refill()
	}
}

// settle sees to what the client has taken by itself.
func (ch *Channel) settle() {
	if s := &ch.shelf; s.Shelf != nil {
		ch.took(s.Taken())
	}
}

// took: the client's next event is n.
func (ch *Channel) took(n uint64) {
	s := &ch.shelf
	if n < s.next || n > s.laid { // it wrote there itself
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

// claim has nobody else take the first event; false: there is none.
func (ch *Channel) claim() bool {
	s := &ch.shelf
	for range s.slots + 1 { // each time it fails the client has taken one
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
	if s.Shelf != nil && len(ch.events) > 0 { // it writes there itself
		s.Freeze()
		s.Shelf = nil
	}
	return len(ch.events) > 0
}

// clear takes everything back that the client has not taken.
func (ch *Channel) clear() {
	if s := &ch.shelf; s.Shelf != nil {
		ch.took(s.Freeze())
	}
}

// refill undoes clear. The client may have copied what was there: the numbers go on with one
// that never was.
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
