package simnet

import (
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Defaults returns the attributes that perftest and most applications use.
func Defaults() transport.Attr {
	return transport.Attr{
		MTU: 1024, PKey: 0xffff, MaxRDAtomic: 16, MaxDestRDAtomic: 16,
		MinRNRTimer: 12, Timeout: 14, RetryCount: 7, RNRRetry: 7,
		Access: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic |
			ib.AccessFlushGlobal,
	}
}

// AllAccess is every access right of a region.
const AllAccess = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead |
	ib.AccessRemoteAtomic | ib.AccessFlushGlobal

// Attribute masks of the transitions to RTR and RTS.
const (
	maskInit = ib.MaskState | ib.MaskPKey | ib.MaskPort | ib.MaskAccess
	maskRTR  = ib.MaskState | ib.MaskAV | ib.MaskMTU | ib.MaskDestQPN | ib.MaskRQPSN |
		ib.MaskMaxDestRDAtomic | ib.MaskMinRNRTimer
	maskRTS = ib.MaskState | ib.MaskSQPSN | ib.MaskTimeout | ib.MaskRetryCount |
		ib.MaskRNRRetry | ib.MaskMaxRDAtomic
)

// Connect brings a and b to RTS, connected to each other. Each takes its send PSN from its own attributes.
func (n *Net) Connect(a, b *Endpoint, aa, ba transport.Attr) {
	n.ToRTR(a, b, aa, ba.SQPSN)
	n.ToRTR(b, a, ba, aa.SQPSN)
	n.ToRTS(a, aa)
	n.ToRTS(b, ba)
}

// ToRTR brings e to RTR, connected to peer.
func (n *Net) ToRTR(e, peer *Endpoint, a transport.Attr, rqPSN uint32) {
	a.State = ib.StateInit
	e.QP.Modify(&a, maskInit, e.now(), e.Env())
	a.State, a.RQPSN, a.DestQPN = ib.StateRTR, rqPSN, peer.Num
	e.peer = peer
	a.SGID, a.DGID = e.GID, peer.GID
	e.QP.Modify(&a, maskRTR, e.now(), e.Env())
}

// ToRTS brings e from RTR to RTS.
func (n *Net) ToRTS(e *Endpoint, a transport.Attr) {
	a.State = ib.StateRTS
	e.QP.Modify(&a, maskRTS, e.now(), e.Env())
}

// Datagram brings a UD endpoint to RTS.
func (n *Net) Datagram(e *Endpoint, a transport.Attr) {
	a.State = ib.StateInit
	e.QP.Modify(&a, ib.MaskState|ib.MaskPKey|ib.MaskPort|ib.MaskQKey, e.now(), e.Env())
	a.State, a.SGID = ib.StateRTR, e.GID
	e.QP.Modify(&a, ib.MaskState|ib.MaskAV, e.now(), e.Env())
	a.State = ib.StateRTS
	e.QP.Modify(&a, ib.MaskState|ib.MaskSQPSN, e.now(), e.Env())
}

// Modify changes only the state of e.
func (n *Net) Modify(e *Endpoint, s ib.State) {
	e.QP.Modify(&transport.Attr{State: s}, ib.MaskState, e.now(), e.Env())
	e.rearm()
}
