package rdmacm

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// defaultQKey is RDMA_UDP_QKEY: the default Q_Key of datagrams.
const defaultQKey = 0x01234567

const (
	rate100G = 16 // enum ib_rate
	hopLimit = 64
)

func (id *ID) path() cm.Path {
	return cm.Path{
		SGID: id.sgid, DGID: id.dgid, MTU: id.cma.nic.MTU, AckTimeout: id.life + 1, Rate: rate100G,
		TrafficClass: id.tos, HopLimit: hopLimit,
	}
}

// errnoOf maps an error of the connection manager to an errno.
func errnoOf(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cm.ErrPrivate), errors.Is(err, cm.ErrState):
		return syscall.EINVAL
	}
	return err
}

// header returns private data preceded by the header with the addresses of both sides.
func (id *ID) header(private []byte) []byte {
	if id.ps == abi.PSIB {
		return private
	}
	b := make([]byte, wire.IPAddressingSize, wire.IPAddressingSize+len(private))
	h := wire.IPAddressing(b)
	h.SetSrcPort(id.src.Port())
	h.SetSrc(plain16(id.src.Addr()))
	h.SetDst(plain16(id.dst.Addr()))
	h.SetIPVersion(6)
	if id.dst.Addr().Is4() {
		h.SetIPVersion(4)
	}
	return append(b, private...)
}

// plain16 returns an address as in the header: IPv4 after zeros, not mapped.
func plain16(a netip.Addr) (b [16]byte) {
	if a.Is4() {
		v := a.As4()
		copy(b[12:], v[:])
		return b
	}
	return a.As16()
}

// callers parses the header: the source and the destination address.
func callers(private []byte) (from netip.AddrPort, to netip.Addr, rest []byte, ok bool) {
	h := wire.IPAddressing(private)
	if !h.IsValid() {
		return from, to, nil, false
	}
	addr := func(b [16]byte) netip.Addr {
		if h.IPVersion() == 4 {
			return netip.AddrFrom4([4]byte(b[12:]))
		}
		return netip.AddrFrom16(b)
	}
	return netip.AddrPortFrom(addr(h.Src()), h.SrcPort()), addr(h.Dst()), private[wire.IPAddressingSize:], true
}

// ECE is a vendor's enhanced connection establishment.
type ECE = cm.ECE

func params(p *abi.CMConnParam, psn uint32, ece cm.ECE, private []byte) *cm.Params {
	return &cm.Params{
		QPN: p.QPNum & 0xffffff, PSN: psn, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RetryCount: min(p.RetryCount, 7), RNRRetryCount: min(p.RNRRetryCount, 7), FlowControl: p.FlowControl != 0,
		SRQ: p.SRQ != 0, ECE: ece, Private: private,
	}
}

func private(p *abi.CMConnParam) []byte { return p.PrivateData[:p.PrivateDataLen] }

// Connect requests a connection from the peer.
func (id *ID) Connect(p *abi.CMConnParam, ece cm.ECE) (err error) {
	if id.state != Routed {
		return syscall.EINVAL
	}
	if p := id.client.requests; !p.Try(time.Unix(0, int64(id.cma.now()))) {
		return p.Error(budget.Requests)
	}
	if err := id.count(); err != nil {
		return err
	}
	m, now := id.cma.manager, id.cma.now()
	service := id.service()
	if !id.cma.allowed(nic.RefusedConnect, id.dgid, id.qpType, ib.Us, service, id.client) {
		id.qpn = p.QPNum
		id.refuse()
		return nil
	}
	switch id.cma.fails(id.client, id.dgid, true) {
	case fault.CMReject:
		id.qpn = p.QPNum
		id.rejected()
		return nil
	case fault.CMTimeout:
		id.qpn = p.QPNum
		id.unanswered()
		return nil
	}
	if id.ud() {
		id.conn, err = m.Ask(now, id, service, id.path(), id.header(private(p)))
	} else {
		id.conn, err = m.Connect(now, id, service, id.path(), params(p, id.seq, ece, id.header(private(p))), id.qpType == abi.QPTypeUC)
	}
	if err != nil {
		return errnoOf(err)
	}
	id.qpn, id.srq = p.QPNum, p.SRQ != 0
	id.state = Connecting
	return nil
}

// Accept answers a request. Without parameters it confirms a connection that the peer has accepted.
func (id *ID) Accept(uid uint64, p *abi.CMConnParam, ece cm.ECE) error {
	if id.state != Connecting || id.conn == nil {
		return syscall.EINVAL
	}
	m, now := id.cma.manager, id.cma.now()
	if p.Valid == 0 {
		if id.ud() {
			err := m.Answer(now, id.conn, cm.SidrSuccess, id.qpn, id.key(), nil)
			if err == nil {
				id.cma.talks(id)
			}
			return errnoOf(err)
		}
		err := m.Ready(id.conn)
		if err == nil {
			id.established()
		}
		return errnoOf(err)
	}
	if err := id.count(); err != nil {
		m.Reject(now, id.conn, cm.RejectConsumer, nil)
		return err
	}
	old := id.uid
	id.uid, id.qpn, id.srq = uid, p.QPNum, p.SRQ != 0 // before any event can occur
	var err error
	if id.ud() {
		if p.QKey != 0 {
			id.qkey = p.QKey
		}
		if err = m.Answer(now, id.conn, cm.SidrSuccess, p.QPNum&0xffffff, id.key(), private(p)); err == nil {
			id.cma.talks(id)
		}
	} else {
		err = m.Accept(now, id.conn, params(p, id.seq, ece, private(p)))
	}
	if err != nil {
		// As in the kernel, a failed accept rejects the request, even one accepted before.
		id.uid = old
		m.Reject(now, id.conn, cm.RejectConsumer, nil)
	}
	return errnoOf(err)
}

// key returns the queue key of the ID's datagrams.
func (id *ID) key() uint32 {
	if id.qkey != 0 {
		return id.qkey
	}
	return defaultQKey
}

// Reject rejects a request.
func (id *ID) Reject(reason uint8, data []byte) error {
	if id.conn == nil {
		return syscall.EINVAL
	}
	if reason == 0 {
		reason = cm.RejectConsumer
	}
	return errnoOf(id.cma.manager.Reject(id.cma.now(), id.conn, uint16(reason), data))
}

// Disconnect ends the connection, or confirms its end.
func (id *ID) Disconnect() error {
	if id.conn == nil {
		return syscall.EINVAL
	}
	// Disconnecting an ended connection succeeds.
	id.cma.manager.Disconnect(id.cma.now(), id.conn)
	return nil
}

// eventCommEst is IB_EVENT_COMM_EST.
const eventCommEst = 4

// Communicated tells the connection manager that data has arrived.
func (id *ID) Communicated(event uint32) error {
	if id.conn == nil || event != eventCommEst {
		return syscall.EINVAL
	}
	if id.conn.State == cm.Established {
		return syscall.EISCONN
	}
	return errnoOf(id.cma.manager.Communicating(id.conn))
}
