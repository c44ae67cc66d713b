package transport

import "vrdma.dev/vrdma/internal/ib"

// Counters is what a queue pair counted since it was created; RESET keeps it. The
// fields that rxe has too carry its hw_counters name in their comment.
type Counters struct {
	SentPackets     uint64 // sent_pkts
	SentBytes       uint64
	RcvdPackets     uint64 // rcvd_pkts
	RcvdBytes       uint64
	Duplicates      uint64 // duplicate_request
	OutOfSequence   uint64 // out_of_seq_request
	RcvdRNR         uint64 // rcvd_rnr_err
	SentRNR         uint64 // send_rnr_err
	RcvdSequenceErr uint64 // rcvd_seq_err
	AckDeferred     uint64 // ack_deferred
	RetryExceeded   uint64 // retry_exceeded_err
	RNRExceeded     uint64 // retry_rnr_exceeded_err
	Retries         uint64 // completer_retry_err: times the requester went back
	SendErrors      uint64 // send_err
	RDMASends       uint64 // rdma_sends
	RDMARecvs       uint64 // rdma_recvs

	Timeouts      uint64 // local ACK timeouts
	Retransmitted uint64 // packets sent again
	Probes        uint64 // packets sent again early to find out what arrived
	Repairs       uint64 // gaps that the responder named and nothing else was sent for
	Stashed       uint64 // requests kept because an earlier one was missing
	ImplicitNaks  uint64 // responses that showed an earlier one was lost
	AccessErrors  uint64 // requests refused for key, bounds or rights
	Denied        uint64 // requests refused, ours and the peer's, for operations that were taken away
	BadPKey       uint64 // dropped: P_Key violation
	BadQKey       uint64 // dropped: Q_Key violation
	Dropped       uint64 // dropped in silence: wrong peer, wrong state, no receive, stale
	// Of these:
	WrongPeer uint64 // not from the peer that the queue pair is connected to
	NoReceive uint64 // datagrams and unreliable messages for which no receive, or too short a one, was posted

	// Messages by operation: those that left whole, each once however often it was sent again, and
	// those that arrived and were carried out.
	SentMessages, RcvdMessages [NumOps]uint64
}

// Snapshot is what a query or a status page wants to know.
type Snapshot struct {
	Type        ib.Service
	Num         uint32
	State       ib.State
	Attr        Attr // SQPSN and RQPSN are the next to send and to expect
	SQDraining  bool
	SendTail    uint32 // position of the oldest uncompleted work request
	SendPos     uint32 // position of the one being sent
	OldestPSN   uint32 // oldest unacknowledged
	Outstanding uint32 // packets in flight
	RDOut       uint32 // READs and atomics in flight
	RetriesLeft uint8
	RNRLeft     uint8
	MSN         uint32
	Responses   uint32 // READ and atomic responses still owed
	Path        Path
	Window      uint32  // packets that may be in flight
	RTT         ib.Time // smoothed; 0: not known
	Rate        uint32  // of what is not acknowledged, bytes in a millisecond; 0: no limit
	Counters    Counters
}

// Snapshot describes q as it is now.
func (q *QP) Snapshot() Snapshot {
	c, r, rs := &q.common, &q.req, &q.resp
	a := c.Attr
	a.State, a.SQPSN, a.RQPSN = c.State, r.PSN, rs.PSN
	return Snapshot{
		Type: c.Conf.Type, Num: c.Conf.Num, State: c.State, Attr: a,
		SQDraining: c.State == ib.StateSQD && !r.Drained,
		SendTail:   r.Tail, SendPos: r.Pos,
		OldestPSN: r.Una, Outstanding: ib.PSNDist(r.Una, r.Max), RDOut: r.RDOut,
		RetriesLeft: r.Loss.Retry, RNRLeft: r.Loss.RNRRetry,
		MSN: rs.MSN, Responses: uint32(rs.Res.Pending), Counters: c.Count,
		Path: c.Path, Window: r.CC.Window, RTT: r.CC.SRTT, Rate: c.Pace.Rate,
	}
}
