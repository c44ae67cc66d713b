package cm

import (
	"encoding/binary"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// Message types that a REJ can reject.
const (
	rejectsREQ   = 0
	rejectsREP   = 1
	rejectsOther = 2
)

// reject sends a REJ.
func (m *Manager) reject(c *Conn, reason uint16, private []byte) {
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMREJ, c.tid)
	rej := wire.REJ(mad.Data())
	rej.SetLocalCommID(c.LocalID)
	rej.SetRemoteCommID(c.RemoteID)
	rej.SetReason(reason)
	switch c.State {
	case ReqRcvd:
		rej.SetLocalCommID(0)
		rej.SetMessage(rejectsREQ)
	case RepRcvd:
		rej.SetMessage(rejectsREP)
	default:
		rej.SetMessage(rejectsOther)
	}
	if reason == RejectTimeout {
		// The peer's communication ID may be unknown: the peer finds the connection by our ID and our device.
		rej.SetInfoLength(8)
		binary.BigEndian.PutUint64(rej.Info(), m.GUID)
	}
	copy(rej.Private(), private)
	m.Env.Send(c.Path.SGID, c.Path.DGID, mad)
}

// Reject rejects a connection that the peer requested, or that it has accepted.
func (m *Manager) Reject(now ib.Time, c *Conn, reason uint16, private []byte) error {
	if len(private) > len(wire.REJ(make([]byte, wire.CMSize)).Private()) {
		return ErrPrivate
	}
	switch c.State {
	case ReqRcvd, RepRcvd, RepSent:
		m.reject(c, reason, private)
		m.forget(c)
	case SidrReqRcvd:
		return m.Answer(now, c, SidrRejected, 0, 0, private)
	default:
		return ErrState
	}
	return nil
}

func (m *Manager) receiveREJ(from ib.GID, mad wire.MAD) {
	rej := wire.REJ(mad.Data())
	var c *Conn
	if rej.Reason() == RejectTimeout && rej.InfoLength() >= 8 {
		c = m.byRemote[remote{from, rej.LocalCommID()}]
	}
	if c == nil {
		c = m.find(rej.RemoteCommID(), 0, from)
	}
	if c == nil {
		return
	}
	switch c.State {
	case ReqSent, ReqRcvd, RepRcvd, RepSent:
	case Established, DreqSent:
		// The peer gave up before our RTU arrived, or does not know the connection any more.
		if rej.LocalCommID() != c.RemoteID {
			return
		}
	default:
		return
	}
	closing := c.State == DreqSent
	m.forget(c)
	if closing {
		m.notify(c, &Event{Kind: Disconnected})
		return
	}
	m.notify(c, &Event{Kind: Rejected, Reason: rej.Reason(), Private: rej.Private()})
}

// Disconnect ends a connection: it sends a DREQ, or the DREP that the peer waits for.
func (m *Manager) Disconnect(now ib.Time, c *Conn) error {
	switch c.State {
	case Established, RepSent:
		m.enter(c, DreqSent)
		m.begin(now, c, c.newDREQ())
	case DreqRcvd:
		m.sendDREP(c)
		m.linger(now, c)
	default:
		return ErrState
	}
	return nil
}

func (c *Conn) newDREQ() wire.MAD {
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMDREQ, c.tid)
	dreq := wire.DREQ(mad.Data())
	dreq.SetLocalCommID(c.LocalID)
	dreq.SetRemoteCommID(c.RemoteID)
	dreq.SetRemoteQPN(c.RemoteQPN)
	return mad
}

func (m *Manager) sendDREP(c *Conn) {
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMDREP, c.tid)
	drep := wire.DREP(mad.Data())
	drep.SetLocalCommID(c.LocalID)
	drep.SetRemoteCommID(c.RemoteID)
	m.Env.Send(c.Path.SGID, c.Path.DGID, mad)
}

