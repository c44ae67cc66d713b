package schedule

import (
	"math/bits"

	"vrdma.dev/vrdma/internal/ib"
)

// A wheel is a timing wheel of the NICs and tenants that are over a cap, until their buckets hold enough. Each slot is a list of
// those whose time lies in it. Longer waits than the wheel's span are put into the last slot, and inserted again from there.
type wheel struct {
	n     int
	tick  int64 // all slots before it are empty
	slots *[wheelSlots]*hook
	used  [wheelSlots / 64]uint64 // a bit for each slot that is not empty
}

const (
	wheelSlots = 1024
	slotBits   = 14 // a slot is 16 µs
)

// A hook is an entry in the wheel.
type hook struct {
	next, prev *hook
	at         ib.Time
	slot       int // 1 + index; 0: in none
	what       waits
	nic        *NIC
	tenant     *Tenant
}

// waits is the action when a hook's time has come.
type waits uint8

const (
	nicParked    waits = iota // a NIC may have turns again
	tenantParked              // a tenant may have turns again
	guaranteed                // a NIC has a part of its guarantee again
	gate                      // traffic may be sent to a NIC again
)

// wait inserts h for the time at, or earlier if it is already waiting for an earlier time.
func (w *wheel) wait(h *hook, at, now ib.Time) {
	if h.slot != 0 {
		if h.at <= at {
			return
		}
		w.remove(h)
	}
	w.n++
	h.at = at
	tick := int64(at) >> slotBits
	if w.n == 1 {
		w.tick = int64(now) >> slotBits // the wheel was empty and its tick is old
	}
	tick = max(min(tick, w.tick+wheelSlots-1), w.tick)
	i := int(tick & (wheelSlots - 1))
	if h.slot, h.prev, h.next = i+1, nil, w.slots[i]; h.next != nil {
		h.next.prev = h
	}
	w.slots[i] = h
	w.used[i/64] |= 1 << (i % 64)
}

func (w *wheel) remove(h *hook) {
	i := h.slot - 1
	if h.prev == nil {
		w.slots[i] = h.next
	} else {
		h.prev.next = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	if w.slots[i] == nil {
		w.used[i/64] &^= 1 << (i % 64)
	}
	h.next, h.prev, h.slot = nil, nil, 0
	w.n--
}

// first returns the tick of the first slot that is not empty.
func (w *wheel) first() int64 {
	begin := uint(w.tick) & (wheelSlots - 1)
	for i := range uint(wheelSlots/64 + 1) {
		at := (begin/64 + i) % (wheelSlots / 64)
		word := w.used[at]
		if i == 0 {
			word &= ^uint64(0) << (begin % 64)
		} else if i == wheelSlots/64 {
			word &= 1<<(begin%64) - 1
		}
		if word != 0 {
			slot := at*64 + uint(bits.TrailingZeros64(word))
			return w.tick + int64((slot-begin)&(wheelSlots-1))
		}
	}
	return w.tick
}

// due returns the time of the next pop; 0 means never.
func (w *wheel) due() ib.Time {
	if w.n == 0 {
		return 0
	}
	return ib.Time((w.first() + 1) << slotBits)
}

// pop removes a hook whose slot has passed; nil if there is none.
func (w *wheel) pop(now ib.Time) *hook {
	over := int64(now) >> slotBits
	for w.n > 0 {
		t := w.first()
		if w.tick = max(w.tick, min(t, over)); t >= over {
			return nil
		}
		h := w.slots[t&(wheelSlots-1)]
		w.remove(h)
		if int64(h.at)>>slotBits < over {
			return h
		}
		w.wait(h, h.at, now) // its time is beyond the wheel's span: insert it again
	}
	return nil
}
