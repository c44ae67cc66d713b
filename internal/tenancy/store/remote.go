package store

import "time"

// A Remote is a store that the daemons of many hosts share. Each has a copy of it, which List
// and Watch read, so they work while the store is away; Commit needs the store.
type Remote interface {
	Store
	// Health says how the copy stands to the store.
	Health() Health
	// Changed is closed when Health's State has changed since the call.
	Changed() <-chan struct{}
	// Alive keeps an entry in the store while this process is there: it goes when the store
	// has not heard of us for ttl. It is put again when the store was away for longer. Before
	// stop is called nobody else writes this key. To stop leaves the entry until its time is
	// over: a daemon that starts again soon was never away.
	Alive(key string, value []byte, ttl time.Duration) (stop func())
}

// A State is what Health says in a word.
type State string

const (
	InStep State = "in step" // the copy is the store, as of some milliseconds ago
	Away   State = "away"    // the store does not answer: the copy is as old as Heard
	// Strange: it answers, and is not the store that the copy is of. Nothing is taken over,
	// nothing can be committed.
	Strange State = "strange"
)

// Health is how a copy stands to its store.
type Health struct {
	State State
	// Heard is when the store last answered; zero: it never has.
	Heard time.Time
	// Why is the last error, if it is not in step.
	Why error
	// Problems are entries that cannot be what they should, and were left out.
	Problems []string
}
