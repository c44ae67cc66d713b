package nic

import (
	"sync/atomic"

	"vrdma/internal/protocol"
)

// Arming a completion queue asks for one event at its next completion. For that each queue has
// a word with two bits, which the client sets and the daemon clears, and a third one, READY,
// which is the daemon's:
//
//	           arm(solicited)             arm(all)
//	unarmed ─────────────────► solicited ──────────► all      arming never lowers
//	   ▲ ◄── fire: a solicited completion, or an error ┘ │
//	   └──────────────────────────── fire: any completion ┘
//
// Client and daemon each do this, in this order:
//
//	client  C1 set the bit    C2 poll: read the producer index      (and sleep if it found nothing)
//	daemon  D1 write the completion and the producer index    D2 read the bit    D3 clear it, write an event
//
// No wake-up is lost. C1 and C2 have a full fence between them, and so have D1 and D2. So
// either D2 sees what C1 set, and there will be an event; or D2 came before C1 in the one
// order of all these accesses, then D1 came before C2, and the poll finds the completion.
//
// An arm can be set between D2 and D3. If D2 fired, D3 clears the new arm as well, and the
// event, which is not written yet, is for both: two arms before one event are one arm, as in
// the kernel. If D2 did not fire there is no D3.
//
// An event is never sent without an arm, and a completion that was in the queue before the
// arm gives none, except where the two happen at the same time: then the client may find the
// completion and have an event besides, as with the kernel's.
//
// READY says that setting the bit is enough. It is clear if there is no queue of that handle,
// and a handle beyond the shared words has none. Then the client makes the command, which does
// the same here, and can refuse. While somebody traces the session all arming is by command
// (Session.ArmByCommand). The daemon never reads READY, and of a word that the client
// scribbles on it believes the two other bits: too many events, or none, are the client's own.

const (
	armBits = protocol.ArmSolicited | protocol.ArmAll
	// cqHandles is how many completion queue handles a session has, or more if its limit
	// of queues is higher. Those beyond have no word in the arena.
	cqHandles = protocol.ArmCQs
)

// An arm is the word of one completion queue.
type arm struct {
	word *atomic.Uint32 // in the arena; if there is none for the handle, own
	own  atomic.Uint32
}

// open begins with the word of a handle, unarmed.
func (a *arm) open(arena *Arena, handle uint32) {
	a.word = &a.own
	if handle < protocol.ArmCQs {
		a.word = shared32(arena.mem, protocol.ArmWords+int(handle)*protocol.ArmStride)
	}
	a.word.Store(protocol.ArmReady)
}

// close ends it: whoever arms the handle from now on is told that there is no such queue.
func (a *arm) close() { a.word.Store(0) }

// set arms it for the next completion, or the next that is solicited or an error.
func (a *arm) set(solicitedOnly bool) {
	if solicitedOnly {
		a.word.Or(protocol.ArmSolicited)
	} else {
		a.word.Or(protocol.ArmAll)
	}
}

// fires reports whether a completion, which has been written, is one that it was armed for,
// and then disarms it.
func (a *arm) fires(solicited bool) bool {
	w := a.word.Load() // after the producer index, which is stored atomically: see above
	if w&protocol.ArmAll == 0 && (w&protocol.ArmSolicited == 0 || !solicited) {
		return false
	}
	a.word.And(^uint32(armBits))
	return true
}

// ArmByCommand says whether the client has to arm its queues by command, which can be seen.
func (s *Session) ArmByCommand(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	shared32(s.Arena.mem, protocol.ArmByCommand).Store(v)
}
