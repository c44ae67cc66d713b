package cm

import (
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// answerKept is how long a SIDR reply is kept for repeated requests.
const answerKept = ib.Time(15e9)

// Ask sends a SIDR request for the queue pair of a service.
func (m *Manager) Ask(now ib.Time, owner any, service uint64, path Path, private []byte) (*Conn, error) {
	mad := make(wire.MAD, wire.MADSize)
	req := wire.SIDRREQ(mad.Data())
	if len(private) > len(req.Private()) {
		return nil, ErrPrivate
	}
	c := m.newConn()
	c.Owner, c.Service, c.Path, c.Active = owner, service, path, true
	c.tid = uint64(m.Random())<<32 | uint64(c.LocalID)
	mad.InitCM(wire.CMSIDRREQ, c.tid)
	req.SetRequestID(c.LocalID)
	req.SetPKey(0xffff)
	req.SetServiceID(service)
	copy(req.Private(), private)
	m.enter(c, SidrReqSent)
	m.begin(now, c, mad)
	return c, nil
}

func (m *Manager) receiveSIDRREQ(from, to ib.GID, mad wire.MAD) {
	req := wire.SIDRREQ(mad.Data())
	key := question{from, req.RequestID()}
	if c := m.questions[key]; c != nil {
		if c.State == TimeWait {
			m.Env.Send(to, from, c.message)
		}
		return
	}
	c := m.newConn()
	c.State, c.Service, c.tid, c.RemoteID = SidrReqRcvd, req.ServiceID(), mad.TID(), key.id
	c.Path = Path{SGID: to, DGID: from}
	if status := m.Env.Question(c, req.Private()); status != 0 {
		if status != SidrIgnore {
			m.Env.Send(to, from, c.newSIDRREP(status, 0, 0, nil))
		}
		m.forget(c)
		return
	}
	m.questions[key] = c
}

// Answer answers a SIDR request. The reply is kept for a while, in case it is lost.
func (m *Manager) Answer(now ib.Time, c *Conn, status uint8, qpn, qkey uint32, private []byte) error {
	if c.State != SidrReqRcvd {
		return ErrState
	}
	if len(private) > len(wire.SIDRREP(make([]byte, wire.CMSize)).Private()) {
		return ErrPrivate
	}
	mad := c.newSIDRREP(status, qpn, qkey, private)
	m.Env.Send(c.Path.SGID, c.Path.DGID, mad)
	c.State, c.left, c.Owner = TimeWait, 0, nil
	m.await(c, mad, now+answerKept)
	m.limit(c)
	return nil
}

func (c *Conn) newSIDRREP(status uint8, qpn, qkey uint32, private []byte) wire.MAD {
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMSIDRREP, c.tid)
	rep := wire.SIDRREP(mad.Data())
	rep.SetRequestID(c.RemoteID)
	rep.SetStatus(status)
	rep.SetQPN(qpn)
	rep.SetQKey(qkey)
	rep.SetServiceID(c.Service)
	copy(rep.Private(), private)
	return mad
}

func (m *Manager) receiveSIDRREP(from ib.GID, mad wire.MAD) {
	rep := wire.SIDRREP(mad.Data())
	c := m.conns[rep.RequestID()]
	if c == nil || c.State != SidrReqSent || c.Path.DGID != from {
		return
	}
	c.RemoteQPN = rep.QPN()
	m.forget(c)
	m.notify(c, &Event{
		Kind: SidrReplied, Reason: uint16(rep.Status()), Params: Params{QPN: rep.QPN()}, QKey: rep.QKey(), Private: rep.Private(),
	})
}
