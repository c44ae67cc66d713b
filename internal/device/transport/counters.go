package transport

import "vrdma.dev/vrdma/internal/ib"

// Counters are the counters of a queue pair since its creation; RESET keeps them. Fields that rxe has
// too have the name of its hw_counter in their comment.
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
	Retries         uint64 // completer_retry_err: number of times the requester went back
	SendErrors      uint64 // send_err
	RDMASends       uint64 // rdma_sends
	RDMARecvs       uint64 // rdma_recvs

	Timeouts      uint64 // local ACK timeouts
	Retransmitted uint64 // packets sent again
	Probes        uint64 // packets sent again early to learn what has arrived
	Repairs       uint64 // gaps reported by the responder for which only the missing packets were sent
	Stashed       uint64 // requests stored because an earlier one was missing
	ImplicitNaks  uint64 // responses that showed that an earlier one was lost
	AccessErrors  uint64 // requests refused because of key, bounds or rights
	Denied        uint64 // requests of either side refused by QP.Deny
	BadPKey       uint64 // dropped: P_Key violation
	BadQKey       uint64 // dropped: Q_Key violation
	Dropped       uint64 // dropped without an answer: wrong peer, wrong state, no receive, stale
	// WrongPeer and NoReceive are parts of Dropped.
	WrongPeer uint64 // not from the peer that the queue pair is connected to
	NoReceive uint64 // datagrams and unreliable messages without a receive, or with a receive too short

	// Messages by operation. SentMessages counts each message once, when its last packet is sent the first
	// time. RcvdMessages counts messages that were executed.
	SentMessages, RcvdMessages [NumOps]uint64
}

// Snapshot is a copy of a queue pair's state, for queries and status pages.
type Snapshot struct {
	Type        ib.Service
	Num         uint32
	State       ib.State
	Attr        Attr // SQPSN is the next PSN to send, RQPSN the next expected
	SQDraining  bool
	SendTail    uint32 // position of the oldest uncompleted work request
	SendPos     uint32 // position of the one being sent
	OldestPSN   uint32 // oldest unacknowledged
	Outstanding uint32 // packets in flight
	RDOut       uint32 // READs and atomics in flight
	RetriesLeft uint8
	RNRLeft     uint8
	MSN         uint32
	Responses   uint32 // pending READ and atomic responses
	Path        Path
	Window      uint32  // maximum packets in flight
	RTT         ib.Time // smoothed; 0: unknown
	Rate        uint32  // the pacer's limit, in bytes per millisecond; 0: none
	Counters    Counters
}

// Snapshot returns the current state of q.
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
