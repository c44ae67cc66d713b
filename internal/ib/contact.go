package ib

// Operations is a set of what the two sides of a connection may do to each other.
type Operations uint8

const (
	OpSend  Operations = 1 << iota
	OpWrite            // bind, flush and atomic write go with it
	OpRead
	OpAtomic

	AllOperations = OpSend | OpWrite | OpRead | OpAtomic
)

// A Contact is how a queue pair came to its peer, or is about to: what rules are about.
type Contact struct {
	Type Service
	By   Asker
	// ID is the service that was asked for, as a REQ or a SIDR REQ names it; 0 if By is Nobody.
	ID uint64
}

// Asker is who asked for a connection.
type Asker uint8

const (
	Nobody Asker = iota // a queue pair that its program connected by hand
	Us
	Them
)
