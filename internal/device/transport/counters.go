package transport

import "vrdma.dev/vrdma/internal/ib"

// Counters are the counters of a queue pair since its creation; RESET keeps them. Fields that rxe has
// too have the name of its hw_counter in their comment.
type Counters struct {
	SentPackets     uint64 `cbor:"1,keyasint,omitempty"` // sent_pkts
	SentBytes       uint64 `cbor:"2,keyasint,omitempty"`
	RcvdPackets     uint64 `cbor:"3,keyasint,omitempty"` // rcvd_pkts
	RcvdBytes       uint64 `cbor:"4,keyasint,omitempty"`
	Duplicates      uint64 `cbor:"5,keyasint,omitempty"`  // duplicate_request
	OutOfSequence   uint64 `cbor:"6,keyasint,omitempty"`  // out_of_seq_request
	RcvdRNR         uint64 `cbor:"7,keyasint,omitempty"`  // rcvd_rnr_err
	SentRNR         uint64 `cbor:"8,keyasint,omitempty"`  // send_rnr_err
	RcvdSequenceErr uint64 `cbor:"9,keyasint,omitempty"`  // rcvd_seq_err
	AckDeferred     uint64 `cbor:"10,keyasint,omitempty"` // ack_deferred
	RetryExceeded   uint64 `cbor:"11,keyasint,omitempty"` // retry_exceeded_err
	RNRExceeded     uint64 `cbor:"12,keyasint,omitempty"` // retry_rnr_exceeded_err
	Retries         uint64 `cbor:"13,keyasint,omitempty"` // completer_retry_err: number of times the requester went back
	SendErrors      uint64 `cbor:"14,keyasint,omitempty"` // send_err
	RDMASends       uint64 `cbor:"15,keyasint,omitempty"` // rdma_sends
	RDMARecvs       uint64 `cbor:"16,keyasint,omitempty"` // rdma_recvs

	Timeouts      uint64 `cbor:"17,keyasint,omitempty"` // local ACK timeouts
	Retransmitted uint64 `cbor:"18,keyasint,omitempty"` // packets sent again
	Probes        uint64 `cbor:"19,keyasint,omitempty"` // packets sent again early to learn what has arrived
	Repairs       uint64 `cbor:"20,keyasint,omitempty"` // gaps reported by the responder for which only the missing packets were sent
	Stashed       uint64 `cbor:"21,keyasint,omitempty"` // requests stored because an earlier one was missing
	ImplicitNaks  uint64 `cbor:"22,keyasint,omitempty"` // responses that showed that an earlier one was lost
	AccessErrors  uint64 `cbor:"23,keyasint,omitempty"` // requests refused because of key, bounds or rights
	Denied        uint64 `cbor:"24,keyasint,omitempty"` // requests of either side refused by QP.Deny
	BadPKey       uint64 `cbor:"25,keyasint,omitempty"` // dropped: P_Key violation
	BadQKey       uint64 `cbor:"26,keyasint,omitempty"` // dropped: Q_Key violation
	Dropped       uint64 `cbor:"27,keyasint,omitempty"` // dropped without an answer: wrong peer, wrong state, no receive, stale
	// WrongPeer and NoReceive are parts of Dropped.
	WrongPeer uint64 `cbor:"28,keyasint,omitempty"` // not from the peer that the queue pair is connected to
	NoReceive uint64 `cbor:"29,keyasint,omitempty"` // datagrams and unreliable messages without a receive, or with a receive too short

	// Messages by operation. SentMessages counts each message once, when its last packet is sent the first
	// time. RcvdMessages counts messages that were executed.
	SentMessages [NumOps]uint64 `cbor:"30,keyasint,omitzero"`
	RcvdMessages [NumOps]uint64 `cbor:"31,keyasint,omitzero"`
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