// receiveDREQ handles a peer that disconnects. It also answers for an unknown connection: the peer may be repeating its DREQ.
func (m *Manager) receiveDREQ(now ib.Time, from, to ib.GID, mad wire.MAD) {
	dreq := wire.DREQ(mad.Data())
	c := m.find(dreq.RemoteCommID(), dreq.LocalCommID(), from)
	if c == nil {
		m.sendDREP(&Conn{
			LocalID: dreq.RemoteCommID(), RemoteID: dreq.LocalCommID(), tid: mad.TID(), Path: Path{SGID: to, DGID: from},
		})
		return
	}
	if dreq.RemoteQPN() != c.LocalQPN {
		return
	}
	switch c.State {
	case Established, RepSent, RepRcvd:
		// The owner answers after it has seen the event; a connection without an owner is answered at once.
		m.enter(c, DreqRcvd)
		m.await(c, nil, 0)
		if c.Owner == nil {
			m.Disconnect(now, c)
			return
		}
		m.notify(c, &Event{Kind: Disconnected})
	case DreqSent:
		// Both sides disconnect at once: each accepts the other's DREQ.
		m.sendDREP(c)
		m.linger(now, c)
		m.notify(c, &Event{Kind: Disconnected})
	case TimeWait:
		m.sendDREP(c)
	}
}

// Ends reports whether a message ends a known connection. All fields that identify the connection must match.
func (m *Manager) Ends(from ib.GID, mad wire.MAD) bool {
	if !mad.IsCM() || wire.CMMessage(mad.Attribute()) != wire.CMDREQ {
		return false
	}
	dreq := wire.DREQ(mad.Data())
	c := m.find(dreq.RemoteCommID(), dreq.LocalCommID(), from)
	return c != nil && c.RemoteID == dreq.LocalCommID() && c.LocalQPN == dreq.RemoteQPN()
}

func (m *Manager) receiveDREP(now ib.Time, from ib.GID, mad wire.MAD) {
	drep := wire.DREP(mad.Data())
	c := m.find(drep.RemoteCommID(), drep.LocalCommID(), from)
	if c == nil || c.State != DreqSent {
		return
	}
	m.linger(now, c)
	m.notify(c, &Event{Kind: Disconnected})
}

// Destroy ends a connection in any state. Its owner gets no further events.
func (m *Manager) Destroy(now ib.Time, c *Conn) {
	c.Owner = nil
	switch c.State {
	case ReqSent:
		m.reject(c, RejectTimeout, nil)
		m.forget(c)
	case ReqRcvd, RepRcvd, RepSent:
		m.reject(c, RejectConsumer, nil)
		m.forget(c)
	case Established:
		c.retries = min(c.retries, orphanRetries)
		m.Disconnect(now, c)
	case DreqSent:
		c.left = min(c.left, orphanRetries)
	case DreqRcvd:
		m.Disconnect(now, c)
	case SidrReqSent:
		m.forget(c)
	case SidrReqRcvd:
		m.Answer(now, c, SidrRejected, 0, 0, nil)
	case TimeWait, Closed:
	}
	m.limit(c)
}

// Statuses of an APR (IBA 12.6.9).
const (
	aprInvalidCommID = 1
	aprUnsupported   = 2
)

// receiveLAP refuses an alternate path with an APR: alternate paths are not supported.
func (m *Manager) receiveLAP(from, to ib.GID, mad wire.MAD) {
	lap := wire.LAP(mad.Data())
	status := uint8(aprUnsupported)
	switch c := m.find(lap.RemoteCommID(), lap.LocalCommID(), from); {
	case c == nil:
		status = aprInvalidCommID
	case c.State != Established:
		return
	}
	out := make(wire.MAD, wire.MADSize)
	out.InitCM(wire.CMAPR, mad.TID())
	apr := wire.APR(out.Data())
	apr.SetLocalCommID(lap.RemoteCommID())
	apr.SetRemoteCommID(lap.LocalCommID())
	apr.SetStatus(status)
	m.Env.Send(to, from, out)
}
