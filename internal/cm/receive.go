package cm

import (
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// Receive processes a MAD from one address to one of ours. It ignores MADs of other classes and keeps no reference to mad.
func (m *Manager) Receive(now ib.Time, from, to ib.GID, mad wire.MAD) {
	if !mad.IsCM() {
		return
	}
	switch wire.CMMessage(mad.Attribute()) {
	case wire.CMREQ:
		m.receiveREQ(now, from, to, mad)
	case wire.CMMRA:
		m.receiveMRA(now, from, mad)
	case wire.CMREJ:
		m.receiveREJ(from, mad)
	case wire.CMREP:
		m.receiveREP(now, from, to, mad)
	case wire.CMRTU:
		m.receiveRTU(from, mad)
	case wire.CMDREQ:
		m.receiveDREQ(now, from, to, mad)
	case wire.CMDREP:
		m.receiveDREP(now, from, mad)
	case wire.CMSIDRREQ:
		m.receiveSIDRREQ(from, to, mad)
	case wire.CMSIDRREP:
		m.receiveSIDRREP(from, mad)
	case wire.CMLAP:
		m.receiveLAP(from, to, mad)
	}
}

// find returns the connection with our communication ID local. Unless remote is 0, it must be the peer's ID. The message must come from
// the peer's address.
func (m *Manager) find(local, remote uint32, from ib.GID) *Conn {
	c := m.conns[local]
	if c == nil || c.Path.DGID != from || remote != 0 && c.RemoteID != remote {
		return nil
	}
	return c
}
