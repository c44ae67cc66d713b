package nic

import (
	"sync/atomic"

	"vrdma.dev/vrdma/internal/client/protocol"
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
// A program may poll after it armed, or before. In the second case it sleeps without another poll,
// and a completion that came in between has to give an event: NICs do so, and UCX relies on it.
// So the client looks at the ring after it set the bit:
//
//	client  C1 set the bit    C2 read the producer index; if there are completions: LOOK, a command
//	        (C3 poll: read the producer index)                      (and sleep if it found nothing)
//	daemon  D1 write the completion and the producer index    D2 read the bit    D3 clear it, write an event
//	        LOOK: if the bit is set and there are completions: D3
//
// No wake-up is lost. C1 and C2 have a full fence between them, and so have D1 and D2. So
// either D2 sees what C1 set, and there will be an event; or D2 came before C1 in the one
// order of all these accesses, then D1 came before C2, and C2 finds the completion. On arm64 the daemon's fence is that of
// Go's atomics: the store of the producer index is a STLR, the load of the bit a LDAR, and these keep their order. The
// STLR also keeps the completion before the index. The client needs a fence of its own (DMB) behind C1: a load can pass the
// store of an atomic read-modify-write. Package armcheck checks both, with loads that are made early. The loop
// executes D1 to D3 and LOOK one after the other, so one arm gives one event at most.
//
// An arm can be set between D2 and D3. If D2 fired, D3 clears the new arm as well, and the
// event, which is not written yet, is for both: two arms before one event are one arm, as in
// the kernel. If D2 did not fire there is no D3.
//
// Most programs read an event, arm, and then poll: at C2 the completion that gave the event is
// still there. LOOK would give them a second event for each. So D3 notes the consumer index
// (woken), and C2 and LOOK find nothing as long as the consumer index is the same: the program
// has an event since it polled last, and has to poll anyway. If D3 finds that the program has
// polled everything already, it notes nothing. A second thread may read an old consumer index and
// find nothing for that reason, while the first thread has polled; the first one sees the bit of the second
// when it arms, and C2 looks for whatever either armed for. The note is removed before the producer index can
// come round to it. For an arm(solicited) C2 and LOOK need a solicited or failed completion: push
// notes the index behind the latest one (urgent), and removes that in the same way.
//
// An event is never sent without an arm. A program that polls after it armed may find the
// completion and have an event besides, as with the kernel's and with NICs.
//
// READY says that setting the bit is enough. It is clear if there is no queue of that handle,
// and a handle beyond the shared words has none. Then the client makes the command, which sets the
// bit and looks, and can refuse. While a trace of the session is running all arming is by command
// (Session.ArmByCommand). The daemon never reads READY, and of a line that the client
// scribbles on it believes the two other bits: too many events, or none, are the client's own.

const (
	armBits = protocol.ArmSolicited | protocol.ArmAll
	// cqHandles is how many completion queue handles a session has, or more if its limit
	// of queues is higher. Those beyond have no word in the arena.
	cqHandles = protocol.ArmCQs
)

// An arm is the arm line of one completion queue. The positions are free running.
type arm struct {
	word, ring, woken, urgent *atomic.Uint32 // in the arena; if it has no line for the handle, in own
	own                       [4]atomic.Uint32

	wokenAt, urgentAt mark
}

// A mark is a position in a ring, or none. A position is forgotten when the producer is a
// whole ring ahead of it.
type mark struct {
	at  uint32
	set bool
}

// open begins with the line of a handle, unarmed. ring is where the client finds the indices; 0
// means that arms give no events.
func (a *arm) open(arena *Arena, handle uint32, ring uint64) {
	a.find(arena, handle)
	a.woken.Store(protocol.ArmNone)
	a.urgent.Store(protocol.ArmNone)
	a.ring.Store(uint32(ring / pageSize))
	a.word.Store(protocol.ArmReady)
}

// find finds the line of a handle.
func (a *arm) find(arena *Arena, handle uint32) {
	a.word, a.ring, a.woken, a.urgent = &a.own[0], &a.own[1], &a.own[2], &a.own[3]
	if handle < protocol.ArmCQs {
		line := protocol.ArmWords + int(handle)*protocol.ArmStride
		a.word, a.ring = shared32(arena.mem, line), shared32(arena.mem, line+protocol.ArmRing)
		a.woken, a.urgent = shared32(arena.mem, line+protocol.ArmWoken), shared32(arena.mem, line+protocol.ArmUrgent)
	}
}

// resume continues with the line of a handle as it is; if the arena has none, with own.
func (a *arm) resume(arena *Arena, handle uint32, own []uint32) {
	for i := range min(len(own), len(a.own)) {
		a.own[i].Store(own[i])
	}
	a.find(arena, handle)
}

// move says that the completions between seen and prod are elsewhere, from position 0 on.
func (a *arm) move(ring uint64, seen, prod, mask uint32) {
	a.wokenAt.put(a.woken, 0, mask, false)
	a.urgentAt.put(a.urgent, a.urgentAt.at-seen, mask, a.urgentAt.set && a.urgentAt.at-seen-1 < prod-seen)
	a.ring.Store(uint32(ring / pageSize))
}

// close clears the arm line. From now on, arming the handle fails: there is no such queue.
func (a *arm) close() {
	a.word.Store(0)
	a.ring.Store(0)
}

// set arms it for the next completion, or the next that is solicited or an error.
func (a *arm) set(solicitedOnly bool) {
	if solicitedOnly {
		a.word.Or(protocol.ArmSolicited)
	} else {
		a.word.Or(protocol.ArmAll)
	}
}

// wants reports whether it is armed for a completion.
func (a *arm) wants(urgent bool) bool {
	w := a.word.Load() // after the producer index, which is stored atomically: see above
	return w&protocol.ArmAll != 0 || w&protocol.ArmSolicited != 0 && urgent
}

// fire disarms it. The client has polled what is before seen, and not what is between seen and prod.
func (a *arm) fire(seen, prod, mask uint32) {
	a.wokenAt.put(a.woken, seen, mask, seen != prod)
	a.word.And(^uint32(armBits))
}

// advance is called before the producer index becomes prod, by a completion that is urgent or not.
func (a *arm) advance(prod, mask uint32, urgent bool) {
	a.wokenAt.expire(a.woken, prod, mask)
	if urgent {
		a.urgentAt.put(a.urgent, prod, mask, true)
	} else {
		a.urgentAt.expire(a.urgent, prod, mask)
	}
}

// unannounced reports whether the client has not polled a completion between seen and prod, and
// had no event since it polled last; and whether one of them is urgent.
func (a *arm) unannounced(seen, prod uint32) (any, urgent bool) {
	if seen == prod || a.wokenAt.set && a.wokenAt.at == seen {
		return false, false
	}
	return true, a.urgentAt.set && a.urgentAt.at-seen-1 < prod-seen
}

func (m *mark) put(shared *atomic.Uint32, at, mask uint32, set bool) {
	*m = mark{at, set}
	if set {
		shared.Store(at & mask)
	} else {
		shared.Store(protocol.ArmNone)
	}
}

func (m *mark) expire(shared *atomic.Uint32, prod, mask uint32) {
	if m.set && prod-m.at > mask {
		m.set = false
		shared.Store(protocol.ArmNone)
	}
}

// ArmByCommand says whether the client has to arm its queues by command, which can be seen.
func (s *Session) ArmByCommand(on bool) {
	v := uint32(0)
	if on {
		v = 1
	}
	shared32(s.Arena.mem, protocol.ArmByCommand).Store(v)
}
