package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"

	"vrdma.dev/vrdma/internal/abi"
)

// swap32 converts between network byte order and host byte order.
func swap32(v uint32) uint32 {
	if order.Uint16([]byte{1, 0}) == 1 {
		return bits.ReverseBytes32(v)
	}
	return v
}

// QPConfig describes a queue pair to create. Zero values select defaults.
type QPConfig struct {
	Type   Type // 0: RC
	SendCQ *CQ
	RecvCQ *CQ  // nil selects SendCQ
	SRQ    *SRQ // nil gives the queue pair its own receive queue

	MaxSend    int // capacity of the send queue; 0 selects 128
	MaxRecv    int // capacity of the receive queue; 0 selects 128
	MaxSendSGE int // entries of a send's SGL; 0 selects 1
	MaxRecvSGE int // entries of a receive's SGL; 0 selects 1
	MaxInline  int // bytes of inline data; 0 allows none
	// SignalAll makes every send generate a completion, with or without the flag Signaled.
	SignalAll bool
}

// A QP is a queue pair. Any goroutine may use it.
type QP struct {
	d      *Device
	handle uint32
	qpn    uint32
	id     uint64
	typ    Type
	caps   QPConfig
	bell   []byte // the POST_SEND command, for a backend that rings by command

	send struct {
		sync.Mutex
		ring *ring
		ssn  uint32
	}
	recv struct {
		sync.Mutex
		ring *ring
	}
	psn uint32
}

// CreateQP creates a queue pair.
func (p *PD) CreateQP(c QPConfig) (*QP, error) {
	const op = "create a queue pair"
	if c.SendCQ == nil {
		return nil, fault(op, errors.New("no completion queue: set QPConfig.SendCQ"))
	}
	if c.RecvCQ == nil {
		c.RecvCQ = c.SendCQ
	}
	if c.Type == 0 {
		c.Type = RC
	}
	for _, v := range []struct {
		n         *int
		otherwise int
	}{{&c.MaxSend, 128}, {&c.MaxRecv, 128}, {&c.MaxSendSGE, 1}, {&c.MaxRecvSGE, 1}} {
		if *v.n == 0 {
			*v.n = v.otherwise
		}
	}
	q := &QP{d: p.d, typ: c.Type, psn: rand.Uint32() & 0xffffff}
	q.id = p.d.track(q)
	if err := q.create(p, &c); err != nil {
		p.d.objects.Delete(q.id)
		return nil, queueFault(op, err)
	}
	return q, nil
}

func (q *QP) create(p *PD, c *QPConfig) error {
	req := abi.CreateQP{
		Response: p.d.response(), UserHandle: q.id, PDHandle: p.handle, SendCQHandle: c.SendCQ.handle, RecvCQHandle: c.RecvCQ.handle,
		MaxSendWR: uint32(c.MaxSend), MaxRecvWR: uint32(c.MaxRecv), MaxSendSGE: uint32(c.MaxSendSGE), MaxRecvSGE: uint32(c.MaxRecvSGE),
		MaxInlineData: uint32(c.MaxInline), QPType: uint8(c.Type),
	}
	if c.SignalAll {
		req.SQSigAll = 1
	}
	if c.SRQ != nil {
		req.SRQHandle, req.IsSRQ, req.MaxRecvWR, req.MaxRecvSGE = c.SRQ.handle, 1, 0, 0
	}
	var r abi.CreateQPResp
	var rx abi.RxeCreateQPResp
	if _, err := exec(p.d, abi.CmdCreateQP, &req, nil, decode2(&r, &rx)); err != nil {
		return err
	}
	q.handle, q.qpn, q.caps = r.QPHandle, r.QPN, *c
	q.caps.MaxSend, q.caps.MaxRecv, q.caps.MaxInline = int(r.MaxSendWR), int(r.MaxRecvWR), int(r.MaxInlineData)
	q.caps.MaxSendSGE, q.caps.MaxRecvSGE = int(r.MaxSendSGE), int(r.MaxRecvSGE)
	var err error
	if q.send.ring, err = p.d.newRing(&rx.SQMI); err == nil && c.SRQ == nil {
		q.recv.ring, err = p.d.newRing(&rx.RQMI)
	}
	if err != nil {
		q.Close()
		return err
	}
	head := abi.CmdHeader{Command: abi.CmdPostSend, InWords: uint16(8+abi.Size[abi.PostSend]()) / 4, OutWords: 1}
	q.bell = abi.Encode(abi.Encode(nil, &head), &abi.PostSend{Response: p.d.response(), QPHandle: q.handle, WQESize: sendWRSize})
	return nil
}

