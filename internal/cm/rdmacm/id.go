package rdmacm

import (
	"net/netip"
	"syscall"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/cm"
	"vrdma.dev/vrdma/internal/ib"
)

// State is the state of an ID; doc.go has the diagram.
type State uint8

// States. Their numbers are part of IDState.
const (
	Idle State = iota
	Bound
	Resolving
	Resolved
	Routed
	Listening
	Connecting // or connected: the state of the cm.Conn tells
	Disconnected
	Destroyed
)

// An ID is a communication identifier: struct rdma_cm_id.
type ID struct {
	Name   uint32
	serial uint32
	cma    *CMA
	client *Client
	ch     *Channel
	uid    uint64 // the program's number; 0: the program does not know the ID yet
	ps     uint16
	qpType uint8
	state  State

	src, dst netip.AddrPort
	port     *port   // nil: none
	turn     uint64  // number of the ID's bind among all binds
	device   bool    // the addresses belong to this device
	until    ib.Time // Resolving: when the resolution fails
	sgid     ib.GID
	dgid     ib.GID

	reuse, afOnly, afOnlySet bool
	tos                      uint8
	ackTimeout               uint8 // code; 0: not set
	life                     uint8 // code of the packet lifetime on the path

	conn     *cm.Conn
	counted  bool   // charged as a connection, see connectionBill
	up       bool   // the connection is established
	seq      uint32 // first PSN of the peer
	qpn      uint32
	qkey     uint32
	srq      bool
	backlog  int  // maximum number of waiting requests
	waiting  int  // number of waiting requests
	pending  bool // its CONNECT_REQUEST is unread
	passive  bool // the peer requested the connection
	reported uint32
	groups   []*Group
	parent   *ID // the listener, between admit and announce
}

// Create creates an ID.
func (ch *Channel) Create(uid uint64, ps uint16, qpType uint8) (*ID, error) {
	switch ps {
	case abi.PSTCP:
		qpType = abi.QPTypeRC
	case abi.PSUDP, abi.PSIPoIB:
		qpType = abi.QPTypeUD
	case abi.PSIB:
	default:
		return nil, syscall.EINVAL
	}
	return ch.newID(uid, ps, qpType)
}

func (ch *Channel) newID(uid uint64, ps uint16, qpType uint8) (*ID, error) {
	if ch.closed {
		return nil, syscall.EIO // its process has just ended
	}
	a := ch.client.cma
	id := &ID{serial: a.nic.Serial(), cma: a, client: ch.client, ch: ch, uid: uid, ps: ps, qpType: qpType, seq: a.nic.Random() & 0xffffff}
	var err error
	if id.Name, err = ch.client.ids.add(id); err != nil {
		return nil, err
	}
	ch.ids[id] = struct{}{}
	return id, nil
}

// ID returns the identifier with a number: ENOENT if there is none, EINVAL if it is on another channel, like ucma_get_ctx.
func (ch *Channel) ID(name uint32) (*ID, error) {
	id := ch.client.ids.items[name]
	switch {
	case id == nil:
		return nil, syscall.ENOENT
	case id.ch != ch:
		return nil, syscall.EINVAL
	}
	return id, nil
}

// count charges the ID as a connection.
func (id *ID) count() error {
	if id.counted {
		return nil
	}
	if err := id.client.ids.account.Charge(connectionBill); err != nil {
		return err
	}
	id.counted = true
	return nil
}

// ud reports whether the ID is for datagrams.
func (id *ID) ud() bool { return id.qpType == abi.QPTypeUD }

// Destroy destroys an ID and returns how many of its events the program has read.
func (id *ID) Destroy() uint32 {
	id.ch.settle()
	if id.state == Listening {
		id.cma.vacate(id.port.key, id.client)
	}
	id.destroy()
	return id.reported
}

func (id *ID) destroy() {
	if id.state == Destroyed {
		return
	}
	id.state = Destroyed
	id.ended()
	id.Changed()
	id.client.ids.remove(id.Name)
	if id.counted {
		id.counted = false
		id.client.ids.account.Refund(connectionBill)
	}
	delete(id.ch.ids, id)
	id.release()
	id.cma.hushed(id)
	if id.conn != nil {
		id.cma.manager.Destroy(id.cma.now(), id.conn)
		id.conn = nil
	}
	for _, g := range id.groups {
		id.client.groups.remove(g.Name)
	}
	id.groups = nil
	for _, e := range id.ch.withdraw(func(e *event) bool { return e.id == id || e.child == id }) {
		if e.child == id {
			e.id.waiting--
		} else if e.child != nil {
			e.child.destroy() // it can never be accepted
		}
	}
}

