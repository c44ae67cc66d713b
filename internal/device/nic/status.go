package nic

import (
	"time"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Counters are the sums of a NIC's queue pairs, dead ones included, and what the NIC counts
// itself. None ever falls.
type Counters struct {
	transport.Counters
	Drops     [NumReasons]uint64 // packets, those of queue pairs included
	Refusals  Refusals
	Connected uint64  // queue pairs that were given a peer
	LoopTime  ib.Time // of the loop
	Delays    Delays
}

// add sums o into c.
func (c *Counters) add(o *transport.Counters) {
	c.SentPackets += o.SentPackets
	c.SentBytes += o.SentBytes
	c.RcvdPackets += o.RcvdPackets
	c.RcvdBytes += o.RcvdBytes
	c.Duplicates += o.Duplicates
	c.OutOfSequence += o.OutOfSequence
	c.RcvdRNR += o.RcvdRNR
	c.SentRNR += o.SentRNR
	c.RcvdSequenceErr += o.RcvdSequenceErr
	c.AckDeferred += o.AckDeferred
	c.RetryExceeded += o.RetryExceeded
	c.RNRExceeded += o.RNRExceeded
	c.Retries += o.Retries
	c.SendErrors += o.SendErrors
	c.RDMASends += o.RDMASends
	c.RDMARecvs += o.RDMARecvs
	c.Timeouts += o.Timeouts
	c.Retransmitted += o.Retransmitted
	c.Probes += o.Probes
	c.Repairs += o.Repairs
	c.Stashed += o.Stashed
	c.ImplicitNaks += o.ImplicitNaks
	c.AccessErrors += o.AccessErrors
	c.Denied += o.Denied
	c.BadPKey += o.BadPKey
	c.BadQKey += o.BadQKey
	c.Dropped += o.Dropped
	c.WrongPeer += o.WrongPeer
	c.NoReceive += o.NoReceive
	addMessages(&c.SentMessages, &o.SentMessages)
	addMessages(&c.RcvdMessages, &o.RcvdMessages)
}

// Counters sums up the NIC.
func (n *NIC) Counters() (c Counters) {
	n.ReadCounters(&c)
	return c
}

// ReadCounters is Counters into memory of the caller, for a caller that reads many NICs.
func (n *NIC) ReadCounters(c *Counters) {
	c.Counters = n.retired.Counters
	for _, q := range n.qps {
		c.add(q.tr.Counters())
	}
	c.Refusals = n.rules.count
	n.tally.fill(c)
}

// QPStatus describes a queue pair.
type QPStatus struct {
	Handle, Num uint32
	Type        ib.Service
	Snapshot    transport.Snapshot
	SendPosted  uint32
	RecvPosted  uint32
	SRQ         bool
	Aside       bool // its memory is reached by copying only
}

// mostRegions is how many regions of a session Status describes one by one.
const mostRegions = 1000

// RegionStatus says how the bytes of a memory region are reached.
type RegionStatus struct {
	Handle uint32
	Length uint64
	Usage  memory.Usage
}

// SessionStatus describes a session.
type SessionStatus struct {
	Pid                                  int
	Program                              string
	Opened                               time.Time
	PDs, CQs, MRs, MWs, SRQs, AHs, Chans int
	MRBytes                              uint64
	Usage                                memory.Usage   // of all regions
	Regions                              []RegionStatus // the first of them
	RingBytes                            uint64
	QPs                                  []QPStatus
}

// Status describes the session.
func (s *Session) Status() SessionStatus {
	if s.closed { // its arena may be gone
		return SessionStatus{Pid: s.Pid, Program: s.Program, Opened: s.opened}
	}
	st := SessionStatus{
		Pid: s.Pid, Program: s.Program, Opened: s.opened,
		PDs: s.pds.len(), CQs: s.cqs.len(), MRs: s.mrs.len(), MWs: s.mws.len(), SRQs: s.srqs.len(), AHs: s.ahs.len(),
		Chans: s.channels.len(), RingBytes: s.Arena.inUse(),
	}
	aside := s.loop != nil && s.owner != nil && s.loop.foreign.asides.all(s)
	s.mrs.walk(func(h uint32, m *MR) {
		st.MRBytes += m.length
		if m.region == nil {
			return
		}
		u := m.region.Usage()
		if aside {
			u = u.Aside()
		}
		st.Usage.Add(u)
		if len(st.Regions) < mostRegions {
			st.Regions = append(st.Regions, RegionStatus{Handle: h, Length: m.length, Usage: u})
		}
	})
	s.qps.walk(func(h uint32, q *QP) {
		qs := QPStatus{
			Handle: h, Num: q.num, Type: q.typ, Snapshot: q.tr.Snapshot(), SendPosted: q.sq.posted(), SRQ: q.srq != nil, Aside: q.Aside(),
		}
		if q.rq.mem != nil {
			qs.RecvPosted = q.rq.posted()
		}
		st.QPs = append(st.QPs, qs)
	})
	return st
}
