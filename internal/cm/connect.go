package cm

import (
	"errors"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// ErrState means that the connection's state does not allow the call.
var ErrState = errors.New("the state of the connection does not allow that")

// ErrPrivate means that the private data is too long.
var ErrPrivate = errors.New("too much private data")

// Connect sends a REQ, for UC if uc is true, otherwise for RC.
func (m *Manager) Connect(now ib.Time, owner any, service uint64, path Path, p *Params, uc bool) (*Conn, error) {
	mad := make(wire.MAD, wire.MADSize)
	req := wire.REQ(mad.Data())
	if len(p.Private) > len(req.Private()) {
		return nil, ErrPrivate
	}
	c := m.newConn()
	c.Owner, c.Service, c.Path, c.Active = owner, service, path, true
	c.LocalQPN, c.RQPSN = p.QPN, p.PSN
	c.ResponderResources, c.InitiatorDepth = p.ResponderResources, p.InitiatorDepth
	c.RetryCount, c.RNRRetryCount = p.RetryCount, p.RNRRetryCount
	c.tid = uint64(m.Random())<<32 | uint64(c.LocalID)

	mad.InitCM(wire.CMREQ, c.tid)
	req.SetLocalCommID(c.LocalID)
	req.SetServiceID(service)
	req.SetLocalCAGUID(m.GUID)
	req.SetLocalQPN(p.QPN)
	req.SetStartingPSN(p.PSN)
	req.SetResponderResources(p.ResponderResources)
	req.SetInitiatorDepth(p.InitiatorDepth)
	req.SetRetryCount(p.RetryCount)
	req.SetRNRRetryCount(p.RNRRetryCount)
	req.SetFlowControl(p.FlowControl)
	req.SetSRQ(p.SRQ)
	if uc {
		c.Transport = wire.ServiceUC
	}
	req.SetTransportService(c.Transport)
	req.SetPKey(0xffff)
	req.SetPathMTU(path.MTU)
	req.SetRemoteResponseTimeout(responseTimeout)
	req.SetLocalResponseTimeout(responseTimeout)
	req.SetMaxCMRetries(maxRetries)
	req.SetVendorID(p.ECE.Vendor)
	mad.SetModifier(p.ECE.Modifier)
	setPath(req.Primary(), &path)
	copy(req.Private(), p.Private)

	m.enter(c, ReqSent)
	m.begin(now, c, mad)
	return c, nil
}

func setPath(w wire.REQPath, p *Path) {
	w.SetLocalLID(0xffff)
	w.SetRemoteLID(0xffff)
	w.SetLocalGID(p.SGID)
	w.SetRemoteGID(p.DGID)
	w.SetFlowLabel(p.FlowLabel)
	w.SetPacketRate(p.Rate)
	w.SetTrafficClass(p.TrafficClass)
	w.SetHopLimit(p.HopLimit)
	w.SetAckTimeout(p.AckTimeout)
}

// begin sends a message and repeats it until it is answered.
func (m *Manager) begin(now ib.Time, c *Conn, mad wire.MAD) {
	c.left, c.tries, c.patient = c.retries, 0, false
	m.Env.Send(c.Path.SGID, c.Path.DGID, mad)
	m.await(c, mad, now+c.pause())
}

// receiveREQ handles a connection request.
func (m *Manager) receiveREQ(now ib.Time, from, to ib.GID, mad wire.MAD) {
	req := wire.REQ(mad.Data())
	key := remote{from, req.LocalCommID()}
	if c := m.byRemote[key]; c != nil {
		m.repeatedREQ(c)
		return
	}
	c := m.newConn()
	c.Path = Path{
		SGID: to, DGID: from, MTU: req.PathMTU(), AckTimeout: req.Primary().AckTimeout(), Rate: req.Primary().PacketRate(),
		TrafficClass: req.Primary().TrafficClass(), HopLimit: req.Primary().HopLimit(), FlowLabel: req.Primary().FlowLabel(),
	}
	c.State, c.Service, c.tid = ReqRcvd, req.ServiceID(), mad.TID()
	c.Transport = req.TransportService()
	c.RemoteID, c.RemoteQPN = key.id, req.LocalQPN()
	c.SQPSN = req.StartingPSN()
	// The peer's responder resources are our limit of outstanding requests, and vice versa.
	c.InitiatorDepth, c.ResponderResources = req.ResponderResources(), req.InitiatorDepth()
	c.RetryCount, c.RNRRetryCount = req.RetryCount(), req.RNRRetryCount()
	c.retries = req.MaxCMRetries()
	c.interval = max(minInterval, 2*span(max(c.Path.AckTimeout, 1)-1)+span(req.LocalResponseTimeout()))

	if old := m.byQP[peerQP{from, c.RemoteQPN}]; old != nil {
		// The peer starts a new connection with a queue pair that is still connected here.
		m.reject(c, RejectStale, nil)
		m.forget(c)
		m.Disconnect(now, old) // has no effect unless it is established
		return
	}
	p := Params{
		QPN: c.RemoteQPN, PSN: c.SQPSN, ResponderResources: c.ResponderResources, InitiatorDepth: c.InitiatorDepth,
		RetryCount: c.RetryCount, RNRRetryCount: c.RNRRetryCount, FlowControl: req.FlowControl(), SRQ: req.SRQ(),
		ECE: ECE{req.VendorID(), mad.Modifier()}, Private: req.Private(),
	}
	if reason := m.Env.Request(c, &p); reason != 0 {
		if reason != Ignore {
			m.reject(c, reason, nil)
		}
		m.forget(c)
		return
	}
	m.byRemote[key] = c
	m.linkQP(c)
}

// repeatedREQ handles a REQ whose answer was lost, or does not exist yet.
func (m *Manager) repeatedREQ(c *Conn) {
	switch c.State {
	case ReqRcvd:
		m.Env.Send(c.Path.SGID, c.Path.DGID, c.newMRA(0))
	case RepSent:
		m.Env.Send(c.Path.SGID, c.Path.DGID, c.message)
	case TimeWait:
		m.reject(c, RejectStale, nil)
	}
}

// newMRA returns an MRA for a REQ (0) or REP (1): the answer takes longer.
func (c *Conn) newMRA(message uint8) wire.MAD {
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMMRA, c.tid)
	mra := wire.MRA(mad.Data())
	mra.SetLocalCommID(c.LocalID)
	mra.SetRemoteCommID(c.RemoteID)
	mra.SetMessage(message)
	mra.SetServiceTimeout(mraTimeout)
	return mad
}

