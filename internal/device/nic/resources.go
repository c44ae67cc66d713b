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

// Objects describes what a session has. Its methods run on the session's loop, and return their results in no order.
type Objects struct{ of *Session }

// Objects returns the description of the session's objects.
func (s *Session) Objects() Objects { return Objects{s} }

// PDs describes the protection domains.
func (o Objects) PDs() (out []PDStatus) {
	o.of.pds.walk(func(_ uint32, p *PD) { out = append(out, PDStatus{p.serial, p.refs}) })
	return out
}

// CQs describes the completion queues.
func (o Objects) CQs() (out []CQStatus) {
	o.of.cqs.walk(func(_ uint32, c *CQ) { out = append(out, CQStatus{c.serial, c.cqe, c.refs}) })
	return out
}

// MRs describes the memory regions.
func (o Objects) MRs() (out []MRStatus) {
	o.of.mrs.walk(func(_ uint32, m *MR) { out = append(out, MRStatus{m.serial, m.pd.serial, m.length}) })
	return out
}

// SRQs describes the shared receive queues.
func (o Objects) SRQs() (out []SRQStatus) {
	users := map[*SRQ][]uint32{}
	o.of.qps.walk(func(_ uint32, q *QP) {
		if q.srq != nil {
			users[q.srq] = append(users[q.srq], q.num)
		}
	})
	o.of.srqs.walk(func(_ uint32, r *SRQ) { out = append(out, SRQStatus{r.num, r.pd.serial, users[r]}) })
	return out
}

// QPs describes the queue pairs.
func (o Objects) QPs() (out []QPBrief) {
	o.of.qps.walk(func(_ uint32, q *QP) {
		t := q.tr.Snapshot()
		out = append(out, QPBrief{
			Num: q.num, PD: q.pd.serial, DestQPN: t.Attr.DestQPN, RecvPSN: t.Attr.RQPSN, SendPSN: t.Attr.SQPSN,
			Type: q.typ, State: t.State, Port: q.attr.PortNum, PathMig: q.attr.PathMig,
		})
	})
	return out
}

// Census is the numbers of a session's objects.
type Census struct{ PDs, CQs, QPs, MRs, SRQs int }

// Census counts the objects.
func (o Objects) Census() Census {
	return Census{PDs: o.of.pds.len(), CQs: o.of.cqs.len(), QPs: o.of.qps.len(), MRs: o.of.mrs.len(), SRQs: o.of.srqs.len()}
}