// sendWRSize is sizeof(struct ibv_send_wr). The kernel requires it even in a command without requests.
const sendWRSize = 128

// QPN returns the queue pair number.
func (q *QP) QPN() uint32 { return q.qpn }

// Type returns the transport service.
func (q *QP) Type() Type { return q.typ }

// Config returns the configuration that the device granted.
func (q *QP) Config() QPConfig { return q.caps }

// An Address is what a peer needs to connect to a queue pair. It can be exchanged as text.
type Address struct {
	GID GID
	QPN uint32
	PSN uint32
}

// Address returns the address of this queue pair at the port's first GID.
func (q *QP) Address() (Address, error) {
	e, err := q.d.entry(GID{})
	if err != nil {
		return Address{}, err
	}
	return Address{GID: e.GID, QPN: q.qpn, PSN: q.psn}, nil
}

// MarshalText implements encoding.TextMarshaler.
func (a Address) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%x:%06x:%06x", a.GID[:], a.QPN, a.PSN), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Address) UnmarshalText(b []byte) error {
	var g []byte
	var n Address
	if k, err := fmt.Sscanf(string(b), "%32x:%06x:%06x", &g, &n.QPN, &n.PSN); err != nil || k != 3 || len(g) != len(n.GID) {
		return fault("read an address", fmt.Errorf("%.80q is not an address as QP.Address prints it", b))
	}
	copy(n.GID[:], g)
	*a = n
	return nil
}

// Attr are the attributes of a state change. The target state decides which of them matter.
type Attr struct {
	Access    Access // INIT: rights of the peer
	QKey      uint32 // UD
	Remote    Address
	Local     GID // RTR: the source address; zero selects the port's first
	MTU       MTU // RTR: 0 selects the port's
	SendPSN   uint32
	MaxReads  uint8 // RTS: outstanding reads and atomics of this side
	PeerReads uint8 // RTR: outstanding reads and atomics of the peer
	Timeout   uint8 // RTS: ACK timeout, 4.096 µs × 2^Timeout; 0 waits forever
	Retry     uint8 // RTS: retries after a timeout
	RNRRetry  uint8 // RTS: retries after an RNR NAK; 7 retries forever
	RNRTimer  uint8 // RTR: minimum delay that the peer waits after an RNR NAK, as an IB code
	HopLimit  uint8 // RTR: 0 selects 64
	Traffic   uint8 // RTR: traffic class
}

// defaults are the attributes that Connect uses.
var defaults = Attr{Access: RemoteWrite | RemoteRead | RemoteAtomic, MaxReads: 16, PeerReads: 16, Timeout: 14, Retry: 7, RNRRetry: 7, RNRTimer: 12}

// Modify moves the queue pair to the next state: Init, RTR, RTS; Reset and Err are allowed at any time.
// Connect does all steps at once.
func (q *QP) Modify(to State, a Attr) error {
	op := fmt.Sprintf("move a queue pair to %v", to)
	m := abi.ModifyQP{QPHandle: q.handle, QPState: uint8(to), AttrMask: abi.QPMaskState}
	var err error
	switch to {
	case Init:
		q.initial(&m, &a)
	case RTR:
		err = q.ready(&m, &a)
	case RTS:
		q.sending(&m, &a)
	}
	if err == nil {
		_, err = exec(q.d, abi.CmdModifyQP, &m, nil, answer{})
	}
	if err == nil && to == Reset {
		q.resetRings()
	}
	return fault(op, err)
}

