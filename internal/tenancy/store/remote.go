package store

import "time"

// A Remote is a store that the daemons of many hosts share. Each has a copy, which List and Watch read, also while the
// store is away. Commit needs the store.
type Remote interface {
	Store
	// Health is the state of the copy.
	Health() Health
	// Changed is closed when Health's State has changed since the call.
	Changed() <-chan struct{}
	// Alive keeps an entry in the store while this process runs. The entry expires ttl after the last heartbeat, and is
	// put again after a longer outage. No other client writes this key before stop is called. stop leaves the entry
	// until it expires, so that a quick restart is not visible.
	Alive(key string, value []byte, ttl time.Duration) (stop func())
}

// A State is a copy's relation to its store.
type State string

const (
	InStep State = "in step" // the copy is some milliseconds behind
	Away   State = "away"    // the store does not answer: the copy is as old as Heard
	// Strange: another store answers. Nothing is applied, and nothing can be committed.
	Strange State = "strange"
)

// Health describes the state of a copy.
type Health struct {
	State State
	// Heard is when the store last answered; zero: it never has.
	Heard time.Time
	// Why is the last error, if it is not in step.
	Why error
	// Problems are invalid entries that were left out.
	Problems []string
}
