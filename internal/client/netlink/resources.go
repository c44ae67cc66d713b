package netlink

import (
	"net/netip"
	"syscall"
)

// A shape describes how a kind of object is shown: its command, its table, and the attribute that identifies it.
type shape struct {
	name         string // in the summary
	command      uint16
	table, entry uint16
	id           uint16
	write        func(*message, *Resource)
}

var shapes = [kinds]shape{
	PD:   {"pd", cmdResPDGet, attrPD, attrPDEntry, attrPDN, writePD},
	CQ:   {"cq", cmdResCQGet, attrCQ, attrCQEntry, attrCQN, writeCQ},
	QP:   {"qp", cmdResQPGet, attrQP, attrQPEntry, attrLQPN, writeQP},
	CMID: {"cm_id", cmdResCMIDGet, attrCMID, attrCMIDEntry, attrCMIDN, writeCMID},
	MR:   {"mr", cmdResMRGet, attrMR, attrMREntry, attrMRN, writeMR},
	Ctx:  {"ctx", cmdResCtxGet, attrCtx, attrCtxEntry, attrCtxN, writeCtx},
	SRQ:  {"srq", cmdResSRQGet, attrSRQ, attrSRQEntry, attrSRQN, writeSRQ},
}

func resource(k Kind) command {
	return command{
		one: func(a *answer, r *request) error { return a.object(r, k) },
		all: func(a *answer, r *request) error { return a.objects(r, k) },
	}
}

func writePD(m *message, r *Resource) {
	m.u64(attrUsers, r.Users)
	m.u32(attrPDN, r.ID)
	m.u32(attrCtxN, r.Context)
}

func writeCQ(m *message, r *Resource) {
	m.u32(attrCQE, r.CQE)
	m.u64(attrUsers, r.Users)
	m.u8(attrDim, 0)
	m.u32(attrCQN, r.ID)
	m.u32(attrCtxN, r.Context)
}

func writeQP(m *message, r *Resource) {
	if r.Port != 0 {
		m.u32(attrPortIndex, r.Port)
	}
	m.u32(attrLQPN, r.ID)
	if r.Connected {
		m.u32(attrRQPN, r.RemoteQPN)
		m.u32(attrRQPSN, r.RecvPSN)
	}
	m.u32(attrSQPSN, r.SendPSN)
	if r.Connected {
		m.u8(attrPathMig, r.Path)
	}
	m.u8(attrType, r.Type)
	m.u8(attrState, r.State)
	m.u32(attrPDN, r.PD)
}

func writeCMID(m *message, r *Resource) {
	if r.Port != 0 {
		m.u32(attrPortIndex, r.Port)
	}
	if r.QPN != 0 {
		m.u32(attrLQPN, r.QPN)
		m.u8(attrType, r.Type)
	}
	m.u32(attrPS, r.PortSpace)
	m.u8(attrState, r.State)
	if r.Src.IsValid() {
		m.bytes(attrSrcAddr, sockaddr(r.Src))
	}
	if r.Dst.IsValid() {
		m.bytes(attrDstAddr, sockaddr(r.Dst))
	}
	m.u32(attrCMIDN, r.ID)
}

func writeMR(m *message, r *Resource) {
	m.u64(attrMRLen, r.Length)
	m.u32(attrMRN, r.ID)
	m.u32(attrPDN, r.PD)
}

func writeCtx(m *message, r *Resource) { m.u32(attrCtxN, r.ID) }

// maxSharing is the maximum number of queue pairs shown for a shared receive queue: `rdma` has space for fewer.
const maxSharing = 64

func writeSRQ(m *message, r *Resource) {
	m.u32(attrSRQN, r.ID)
	m.u8(attrType, r.Type)
	m.u32(attrPDN, r.PD)
	table := m.nest(attrQP)
	for _, q := range r.QPs[:min(len(r.QPs), maxSharing)] {
		entry := m.nest(attrQPEntry)
		m.u32(attrLQPN, q)
		m.close(entry)
	}
	m.close(table)
}

// sockaddr returns a struct __kernel_sockaddr_storage.
func sockaddr(a netip.AddrPort) []byte {
	const size, inet, inet6 = 128, 2, 10
	b := make([]byte, size)
	b[2], b[3] = byte(a.Port()>>8), byte(a.Port())
	ip := a.Addr().Unmap()
	if ip.Is4() {
		order.PutUint16(b, inet)
		copy(b[4:], ip.AsSlice())
	} else {
		order.PutUint16(b, inet6)
		copy(b[8:], ip.AsSlice())
	}
	return b
}

// writeTo writes an object and its owner.
func (s *shape) writeTo(m *message, r *Resource) {
	s.write(m, r)
	m.u32(attrPid, r.Pid)
}