// Migrate moves an ID and its unread events to another channel of the same client.
func (ch *Channel) Migrate(from uint32, name uint32) (uint32, error) {
	old := ch.client.channels.items[from]
	if old == nil {
		return 0, syscall.EINVAL
	}
	id, err := old.ID(name)
	if err != nil {
		return 0, err
	}
	old.settle()
	if old != ch {
		id.Changed()
		moved := old.withdraw(func(e *event) bool { return e.id == id })
		delete(old.ids, id)
		ch.ids[id] = struct{}{}
		id.ch = ch
		for _, e := range moved {
			ch.post(e)
		}
	}
	return id.reported, nil
}

// tell posts an event about the ID. It posts nothing if the program does not know the ID yet: the program's accept will fail.
func (id *ID) tell(kind uint32, status int32, conn *abi.CMConnParam, ud *abi.CMUDParam) {
	id.tellWith(cm.ECE{}, kind, status, conn, ud)
}

func (id *ID) tellWith(ece cm.ECE, kind uint32, status int32, conn *abi.CMConnParam, ud *abi.CMUDParam) {
	if id.uid == 0 || id.state == Destroyed {
		return
	}
	e := &event{id: id, resp: abi.CMEventResp{
		UID: id.uid, ID: id.Name, Event: kind, Status: uint32(status), ECEVendor: ece.Vendor, ECEMod: ece.Modifier,
	}}
	e.fill(conn, ud)
	id.ch.post(e)
}

// maxWritten is the maximum number of unread events that a program may write to a channel.
const maxWritten = 4096

// Write posts an event from one thread of the program for another.
func (id *ID) Write(kind, status uint32, arg [8]byte) error {
	if kind != abi.CMEventUser && kind != abi.CMEventInternal {
		return syscall.EINVAL
	}
	if id.ch.settle(); len(id.ch.events) >= maxWritten {
		return syscall.ENOMEM
	}
	e := &event{id: id, resp: abi.CMEventResp{UID: id.uid, ID: id.Name, Event: kind, Status: status}}
	copy(e.resp.Param[:], arg[:])
	id.ch.post(e)
	return nil
}

// fill sets the union of an event.
func (e *event) fill(conn *abi.CMConnParam, ud *abi.CMUDParam) {
	switch {
	case conn != nil:
		copy(e.resp.Param[:], abi.Encode(nil, conn))
	case ud != nil:
		copy(e.resp.Param[:], abi.Encode(nil, ud))
	}
}

// failure returns the status of an event: a negative errno.
func failure(e syscall.Errno) int32 { return -int32(e) }

// SetOption is SET_OPTION of level ID.
func (id *ID) SetOption(name uint32, value []byte) error {
	number := func() (uint32, bool) {
		if len(value) != 4 {
			return 0, false
		}
		return uint32(value[0]) | uint32(value[1])<<8 | uint32(value[2])<<16 | uint32(value[3])<<24, true
	}
	switch name {
	case abi.CMOptionIDTOS:
		if len(value) != 1 {
			return syscall.EINVAL
		}
		id.tos = value[0]
	case abi.CMOptionIDReuseAddr:
		// Only an ID without an address can clear the option.
		v, ok := number()
		if !ok || id.state != Idle && (v == 0 || id.state == Listening) {
			return syscall.EINVAL
		}
		id.reuse = v != 0
	case abi.CMOptionIDAFOnly:
		v, ok := number()
		if !ok || id.state != Idle && id.state != Bound {
			return syscall.EINVAL
		}
		id.afOnly, id.afOnlySet = v != 0, true
	case abi.CMOptionIDAckTimeout:
		if len(value) != 1 || id.qpType != abi.QPTypeRC {
			return syscall.EINVAL
		}
		id.ackTimeout = value[0] & maxTimeout // the REQ field has five bits
	default:
		return syscall.ENOSYS
	}
	return nil
}
