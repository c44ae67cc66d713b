package simnet

import "vrdma/internal/transport"

// Defaults for a connected pair: what perftest and most applications ask for.
func Defaults() transport.Attr {
	return transport.Attr{
		MTU: 1024, PKey: 0xffff, MaxRDAtomic: 16, MaxDestRDAtomic: 16,
		MinRNRTimer: 12, Timeout: 14, RetryCount: 7, RNRRetry: 7,
		Access: transport.AccessRemoteWrite | transport.AccessRemoteRead | transport.AccessRemoteAtomic |
			transport.AccessFlushGlobal,
	}
}

// AllAccess is every right a region can give.
const AllAccess = transport.AccessLocalWrite | transport.AccessRemoteWrite | transport.AccessRemoteRead |
	transport.AccessRemoteAtomic | transport.AccessFlushGlobal

// Masks of the usual way up.
const (
	maskInit = transport.MaskState | transport.MaskPKey | transport.MaskPort | transport.MaskAccess
	maskRTR  = transport.MaskState | transport.MaskAV | transport.MaskMTU | transport.MaskDestQPN | transport.MaskRQPSN |
		transport.MaskMaxDestRDAtomic | transport.MaskMinRNRTimer
	maskRTS = transport.MaskState | transport.MaskSQPSN | transport.MaskTimeout | transport.MaskRetryCount |
		transport.MaskRNRRetry | transport.MaskMaxRDAtomic
)

// Connect brings a and b to RTS as each other's peers. The send PSN of each comes from
// its own attributes.
func (n *Net) Connect(a, b *Endpoint, aa, ba transport.Attr) {
	n.ToRTR(a, b, aa, ba.SQPSN)
	n.ToRTR(b, a, ba, aa.SQPSN)
	n.ToRTS(a, aa)
	n.ToRTS(b, ba)
}

// ToRTR brings e to RTR with peer as its peer.
func (n *Net) ToRTR(e, peer *Endpoint, a transport.Attr, rqPSN uint32) {
	a.State = transport.Init
	e.QP.Modify(&a, maskInit, n.Now, e)
	a.State, a.RQPSN, a.DestQPN = transport.RTR, rqPSN, peer.Num
	a.SGID, a.DGID = e.GID, peer.GID
	e.QP.Modify(&a, maskRTR, n.Now, e)
}

// ToRTS brings e on to RTS.
func (n *Net) ToRTS(e *Endpoint, a transport.Attr) {
	a.State = transport.RTS
	e.QP.Modify(&a, maskRTS, n.Now, e)
}

// Datagram brings a UD endpoint to RTS.
func (n *Net) Datagram(e *Endpoint, a transport.Attr) {
	a.State = transport.Init
	e.QP.Modify(&a, transport.MaskState|transport.MaskPKey|transport.MaskPort|transport.MaskQKey, n.Now, e)
	a.State, a.SGID = transport.RTR, e.GID
	e.QP.Modify(&a, transport.MaskState|transport.MaskAV, n.Now, e)
	a.State = transport.RTS
	e.QP.Modify(&a, transport.MaskState|transport.MaskSQPSN, n.Now, e)
}

// Modify moves e to a state and nothing else.
func (n *Net) Modify(e *Endpoint, s transport.State) {
	e.QP.Modify(&transport.Attr{State: s}, transport.MaskState, n.Now, e)
	e.deadline = e.QP.Deadline()
}
