package protocol

// Answers ahead: protocol.h says what they are. This is the daemon's side of the words behind a
// mailbox, and what a client in Go does with them. A client that writes there is told old
// answers, or none, and harms itself.

// Ahead reports whether there are revisions behind the mailbox.
func (m *Mail) Ahead() bool { return len(m.mem) >= AheadSize }

// Revision returns the revision of an identifier.
func (m *Mail) Revision(id uint32) uint64 { return m.long(revisionAt(id)).Load() }

// Revoke takes back what was said about an identifier.
func (m *Mail) Revoke(id uint32) { m.long(revisionAt(id)).Add(1) }

// RevokeAll takes back everything.
func (m *Mail) RevokeAll() {
	for id := range uint32(AheadIDs) {
		m.Revoke(id)
	}
}

// SetEvents says how many events wait; Events is how many.
func (m *Mail) SetEvents(n int)    { m.word(AheadEvents).Store(uint32(n)) }
func (m *Mail) Events() (n uint32) { return m.word(AheadEvents).Load() }

func revisionAt(id uint32) int { return AheadRevisions + 8*int(id%AheadIDs) }
