package ib

// Operations is a set of the operations that the two sides of a connection may use on each other.
type Operations uint8

const (
	OpSend  Operations = 1 << iota
	OpWrite            // includes bind, flush and atomic write
	OpRead
	OpAtomic

	AllOperations = OpSend | OpWrite | OpRead | OpAtomic
)

// A Contact describes how a queue pair was connected, or is about to be. Policy rules refer to it.
type Contact struct {
	Type Service
	By   Asker
	// ID is the service ID of the REQ or SIDR REQ; 0 if By is Nobody.
	ID uint64
}

// Asker is the side that requested a connection.
type Asker uint8

const (
	Nobody Asker = iota // the program connected the queue pair itself, without rdma_cm
	Us
	Them
)