// apply makes the state change whose attributes rdma_cm computed.
func (q *QP) apply(a *abi.QPAttr) error {
	m := abi.ModifyQP{
		QPHandle: q.handle, AttrMask: a.QPAttrMask, QPState: uint8(a.QPState), CurQPState: uint8(a.CurQPState), PathMTU: uint8(a.PathMTU),
		PathMigState: uint8(a.PathMigState), QKey: a.QKey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPNum, QPAccessFlags: a.QPAccessFlags,
		PKeyIndex: a.PKeyIndex, AltPKeyIndex: a.AltPKeyIndex, EnSQDAsyncNotify: a.EnSQDAsyncNotify, MaxRDAtomic: a.MaxRDAtomic,
		MaxDestRDAtomic: a.MaxDestRDAtomic, MinRNRTimer: a.MinRNRTimer, PortNum: a.PortNum, Timeout: a.Timeout, RetryCnt: a.RetryCnt,
		RNRRetry: a.RNRRetry, AltPortNum: a.AltPortNum, AltTimeout: a.AltTimeout, Dest: destOf(&a.AHAttr), AltDest: destOf(&a.AltAHAttr),
	}
	_, err := exec(q.d, abi.CmdModifyQP, &m, nil, answer{})
	return fault(fmt.Sprintf("move a queue pair to %v", State(a.QPState)), err)
}

func destOf(a *abi.AHAttr) abi.QPDest {
	return abi.QPDest{
		DGID: a.GRH.DGID, FlowLabel: a.GRH.FlowLabel, DLID: a.DLID, SGIDIndex: a.GRH.SGIDIndex, HopLimit: a.GRH.HopLimit,
		TrafficClass: a.GRH.TrafficClass, SL: a.SL, SrcPathBits: a.SrcPathBits, StaticRate: a.StaticRate, IsGlobal: a.IsGlobal, PortNum: a.PortNum,
	}
}

func (q *QP) initial(m *abi.ModifyQP, a *Attr) {
	m.AttrMask |= abi.QPMaskPKeyIndex | abi.QPMaskPort
	m.PortNum = portNumber
	if q.typ == UD {
		m.AttrMask |= abi.QPMaskQKey
		m.QKey = a.QKey
		return
	}
	m.AttrMask |= abi.QPMaskAccessFlags
	m.QPAccessFlags = uint32(a.Access &^ (BindWindows | ZeroBased))
}

func (q *QP) ready(m *abi.ModifyQP, a *Attr) error {
	if q.typ == UD {
		return nil
	}
	m.AttrMask |= abi.QPMaskAV | abi.QPMaskPathMTU | abi.QPMaskDestQPN | abi.QPMaskRQPSN
	e, err := q.d.entry(a.Local)
	if err != nil {
		return err
	}
	mtu := a.MTU
	if mtu == 0 {
		p, err := q.d.Port()
		if err != nil {
			return err
		}
		mtu = p.MTU
	}
	if m.PathMTU = mtu.number(); m.PathMTU == 0 {
		return fmt.Errorf("invalid MTU %d: use 256, 512, 1024, 2048 or 4096", a.MTU)
	}
	m.DestQPNum, m.RQPSN = a.Remote.QPN, a.Remote.PSN
	m.Dest = abi.QPDest{DGID: a.Remote.GID, SGIDIndex: uint8(e.Index), HopLimit: a.HopLimit, TrafficClass: a.Traffic, IsGlobal: 1, PortNum: portNumber}
	if m.Dest.HopLimit == 0 {
		m.Dest.HopLimit = 64
	}
	if q.typ == RC {
		m.AttrMask |= abi.QPMaskMaxDestRDAtomic | abi.QPMaskMinRNRTimer
		m.MaxDestRDAtomic, m.MinRNRTimer = a.PeerReads, a.RNRTimer
	}
	return nil
}

func (q *QP) sending(m *abi.ModifyQP, a *Attr) {
	m.AttrMask |= abi.QPMaskSQPSN
	m.SQPSN = a.SendPSN
	if q.typ == RC {
		m.AttrMask |= abi.QPMaskTimeout | abi.QPMaskRetryCnt | abi.QPMaskRNRRetry | abi.QPMaskMaxQPRDAtomic
		m.Timeout, m.RetryCnt, m.RNRRetry, m.MaxRDAtomic = a.Timeout, a.Retry, a.RNRRetry, a.MaxReads
	}
}

// Connect connects an RC or UC queue pair to its peer. The peer does the same with this side's Address.
func (q *QP) Connect(remote Address) error {
	a := defaults
	a.Remote, a.SendPSN = remote, q.psn
	return q.bring(a)
}

