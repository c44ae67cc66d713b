package netlink

import (
	"errors"
	"syscall"
)

// Answer answers one datagram of a program. It passes every datagram of the answer to send, and returns send's first error. The
// bytes are valid only during the call.
func Answer(datagram []byte, src Source, send func([]byte) error) error {
	a := answer{src: src, send: send}
	for a.err == nil {
		r, body, rest, ok := next(datagram)
		if !ok {
			break
		}
		a.message(&r, body)
		datagram = rest
	}
	return a.err
}

// An answer is an answer under construction.
type answer struct {
	src  Source
	send func([]byte) error
	err  error // error of send
	out  message
}

// errAnswered means that a dump has already sent its last message.
var errAnswered = errors.New("answered")

// A refusal is an errno with a text for the user.
type refusal struct {
	errno syscall.Errno
	text  string
}

func (r *refusal) Error() string { return r.text }

// A command is a row of the table.
type command struct {
	one func(*answer, *request) error // answers for one object; nil: not supported
	all func(*answer, *request) error // dumps
}

var commands = map[uint16]command{
	cmdGet:           {one: (*answer).device, all: (*answer).devices},
	cmdPortGet:       {one: (*answer).port, all: (*answer).ports},
	cmdSysGet:        {one: (*answer).system},
	cmdGetChardev:    {one: (*answer).chardev},
	cmdResGet:        {one: (*answer).summary, all: (*answer).summaries},
	cmdResPDGet:      resource(PD),
	cmdResCQGet:      resource(CQ),
	cmdResQPGet:      resource(QP),
	cmdResCMIDGet:    resource(CMID),
	cmdResMRGet:      resource(MR),
	cmdResCtxGet:     resource(Ctx),
	cmdResSRQGet:     resource(SRQ),
	cmdStatGet:       {one: (*answer).counters, all: (*answer).boundCounters},
	cmdStatGetStatus: {one: (*answer).counterStatus},

	cmdSet: fixed, cmdNewLink: fixed, cmdDelLink: fixed, cmdSysSet: fixed, cmdStatSet: fixed, cmdStatDel: fixed,
	cmdNewDev: fixed, cmdDelDev: fixed, cmdFRMRPoolsSet: fixed,
}

// fixed refuses to change the device.
var fixed = command{one: func(*answer, *request) error {
	return &refusal{syscall.EOPNOTSUPP, "this device is a vrdma daemon's: it cannot be changed over netlink"}
}}

// message answers one message, and acknowledges it if that was requested or it failed.
func (a *answer) message(r *request, body []byte) {
	var err error
	if r.flags&flagRequest != 0 && r.kind >= typeMin {
		err = a.run(r, body)
	}
	if err == errAnswered || err == nil && r.flags&flagAck == 0 {
		return
	}
	a.acknowledge(r, err)
}

func (a *answer) run(r *request, body []byte) error {
	c, known := commands[r.command()]
	if r.client() != clientNLDev || !known {
		return syscall.EINVAL
	}
	if err := r.parse(body); err != nil {
		return err
	}
	f := c.one
	if r.flags&flagDump != 0 && c.all != nil {
		f = c.all
	}
	if f == nil {
		return syscall.EINVAL
	}
	return f(a, r)
}

// acknowledge sends the result of a request, with the text of a refusal, which `rdma` prints.
func (a *answer) acknowledge(r *request, err error) {
	var errno syscall.Errno
	var why *refusal
	switch {
	case err == nil:
	case errors.As(err, &why):
		errno = why.errno
	case !errors.As(err, &errno):
		errno = syscall.EINVAL
	}
	flags := uint16(flagCapped)
	if why != nil {
		flags |= flagTLVs
	}
	a.out.begin(r, typeError, flags)
	a.out.b = order.AppendUint32(a.out.b, uint32(-int32(errno)))
	a.out.b = append(a.out.b, r.header...)
	if why != nil {
		a.out.text(errAttrMessage, why.text)
	}
	a.flush()
}

// begin starts a message of an answer.
func (a *answer) begin(r *request, cmd, flags uint16) { a.out.begin(r, clientNLDev<<10+cmd, flags) }

