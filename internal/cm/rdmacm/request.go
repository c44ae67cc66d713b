package rdmacm

import (
	"net/netip"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// This file handles the connection manager's callbacks.

// Request implements cm.Env: it finds the listener and creates an ID for the request.
func (a *CMA) Request(c *cm.Conn, p *cm.Params) uint16 {
	child, reason := a.admit(c, p.Private, qpTypes[c.Transport])
	if child == nil {
		return reason
	}
	rest := child.private(p.Private)
	child.announce(&abi.CMConnParam{
		QPNum: p.QPN, PrivateData: fill(rest), PrivateDataLen: uint8(len(rest)), SRQ: flag(p.SRQ),
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, FlowControl: flag(p.FlowControl),
		RetryCount: p.RetryCount, RNRRetryCount: p.RNRRetryCount,
	}, nil, p.ECE)
	return 0
}

// Question implements cm.Env.
func (a *CMA) Question(c *cm.Conn, private []byte) uint8 {
	child, reason := a.admit(c, private, abi.QPTypeUD)
	switch {
	case child != nil:
	case reason == cm.Ignore:
		return cm.SidrIgnore
	case reason == cm.RejectConsumer:
		return cm.SidrRejected
	default:
		return cm.SidrUnsupported
	}
	rest := child.private(private)
	child.announce(nil, &abi.CMUDParam{PrivateData: fill(rest), PrivateDataLen: uint8(len(rest))}, cm.ECE{})
	return 0
}

// qpTypes maps a transport service to a queue pair type; 0: not supported.
var qpTypes = [4]uint8{wire.ServiceRC: abi.QPTypeRC, wire.ServiceUC: abi.QPTypeUC}

// admit creates an ID for a requested connection between queue pairs of type qpType.
func (a *CMA) admit(c *cm.Conn, private []byte, qpType uint8) (*ID, uint16) {
	k, ok := keyOf(c.Service)
	if !ok {
		return nil, cm.RejectInvalidService
	}
	if qpType != 0 && !a.allowed(nic.RefusedRequest, c.Path.DGID, qpType, ib.Them, c.Service, nil) {
		return nil, cm.RejectInvalidService
	}
	to := netip.AddrFrom16(c.Path.SGID).Unmap()
	from := netip.AddrPortFrom(netip.AddrFrom16(c.Path.DGID).Unmap(), 0)
	if k.ps != abi.PSIB {
		caller, named, _, ok := callers(private)
		if !ok {
			return nil, cm.RejectConsumer
		}
		// Trust only the port in the header: the source address is known from the packet.
		from = netip.AddrPortFrom(from.Addr(), caller.Port())
		// A destination in the header that is not our address is ignored.
		if named != to && a.gidIndex(named.As16()) >= 0 {
			to = named
		}
	}
	l := a.listener(k, to)
	switch {
	case l == nil && a.renewing(k):
		return nil, cm.Ignore
	case l == nil:
		return nil, cm.RejectInvalidService
	case l.qpType != 0 && l.qpType != qpType:
		return nil, cm.RejectConsumer // as Linux does
	case qpType == 0:
		return nil, cm.RejectTransport
	}
	switch a.fails(l.client, c.Path.DGID, false) {
	case fault.CMReject:
		return nil, cm.RejectConsumer
	case fault.CMTimeout:
		return nil, cm.Ignore
	}
	if l.ch.settle(); l.waiting >= l.backlog {
		return nil, cm.Ignore
	}
	child, err := l.ch.newID(0, l.ps, qpType)
	if err != nil {
		return nil, cm.Ignore
	}
	child.state, child.conn, child.device, child.pending, child.passive = Connecting, c, true, true, true
	child.src, child.dst = netip.AddrPortFrom(to, k.port), from
	child.sgid, child.dgid = c.Path.SGID, c.Path.DGID
	child.tos, child.qkey, child.parent, child.life = l.tos, l.qkey, l, max(c.Path.AckTimeout, 1)-1
	c.Owner = child
	return child, 0
}

// private returns the part of the private data that the program sees.
func (id *ID) private(b []byte) []byte {
	if id.ps == abi.PSIB {
		return b
	}
	_, _, rest, _ := callers(b)
	return rest
}

// announce posts the CONNECT_REQUEST of a new ID to its listener.
func (id *ID) announce(conn *abi.CMConnParam, ud *abi.CMUDParam, ece cm.ECE) {
	l := id.parent
	id.parent = nil
	l.waiting++
	e := &event{id: l, child: id, resp: abi.CMEventResp{UID: l.uid, ID: id.Name, Event: abi.CMEventConnectRequest}}
	e.fill(conn, ud)
	e.resp.ECEVendor, e.resp.ECEMod = ece.Vendor, ece.Modifier
	l.ch.post(e)
}

func fill(b []byte) (out [abi.CMMaxPrivateData]uint8) {
	copy(out[:], b)
	return out
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// Notify implements cm.Env.
func (a *CMA) Notify(c *cm.Conn, e *cm.Event) {
	id, ok := c.Owner.(*ID)
	if !ok || id.conn != c {
		return
	}
	switch e.Kind {
	case cm.Replied:
		p := &e.Params
		id.tellWith(p.ECE, abi.CMEventConnectResponse, 0, &abi.CMConnParam{
			QPNum: p.QPN, PrivateData: fill(e.Private), PrivateDataLen: uint8(len(e.Private)), SRQ: flag(p.SRQ),
			ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, FlowControl: flag(p.FlowControl),
			RNRRetryCount: p.RNRRetryCount, // a REP has no other retry count
		}, nil)
	case cm.Connected:
		id.established()
		id.tell(abi.CMEventEstablished, 0, nil, nil)
	case cm.Rejected:
		id.tell(abi.CMEventRejected, int32(e.Reason), &abi.CMConnParam{
			PrivateData: fill(e.Private), PrivateDataLen: uint8(len(e.Private)),
		}, nil)
	case cm.Unreachable:
		id.tell(abi.CMEventUnreachable, failure(syscall.ETIMEDOUT), nil, nil)
	case cm.Disconnected, cm.Vanished:
		if id.state != Connecting {
			return
		}
		id.state = Disconnected
		id.ended()
		status := int32(0)
		if e.Kind == cm.Vanished {
			status = failure(syscall.ETIMEDOUT)
		}
		id.tell(abi.CMEventDisconnected, status, nil, nil)
	case cm.Exited:
		if id.state == Disconnected {
			id.tell(abi.CMEventTimewaitExit, 0, nil, nil)
		}
	case cm.SidrReplied:
		id.answered(e)
	}
}

// answered handles the peer's SIDR reply, which names the destination of datagrams.
func (id *ID) answered(e *cm.Event) {
	if e.Reason != cm.SidrSuccess {
		id.tell(abi.CMEventUnreachable, int32(e.Reason), nil, &abi.CMUDParam{
			PrivateData: fill(e.Private), PrivateDataLen: uint8(len(e.Private)),
		})
		return
	}
	to, err := id.address(id.dgid)
	if err != nil {
		id.tell(abi.CMEventUnreachable, failure(syscall.EADDRNOTAVAIL), nil, nil)
		return
	}
	id.qkey = e.QKey
	id.cma.talks(id)
	id.tell(abi.CMEventEstablished, 0, nil, &abi.CMUDParam{
		QPNum: e.Params.QPN, QKey: e.QKey, AHAttr: to,
		PrivateData: fill(e.Private), PrivateDataLen: uint8(len(e.Private)),
	})
}
