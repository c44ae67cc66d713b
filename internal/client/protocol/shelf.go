package protocol

// The shelf behind a mailbox, from which a client takes events by itself; protocol.h says how. The
// client can write anything there: the daemon believes it only what can be (rdmacm.Channel).

// Taken returns the number of the event that is taken next.
func (m *Mail) Taken() uint64 { return m.long(ShelfTaken).Load() >> 1 }

// Lay puts event number n on the shelf, as the reply b, where it is not seen before SetReady;
// false: it does not fit.
func (m *Mail) Lay(n uint64, b []byte) bool {
	if len(b) > ShelfStride-ShelfReply {
		return false
	}
	at := slotAt(n)
	copy(m.mem[at+ShelfReply:at+ShelfStride], b)
	m.word(at).Store(uint32(len(b)))
	return true
}

// SetReady says that the events below n are there.
func (m *Mail) SetReady(n uint64) { m.long(ShelfReady).Store(n) }

// Claim takes event n, so that the client cannot; false: it has taken some.
func (m *Mail) Claim(n uint64) bool { return m.long(ShelfTaken).CompareAndSwap(n<<1, (n+1)<<1) }

// Freeze has the client take nothing until Thaw, and returns what Taken will be until then.
func (m *Mail) Freeze() uint64 { return m.long(ShelfTaken).Or(ShelfFrozen) >> 1 }

// Thaw undoes Freeze; n is the number of the next event.
func (m *Mail) Thaw(n uint64) { m.long(ShelfTaken).Store(n << 1) }

func slotAt(n uint64) int { return ShelfSlot + ShelfStride*int(n%ShelfSlots) }

// Pick returns the client's side: it takes an event and copies its reply into buf, which has room for
// any; false: it has to ask.
func (m *Mail) Pick(buf []byte) (int, bool) {
	for {
		t := m.long(ShelfTaken).Load()
		if t&ShelfFrozen != 0 || t>>1 >= m.long(ShelfReady).Load() {
			return 0, false
		}
		at := slotAt(t >> 1)
		n := min(m.word(at).Load(), ShelfStride-ShelfReply)
		copy(buf, m.mem[at+ShelfReply:at+ShelfReply+int(n)])
		if m.long(ShelfTaken).CompareAndSwap(t, t+2) {
			return int(n), true
		}
	}
}
