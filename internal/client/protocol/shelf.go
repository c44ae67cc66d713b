package protocol

// This file has the shelf after a mailbox, from which a client takes events without a command; protocol.h explains it. The client
// can write anything there: the daemon accepts only plausible values (rdmacm.Channel).

// Taken returns the number of the next event to take.
func (m *Mail) Taken() uint64 { return m.long(ShelfTaken).Load() >> 1 }

// Lay puts event number n on the shelf as the reply b. The client sees it after SetReady. Lay returns false if the reply does not fit.
func (m *Mail) Lay(n uint64, b []byte) bool {
	if len(b) > ShelfStride-ShelfReply {
		return false
	}
	at := slotAt(n)
	copy(m.mem[at+ShelfReply:at+ShelfStride], b)
	m.word(at).Store(uint32(len(b)))
	return true
}

// SetReady makes the events below n visible.
func (m *Mail) SetReady(n uint64) { m.long(ShelfReady).Store(n) }

// Claim takes event n, so that the client cannot; it returns false if the client has taken some.
func (m *Mail) Claim(n uint64) bool { return m.long(ShelfTaken).CompareAndSwap(n<<1, (n+1)<<1) }

// Freeze keeps the client from taking events until Thaw, and returns Taken.
func (m *Mail) Freeze() uint64 { return m.long(ShelfTaken).Or(ShelfFrozen) >> 1 }

// Thaw reverts Freeze; n is the number of the next event.
func (m *Mail) Thaw(n uint64) { m.long(ShelfTaken).Store(n << 1) }

func slotAt(n uint64) int { return ShelfSlot + ShelfStride*int(n%ShelfSlots) }

// Pick is the client's side: it takes an event and copies its reply into buf, which is large enough for any. It returns false if
// the client must send a command.
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