// flush sends the message. It returns false after an error.
func (a *answer) flush() bool {
	if a.err == nil {
		a.err = a.send(a.out.end())
	}
	return a.err == nil
}

// done ends a dump.
func (a *answer) done(r *request) error {
	a.out.begin(r, typeDone, flagMulti)
	a.out.b = order.AppendUint32(a.out.b, 0)
	a.flush()
	return errAnswered
}

// ours checks that the request names this device.
func (a *answer) ours(r *request) error {
	if index, ok := r.u32(attrDevIndex); !ok || index != a.src.Device().Index {
		return syscall.EINVAL
	}
	return nil
}

// oursAndPort also checks that the request names its port.
func (a *answer) oursAndPort(r *request) error {
	if port, ok := r.u32(attrPortIndex); !ok || port != 1 {
		return syscall.EINVAL
	}
	return a.ours(r)
}

// handle adds the attributes that identify the device.
func (a *answer) handle() {
	d := a.src.Device()
	a.out.u32(attrDevIndex, d.Index)
	a.out.text(attrDevName, d.Name)
}

func (a *answer) device(r *request) error {
	if err := a.ours(r); err != nil {
		return err
	}
	a.describeDevice(r, 0)
	return nil
}

func (a *answer) devices(r *request) error {
	a.describeDevice(r, flagMulti)
	return a.done(r)
}

func (a *answer) describeDevice(r *request, flags uint16) {
	d := a.src.Device()
	a.begin(r, cmdGet, flags)
	a.handle()
	a.out.u32(attrPortIndex, d.Ports)
	a.out.u64(attrCapFlags, d.CapFlags)
	a.out.u64(attrNodeGUID, d.NodeGUID)
	a.out.u64(attrSysImageGUID, d.SystemGUID)
	a.out.u8(attrNodeType, d.NodeType)
	a.out.u8(attrDim, 0)
	a.out.text(attrProtocol, d.Protocol)
	a.flush()
}

func (a *answer) port(r *request) error {
	if err := a.oursAndPort(r); err != nil {
		return err
	}
	a.describePort(r, cmdGet, 0) // the kernel's answer has this command, too
	return nil
}

func (a *answer) ports(r *request) error {
	if err := a.ours(r); err != nil {
		return err
	}
	a.describePort(r, cmdPortGet, flagMulti)
	return a.done(r)
}

func (a *answer) describePort(r *request, cmd, flags uint16) {
	p := a.src.Port()
	a.begin(r, cmd, flags)
	a.handle()
	a.out.u32(attrPortIndex, 1)
	a.out.u64(attrCapFlags, p.CapFlags)
	a.out.u8(attrPortState, p.State)
	a.out.u8(attrPortPhysState, p.PhysState)
	if p.NetDev != "" {
		a.out.u32(attrNetDevIndex, p.NetDevIndex)
		a.out.text(attrNetDevName, p.NetDev)
	}
	a.flush()
}

// system reports that every network namespace sees the device, and that libibverbs must protect registered memory from fork as usual.
func (a *answer) system(r *request) error {
	const shared = 1
	a.begin(r, cmdSysGet, 0)
	a.out.u8(attrNetnsMode, shared)
	a.out.u8(attrCopyOnFork, 0)
	a.flush()
	return nil
}

func (a *answer) chardev(r *request) error {
	name, ok := r.text(attrChardevType)
	if !ok {
		return syscall.EINVAL
	}
	c, ok := a.src.Chardev(name)
	if !ok {
		return syscall.EOPNOTSUPP
	}
	if _, index := r.attrs[attrDevIndex]; c.OfDevice || index {
		if err := a.ours(r); err != nil {
			return err
		}
	}
	a.begin(r, cmdGetChardev, 0)
	a.out.u64(attrChardev, uint64(c.Minor&0xff|c.Major<<8|c.Minor&^0xff<<12)) // huge_encode_dev
	a.out.u64(attrChardevABI, c.ABI)
	a.out.text(attrChardevName, c.Name)
	if c.OfDevice {
		a.out.u32(attrDriverID, a.src.Device().UverbsDriverID)
	}
	a.flush()
	return nil
}
