package transport

import "vrdma.dev/vrdma/internal/ib"

// An Op is the category in which a message is counted: the right that it needs. So a flush and an atomic
// write count as writes.
type Op uint8

const (
	OpSend Op = iota
	OpWrite
	OpRead
	OpAtomic
	OpUD // a datagram
	NumOps
)

var opNames = [NumOps]string{"send", "write", "read", "atomic", "ud"}

func (o Op) String() string { return opNames[o] }

// opOf maps the kind of a request's burst to its category. Other kinds map to a category that is never
// counted.
var opOf = [...]Op{
	KindSend: OpSend, KindSendImm: OpSend, KindSendInv: OpSend,
	KindWrite: OpWrite, KindWriteImm: OpWrite, KindAtomicWrite: OpWrite, KindFlush: OpWrite,
	KindReadReq: OpRead, KindCmpSwap: OpAtomic, KindFetchAdd: OpAtomic,
}

// countMessage counts a message whose last burst is b.
func (c *common) countMessage(l *[NumOps]uint64, b *Burst) {
	op := opOf[b.Kind]
	if c.Conf.Type == ib.UD {
		op = OpUD
	}
	l[op]++
}