// Start makes a UD queue pair ready. Senders to it need the key.
func (q *QP) Start(qkey uint32) error {
	a := defaults
	a.QKey, a.SendPSN = qkey, q.psn
	return q.bring(a)
}

func (q *QP) bring(a Attr) error {
	for _, s := range []State{Init, RTR, RTS} {
		if err := q.Modify(s, a); err != nil {
			return err
		}
	}
	return nil
}

// resetRings resets the rings, as the device does in a change to Reset.
func (q *QP) resetRings() {
	q.send.Lock()
	q.send.ring.pos, q.send.ssn = q.send.ring.producer(), 0
	q.send.Unlock()
	q.recv.Lock()
	if q.recv.ring != nil {
		q.recv.ring.pos = q.recv.ring.producer()
	}
	q.recv.Unlock()
}

// State queries the queue pair's state.
func (q *QP) State() (State, error) {
	var r abi.QueryQPResp
	req := abi.QueryQP{Response: q.d.response(), QPHandle: q.handle, AttrMask: abi.QPMaskState}
	if _, err := exec(q.d, abi.CmdQueryQP, &req, nil, decode(&r)); err != nil {
		return 0, fault("query a queue pair", err)
	}
	return State(r.QPState), nil
}

// JoinGroup makes a UD queue pair receive the datagrams sent to a multicast group.
func (q *QP) JoinGroup(g GID) error {
	_, err := exec(q.d, abi.CmdAttachMcast, &abi.AttachMcast{GID: g, QPHandle: q.handle}, nil, answer{})
	return fault("join a multicast group", err)
}

// LeaveGroup leaves a multicast group.
func (q *QP) LeaveGroup(g GID) error {
	_, err := exec(q.d, abi.CmdDetachMcast, &abi.AttachMcast{GID: g, QPHandle: q.handle}, nil, answer{})
	return closed("leave a multicast group", err)
}

// Close destroys the queue pair. Outstanding requests never complete.
func (q *QP) Close() error {
	q.send.Lock()
	defer q.send.Unlock()
	q.recv.Lock()
	defer q.recv.Unlock()
	var r abi.DestroyQPResp
	_, err := exec(q.d, abi.CmdDestroyQP, &abi.DestroyQP{Response: q.d.response(), QPHandle: q.handle}, nil, decode(&r))
	if err = closed("free a queue pair", err); err != nil {
		return err
	}
	q.d.objects.Delete(q.id)
	for _, r := range []**ring{&q.send.ring, &q.recv.ring} {
		if *r != nil {
			(*r).close()
			*r = nil
		}
	}
	return nil
}

// An AH is an address handle: the destination of UD datagrams.
type AH struct {
	d      *Device
	handle uint32
	num    uint32
	av     [abi.AVSize]byte
}

// CreateAH creates an address handle for a peer or a multicast group. from is the source address, one of
// the port's GIDs; zero selects the first.
func (p *PD) CreateAH(to, from GID) (*AH, error) {
	const op = "create an address handle"
	e, err := p.d.entry(from)
	if err != nil {
		return nil, fault(op, err)
	}
	req := abi.CreateAH{Response: p.d.response(), PDHandle: p.handle}
	req.Attr = abi.AHAttr{GRH: abi.GlobalRoute{DGID: to, SGIDIndex: uint8(e.Index), HopLimit: 64}, IsGlobal: 1, PortNum: portNumber}
	var r abi.CreateAHResp
	var num uint32
	a := answer{size: 4 + abi.Size[abi.RxeCreateAHResp](), take: func(b []byte) {
		abi.Decode(b, &r)
		num = binary.NativeEndian.Uint32(b[4:])
	}}
	if _, err := exec(p.d, abi.CmdCreateAH, &req, nil, a); err != nil {
		return nil, fault(op, err)
	}
	h := &AH{d: p.d, handle: r.AHHandle, num: num}
	h.av[abi.AVPortNum] = portNumber
	h.av[abi.AVSGIDIndex] = uint8(e.Index)
	copy(h.av[abi.AVDGID:], to[:])
	return h, nil
}

// Close destroys the address handle. Datagrams already posted are not affected.
func (h *AH) Close() error {
	_, err := exec(h.d, abi.CmdDestroyAH, &abi.DestroyAH{AHHandle: h.handle}, nil, answer{})
	return closed("free an address handle", err)
}