// object answers for the object that the request names.
func (a *answer) object(r *request, k Kind) error {
	s := &shapes[k]
	id, ok := r.u32(s.id)
	if err := a.ours(r); err != nil || !ok {
		return syscall.EINVAL
	}
	err := error(syscall.ENOENT)
	a.src.Resources(k, func(list []Resource) bool {
		for i := range list {
			if list[i].ID == id {
				a.begin(r, s.command, 0)
				a.handle()
				s.writeTo(&a.out, &list[i])
				a.flush()
				err = nil
				return false
			}
		}
		return true
	})
	return err
}

// objects dumps a kind, in tables as large as fit into a datagram.
func (a *answer) objects(r *request, k Kind) error {
	if err := a.ours(r); err != nil {
		return err
	}
	s := &shapes[k]
	port, only := r.u32(attrPortIndex)
	if only && port != 1 {
		return syscall.EINVAL
	}
	hasPort := k == QP || k == CMID
	var one message
	table := 0 // offset of the table in the current message; 0: none
	end := func() bool {
		if table == 0 {
			return true
		}
		a.out.close(table)
		table = 0
		return a.flush()
	}
	a.src.Resources(k, func(list []Resource) bool {
		for i := range list {
			if only && hasPort && list[i].Port != port {
				continue
			}
			one.b = one.b[:0]
			entry := one.nest(s.entry)
			s.writeTo(&one, &list[i])
			one.close(entry)
			if table != 0 && len(a.out.b)+len(one.b) > maxDatagram && !end() {
				return false
			}
			if table == 0 {
				a.begin(r, s.command, flagMulti)
				a.handle()
				table = a.out.nest(s.table)
			}
			a.out.b = append(a.out.b, one.b...)
		}
		return true
	})
	end()
	return a.done(r)
}

func (a *answer) summary(r *request) error {
	if err := a.ours(r); err != nil {
		return err
	}
	a.describeSummary(r, 0)
	return nil
}

func (a *answer) summaries(r *request) error {
	a.describeSummary(r, flagMulti)
	return a.done(r)
}

func (a *answer) describeSummary(r *request, flags uint16) {
	a.begin(r, cmdResGet, flags)
	a.handle()
	table := a.out.nest(attrSummary)
	for k, n := range a.src.Counts() {
		entry := a.out.nest(attrSummaryEntry)
		a.out.text(attrSummaryName, shapes[k].name)
		a.out.u64(attrSummaryCurrent, n)
		a.out.close(entry)
	}
	a.out.close(table)
	a.flush()
}

// counters shows the port's counters, or the counting mode of queue pairs: none.
func (a *answer) counters(r *request) error {
	if what, ok := r.u32(attrStatRes); ok {
		return a.counterMode(r, what)
	}
	if err := a.oursAndPort(r); err != nil {
		return err
	}
	a.begin(r, cmdStatGet, 0)
	a.handle()
	a.out.u32(attrPortIndex, 1)
	table := a.out.nest(attrCounters)
	for _, c := range a.src.Counters() {
		entry := a.out.nest(attrCounterEntry)
		a.out.text(attrCounterName, c.Name)
		a.out.u64(attrCounterValue, c.Value)
		a.out.close(entry)
	}
	a.out.close(table)
	a.flush()
	return nil
}

func (a *answer) counterMode(r *request, what uint32) error {
	const none = 0 // RDMA_COUNTER_MODE_NONE
	if what != attrQP {
		return syscall.EOPNOTSUPP
	}
	if _, one := r.attrs[attrStatCounterID]; one {
		return syscall.ENOENT
	}
	if err := a.oursAndPort(r); err != nil {
		return err
	}
	if _, ok := r.attrs[attrStatMode]; !ok {
		return syscall.EINVAL
	}
	a.begin(r, cmdStatGet, 0)
	a.handle()
	a.out.u32(attrPortIndex, 1)
	a.out.u32(attrStatMode, none)
	a.flush()
	return nil
}

// boundCounters dumps the counters bound to queue pairs or regions: none.
func (a *answer) boundCounters(r *request) error {
	if _, ok := r.u32(attrStatRes); !ok {
		return syscall.EINVAL
	}
	if err := a.ours(r); err != nil {
		return err
	}
	return a.done(r)
}

// counterStatus lists the port's counters, which cannot be disabled.
func (a *answer) counterStatus(r *request) error {
	if err := a.oursAndPort(r); err != nil {
		return err
	}
	a.begin(r, cmdStatGetStatus, 0)
	a.handle()
	a.out.u32(attrPortIndex, 1)
	table := a.out.nest(attrCounters)
	for i, c := range a.src.Counters() {
		entry := a.out.nest(attrCounterEntry)
		a.out.text(attrCounterName, c.Name)
		a.out.u32(attrCounterIndex, uint32(i))
		a.out.close(entry)
	}
	a.out.close(table)
	a.flush()
	return nil
}
