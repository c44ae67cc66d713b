package rdmacm

import (
	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// The NIC's policy (nic.Guard) is checked before a request is sent, before one is passed to a listener, and again for every connection when
// the policy changes.
var _ nic.Connections = (*CMA)(nil)

// allowed checks a connection for a service; what is the kind of refusal to count if it is not allowed.
func (a *CMA) allowed(what nic.Refusal, peer ib.GID, qpType uint8, by ib.Asker, service uint64, c *Client) bool {
	contact := contactOf(qpType, by, service)
	if a.may(peer, contact) {
		return true
	}
	a.refuse(what, peer, contact, c)
	return false
}

// may reports whether the policy allows a contact.
func (a *CMA) may(peer ib.GID, contact ib.Contact) bool {
	g := a.nic.Guard()
	if g == nil {
		return true
	}
	ops, _ := g.Judge(peer, contact)
	return ops != 0
}

// refuse counts and reports a refused contact.
func (a *CMA) refuse(what nic.Refusal, peer ib.GID, contact ib.Contact, c *Client) {
	d := nic.Denial{Peer: peer, Contact: contact}
	if c != nil {
		d.Pid, d.UID, d.Program = c.Pid, c.UID, c.Program
	}
	a.nic.Refuse(what, d, a.now())
}

func contactOf(qpType uint8, by ib.Asker, service uint64) ib.Contact {
	t, ok := ib.ServiceOf(qpType)
	if !ok {
		t = ib.RC // unknown types are refused elsewhere
	}
	return ib.Contact{Type: t, By: by, ID: service}
}

// asker returns the side that requested the ID's connection.
func (id *ID) asker() ib.Asker {
	if id.passive {
		return ib.Them
	}
	return ib.Us
}

// service returns the service of the ID's connection.
func (id *ID) service() uint64 {
	if id.passive {
		return serviceID(portKey{id.ps, id.src.Port()})
	}
	return serviceID(portKey{id.ps, id.dst.Port()})
}

// refuse shows the program the same result as a port without a listener.
func (id *ID) refuse() {
	id.state = Connecting
	if id.ud() {
		id.tell(abi.CMEventUnreachable, cm.SidrUnsupported, nil, &abi.CMUDParam{})
		return
	}
	id.tell(abi.CMEventRejected, cm.RejectInvalidService, &abi.CMConnParam{}, nil)
}

// Contact implements nic.Connections. It identifies queue pairs by their peers: an accepting queue pair gets its peer before this package
// knows its number.
func (a *CMA) Contact(num uint32, t ib.Service, peer ib.GID, peerNum uint32) (ib.Contact, bool) {
	if t == ib.UD {
		return a.datagrams(num, peer)
	}
	c := a.manager.WithQP(peer, peerNum)
	if c == nil || c.LocalQPN != 0 && c.LocalQPN != num {
		return ib.Contact{}, false
	}
	by := ib.Them
	if c.Active {
		by = ib.Us
	}
	return ib.Contact{Type: t, By: by, ID: c.Service}, true
}

// datagrams returns the service of the datagrams between queue pair num (0: any) and a peer. If there are several, it returns an
// allowed one.
func (a *CMA) datagrams(num uint32, peer ib.GID) (c ib.Contact, found bool) {
	g := a.nic.Guard()
	for id := range a.talking[peer] {
		if num != 0 && id.qpn&0xffffff != num {
			continue
		}
		c, found = contactOf(id.qpType, id.asker(), id.service()), true
		if g == nil {
			break
		}
		if ops, _ := g.Judge(peer, c); ops&ib.OpSend != 0 {
			break
		}
	}
	return c, found
}

// talks records that the ID may exchange datagrams with its peer.
func (a *CMA) talks(id *ID) {
	if a.talking[id.dgid] == nil {
		a.talking[id.dgid] = make(map[*ID]struct{})
	}
	a.talking[id.dgid][id] = struct{}{}
}

// hushed removes that record.
func (a *CMA) hushed(id *ID) {
	delete(a.talking[id.dgid], id)
	if len(a.talking[id.dgid]) == 0 {
		delete(a.talking, id.dgid)
	}
}

// Rejudge implements nic.Connections.
func (a *CMA) Rejudge(most int) (more bool) {
	if g := a.nic.Generation(); a.judged != g {
		a.judged, a.old = g, nil
		for c := range a.clients {
			for _, id := range c.ids.items {
				if id.state == Connecting && id.conn != nil && !id.ud() {
					a.old = append(a.old, id)
				}
			}
		}
	}
	for ; most > 0 && len(a.old) > 0; most-- {
		last := len(a.old) - 1
		id := a.old[last]
		a.old[last] = nil
		a.old = a.old[:last]
		if id.state != Connecting || id.conn == nil {
			continue
		}
		contact := contactOf(id.qpType, id.asker(), id.service())
		if a.may(id.dgid, contact) {
			continue
		}
		if !a.nic.Revoked(id.qpn & 0xffffff) {
			a.refuse(nic.Revoked, id.dgid, contact, id.client)
		}
		id.revoke()
	}
	if len(a.old) == 0 {
		a.old = nil
	}
	return len(a.old) > 0
}

// revoke ends a connection that is not allowed any more, in any state. The program gets the event at once, without waiting for the peer.
func (id *ID) revoke() {
	m, now := id.cma.manager, id.cma.now()
	id.Changed()
	id.ch.settle()
	switch id.conn.State {
	case cm.ReqSent:
		m.Destroy(now, id.conn)
		id.conn = nil
		id.refuse()
	case cm.ReqRcvd:
		m.Reject(now, id.conn, cm.RejectInvalidService, nil)
		if id.pending {
			id.destroy() // and the listener's event with it
		}
	case cm.RepRcvd:
		m.Reject(now, id.conn, cm.RejectInvalidService, nil)
		id.refuse()
	case cm.RepSent, cm.Established:
		m.Disconnect(now, id.conn)
		id.state = Disconnected
		id.tell(abi.CMEventDisconnected, 0, nil, nil)
	}
}
