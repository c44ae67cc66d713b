package protocol

// This file has answers in advance (see protocol.h): the daemon's side of the words after a mailbox, and the side of a Go client.
// A client that writes there gets old answers or none, and harms only itself.

// Ahead reports whether the mailbox has revisions after it.
func (m *Mail) Ahead() bool { return len(m.mem) >= AheadSize }

// Revision returns the revision of an identifier.
func (m *Mail) Revision(id uint32) uint64 { return m.long(revisionAt(id)).Load() }

// Revoke invalidates the answers about an identifier.
func (m *Mail) Revoke(id uint32) { m.long(revisionAt(id)).Add(1) }

// RevokeAll invalidates all answers.
func (m *Mail) RevokeAll() {
	for id := range uint32(AheadIDs) {
		m.Revoke(id)
	}
}

// SetEvents sets the number of waiting events; Events returns it.
func (m *Mail) SetEvents(n int)    { m.word(AheadEvents).Store(uint32(n)) }
func (m *Mail) Events() (n uint32) { return m.word(AheadEvents).Load() }

func revisionAt(id uint32) int { return AheadRevisions + 8*int(id%AheadIDs) }
