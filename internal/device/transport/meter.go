package transport

import "vrdma.dev/vrdma/internal/ib"

// An Op is what a message counts as: the right that it needs. So a flush and an atomic write
// are writes.
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

// opOf is what a request counts as, by the kind of the burst that carries it; kinds that carry
// none count as nothing that is ever counted.
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
