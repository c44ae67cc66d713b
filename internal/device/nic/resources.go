package nic

import (
	"vrdma.dev/vrdma/internal/ib"
)

// Descriptions of a session's objects, for tools that list them. Objects are identified by serial
// numbers, because handles mean nothing outside the session.

// PDStatus describes a protection domain.
type PDStatus struct {
	Serial uint32
	Users  int
}

// CQStatus describes a completion queue.
type CQStatus struct {
	Serial, CQE uint32
	Users       int
}

// MRStatus describes a memory region. It has no keys, because they are secret.
type MRStatus struct {
	Serial, PD uint32
	Length     uint64
}

// SRQStatus describes a shared receive queue.
type SRQStatus struct {
	Num, PD uint32
	QPs     []uint32 // that use it
}

// QPBrief describes a queue pair in few words.
type QPBrief struct {
	Num, PD, DestQPN uint32
	RecvPSN, SendPSN uint32 // the next to expect and to send
	Type             ib.Service
	State            ib.State
	Port, PathMig    uint8
}

// ListPDs describes the session's protection domains, in no order; so do the others.
func (s *Session) ListPDs() (out []PDStatus) {
	s.pds.walk(func(_ uint32, p *PD) { out = append(out, PDStatus{p.serial, p.refs}) })
	return out
}

// ListCQs describes its completion queues.
func (s *Session) ListCQs() (out []CQStatus) {
	s.cqs.walk(func(_ uint32, c *CQ) { out = append(out, CQStatus{c.serial, c.cqe, c.refs}) })
	return out
}

// ListMRs describes its memory regions.
func (s *Session) ListMRs() (out []MRStatus) {
	s.mrs.walk(func(_ uint32, m *MR) { out = append(out, MRStatus{m.serial, m.pd.serial, m.length}) })
	return out
}

// ListSRQs describes its shared receive queues.
func (s *Session) ListSRQs() (out []SRQStatus) {
	users := map[*SRQ][]uint32{}
	s.qps.walk(func(_ uint32, q *QP) {
		if q.srq != nil {
			users[q.srq] = append(users[q.srq], q.num)
		}
	})
	s.srqs.walk(func(_ uint32, r *SRQ) { out = append(out, SRQStatus{r.num, r.pd.serial, users[r]}) })
	return out
}

// ListQPs describes its queue pairs.
func (s *Session) ListQPs() (out []QPBrief) {
	s.qps.walk(func(_ uint32, q *QP) {
		t := q.tr.Snapshot()
		out = append(out, QPBrief{
			Num: q.num, PD: q.pd.serial, DestQPN: t.Attr.DestQPN, RecvPSN: t.Attr.RQPSN, SendPSN: t.Attr.SQPSN,
			Type: q.typ, State: t.State, Port: q.attr.PortNum, PathMig: q.attr.PathMig,
		})
	})
	return out
}

// Census counts a session's objects.
type Census struct{ PDs, CQs, QPs, MRs, SRQs int }

// Census counts the session's objects.
func (s *Session) Census() Census {
	return Census{PDs: s.pds.len(), CQs: s.cqs.len(), QPs: s.qps.len(), MRs: s.mrs.len(), SRQs: s.srqs.len()}
}