// Accept answers a REQ.
func (m *Manager) Accept(now ib.Time, c *Conn, p *Params) error {
	if c.State != ReqRcvd {
		return ErrState
	}
	mad := make(wire.MAD, wire.MADSize)
	rep := wire.REP(mad.Data())
	if len(p.Private) > len(rep.Private()) {
		return ErrPrivate
	}
	c.LocalQPN, c.RQPSN = p.QPN, p.PSN
	c.ResponderResources, c.InitiatorDepth = p.ResponderResources, p.InitiatorDepth
	mad.InitCM(wire.CMREP, c.tid)
	rep.SetLocalCommID(c.LocalID)
	rep.SetRemoteCommID(c.RemoteID)
	rep.SetLocalQPN(p.QPN)
	rep.SetStartingPSN(p.PSN)
	rep.SetResponderResources(p.ResponderResources)
	rep.SetInitiatorDepth(p.InitiatorDepth)
	rep.SetTargetAckDelay(15)
	rep.SetFlowControl(p.FlowControl)
	rep.SetRNRRetryCount(p.RNRRetryCount)
	rep.SetSRQ(p.SRQ)
	rep.SetLocalCAGUID(m.GUID)
	rep.SetVendorID(p.ECE.Vendor)
	mad.SetModifier(p.ECE.Modifier)
	copy(rep.Private(), p.Private)
	m.enter(c, RepSent)
	m.begin(now, c, mad)
	return nil
}

// receiveREP handles the peer's acceptance.
func (m *Manager) receiveREP(now ib.Time, from, to ib.GID, mad wire.MAD) {
	rep := wire.REP(mad.Data())
	c := m.find(rep.RemoteCommID(), 0, from)
	if c == nil || !c.Active {
		m.refuseREP(from, to, mad)
		return
	}
	switch c.State {
	case ReqSent:
	case RepRcvd:
		m.Env.Send(c.Path.SGID, c.Path.DGID, c.newMRA(1))
		return
	case Established:
		if c.RemoteID == rep.LocalCommID() {
			m.sendRTU(c)
		}
		return
	default:
		return
	}
	c.RemoteID, c.RemoteQPN = rep.LocalCommID(), rep.LocalQPN()
	c.SQPSN = rep.StartingPSN()
	c.InitiatorDepth, c.ResponderResources = rep.ResponderResources(), rep.InitiatorDepth()
	c.RNRRetryCount = rep.RNRRetryCount()
	m.enter(c, RepRcvd)
	m.linkQP(c)
	m.await(c, nil, 0)
	m.notify(c, &Event{Kind: Replied, Private: rep.Private(), Params: Params{
		QPN: c.RemoteQPN, PSN: c.SQPSN, ResponderResources: c.ResponderResources, InitiatorDepth: c.InitiatorDepth,
		RetryCount: c.RetryCount, RNRRetryCount: c.RNRRetryCount, FlowControl: rep.FlowControl(), SRQ: rep.SRQ(),
		ECE: ECE{rep.VendorID(), mad.Modifier()},
	}})
}

// refuseREP rejects a REP for a connection that this side has given up.
func (m *Manager) refuseREP(from, to ib.GID, mad wire.MAD) {
	rep := wire.REP(mad.Data())
	c := &Conn{
		LocalID: rep.RemoteCommID(), RemoteID: rep.LocalCommID(), tid: mad.TID(), State: RepRcvd,
		Path: Path{SGID: to, DGID: from},
	}
	m.reject(c, RejectInvalidCommID, nil)
}

// Ready sends the RTU: our queue pair is ready.
func (m *Manager) Ready(c *Conn) error {
	if c.State != RepRcvd {
		return ErrState
	}
	m.enter(c, Established)
	m.sendRTU(c)
	return nil
}

func (m *Manager) sendRTU(c *Conn) {
	mad := make(wire.MAD, wire.MADSize)
	mad.InitCM(wire.CMRTU, c.tid)
	rtu := wire.RTU(mad.Data())
	rtu.SetLocalCommID(c.LocalID)
	rtu.SetRemoteCommID(c.RemoteID)
	m.Env.Send(c.Path.SGID, c.Path.DGID, mad)
}

// Communicating records that the peer has sent data: it is ready even if its RTU was lost.
func (m *Manager) Communicating(c *Conn) error {
	switch c.State {
	case Established:
		return nil
	case RepSent:
		m.establish(c)
		return nil
	}
	return ErrState
}

func (m *Manager) receiveRTU(from ib.GID, mad wire.MAD) {
	rtu := wire.RTU(mad.Data())
	if c := m.find(rtu.RemoteCommID(), rtu.LocalCommID(), from); c != nil && c.State == RepSent {
		m.establish(c)
	}
}

func (m *Manager) establish(c *Conn) {
	m.enter(c, Established)
	m.await(c, nil, 0)
	m.notify(c, &Event{Kind: Connected})
}

// receiveMRA grants the peer more time, once. It adds repetitions instead of waiting silently, because the peer's answer may also be
// lost.
func (m *Manager) receiveMRA(now ib.Time, from ib.GID, mad wire.MAD) {
	mra := wire.MRA(mad.Data())
	c := m.find(mra.RemoteCommID(), 0, from)
	if c == nil || c.patient {
		return
	}
	waits := c.State == ReqSent && mra.Message() == 0 || c.State == RepSent && mra.Message() == 1
	if waits {
		c.patient = true
		c.left = uint8(min(ib.Time(c.left)+span(mra.ServiceTimeout())/c.interval, 100))
		m.await(c, c.message, now+c.interval)
	}
}
