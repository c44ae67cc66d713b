package nic

import (
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Destroying an object that others use fails with EBUSY, as in the kernel, until its last user is
// destroyed.
func TestDestroyInUse(t *testing.T) {
	r := newRig(t, DefaultLimits)
	o := r.objects()
	s := o.s
	srq := must(s.CreateSRQ(SRQParams{PD: o.pd, MaxWR: 4}))(t)
	qp := must(s.CreateQP(QPParams{PD: o.pd, SendCQ: o.cq, RecvCQ: o.cq, HasSRQ: true, SRQ: srq.Handle, Type: abi.QPTypeRC}))(t)
	mr := o.mr(t, 1<<30, 4096, abi.AccessLocalWrite)
	ah, _, err := s.CreateAH(o.pd, AHAttr{IsGlobal: true, PortNum: 1})
	wants(t, "CreateAH", err, 0)
	mw := must(s.AllocMW(o.pd, abi.MWType2))(t)

	destroyCQ := func() error { _, _, err := s.DestroyCQ(o.cq); return err }
	destroySRQ := func() error { _, err := s.DestroySRQ(srq.Handle); return err }
	wants(t, "a CQ with a queue pair", destroyCQ(), syscall.EBUSY)
	wants(t, "an SRQ with a queue pair", destroySRQ(), syscall.EBUSY)
	_, err = s.DestroyQP(qp.Handle)
	wants(t, "the queue pair", err, 0)
	wants(t, "the CQ", destroyCQ(), 0)
	wants(t, "a PD with an SRQ, an MR, an AH and an MW", s.DeallocPD(o.pd), syscall.EBUSY)
	wants(t, "the SRQ", destroySRQ(), 0)
	wants(t, "the MR", s.DeregMR(mr.Handle), 0)
	wants(t, "the AH", s.DestroyAH(ah), 0)
	wants(t, "a PD with an MW", s.DeallocPD(o.pd), syscall.EBUSY)
	wants(t, "the MW", s.DeallocMW(mw.Handle), 0)
	wants(t, "the PD", s.DeallocPD(o.pd), 0)
	for what, err := range map[string]error{
		"PD": s.DeallocPD(o.pd), "CQ": destroyCQ(), "SRQ": destroySRQ(), "MR": s.DeregMR(mr.Handle), "AH": s.DestroyAH(ah), "MW": s.DeallocMW(mw.Handle),
	} {
		wants(t, "the "+what+" again", err, syscall.ENOENT)
	}
}

// A handle means something to its session only.
func TestHandlesAreOfASession(t *testing.T) {
	r := newRig(t, DefaultLimits)
	mine := r.objects()
	mr := mine.mr(t, 1<<30, 4096, abi.AccessLocalWrite)
	qp := mine.qp(t, abi.QPTypeUD)
	other := r.open()
	_, err := other.CreateCQ(CQParams{CQE: 1, Channel: -1})
	wants(t, "a CQ of its own", err, 0)
	_, err = other.CreateQP(QPParams{PD: mine.pd, SendCQ: mine.cq, RecvCQ: mine.cq, Type: abi.QPTypeRC})
	wants(t, "a queue pair in another's PD", err, syscall.ENOENT)
	wants(t, "another's MR", other.DeregMR(mr.Handle), syscall.ENOENT)
	wants(t, "another's PD", other.DeallocPD(mine.pd), syscall.ENOENT)
	if other.QP(qp.Handle) != nil {
		t.Error("another's queue pair is found by its handle")
	}
	wants(t, "to attach another's queue pair", other.AttachMcast(qp.Handle, ib.GID{0: 0xff, 15: 1}, 0), syscall.ENOENT)
}

// Each kind of object has a limit a session, and the errno that rxe gives at it.
func TestLimits(t *testing.T) {
	const most = 3
	l := DefaultLimits
	l.PDs, l.CQs, l.QPs, l.SRQs, l.MRs, l.MWs, l.AHs, l.Channels = most, most, most, most, most, most, most, most
	r := newRig(t, l)
	s := r.open()
	pd := must(s.AllocPD())(t)
	cq := must(s.CreateCQ(CQParams{CQE: 1, Channel: -1}))(t).Handle
	for _, c := range []struct {
		name string
		have int // of it that are there already
		make func() error
		want syscall.Errno
	}{
		{"PD", 1, func() error { _, err := s.AllocPD(); return err }, syscall.EINVAL},
		{"CQ", 1, func() error { _, err := s.CreateCQ(CQParams{CQE: 1, Channel: -1}); return err }, syscall.EINVAL},
		{"QP", 0, func() error {
			_, err := s.CreateQP(QPParams{PD: pd, SendCQ: cq, RecvCQ: cq, Type: abi.QPTypeRC})
			return err
		}, syscall.EINVAL},
		{"SRQ", 0, func() error { _, err := s.CreateSRQ(SRQParams{PD: pd, MaxWR: 1}); return err }, syscall.EINVAL},
		{"MW", 0, func() error { _, err := s.AllocMW(pd, abi.MWType1); return err }, syscall.EINVAL},
		{"AH", 0, func() error { _, _, err := s.CreateAH(pd, AHAttr{IsGlobal: true, PortNum: 1}); return err }, syscall.EINVAL},
		{"channel", 0, func() error {
			_, _, err := openChannel(t, s)
			return err
		}, syscall.EMFILE},
	} {
		for i := c.have; i < most; i++ {
			wants(t, c.name, c.make(), 0)
		}
		wants(t, c.name+" beyond the limit", c.make(), c.want)
	}
	s.Arena.Reclaim()
	used := s.Arena.used
	_, err := s.CreateQP(QPParams{PD: pd, SendCQ: cq, RecvCQ: cq, Type: abi.QPTypeRC})
	s.Arena.Reclaim()
	if err == nil || s.Arena.used != used {
		t.Errorf("a queue pair that was refused keeps %d bytes of the arena", s.Arena.used-used)
	}
}

// Numbers and keys are random, unique, and never one that is reserved.
func TestNumbers(t *testing.T) {
	r := newRig(t, DefaultLimits)
	// A source that repeats itself and offers what is reserved.
	sequence := []uint32{0, 1, 0xff, 0xffffff, 0x1234, 0x1234, 0x1234, 0x5678, 0x00, 0xab, 0x5678_00, 0x5678_00, 0x9999_00}
	i := 0
	r.nic.Random = func() uint32 { v := sequence[i%len(sequence)]; i++; return v }
	o := r.objects()
	a, b := o.qp(t, abi.QPTypeRC), o.qp(t, abi.QPTypeRC)
	if a.Num != 0x1234 || b.Num != 0x5678 {
		t.Errorf("queue pairs %#x and %#x, want the first free ones that are not reserved", a.Num, b.Num)
	}
	w, v := must(o.s.AllocMW(o.pd, abi.MWType1))(t), must(o.s.AllocMW(o.pd, abi.MWType1))(t)
	if w.RKey>>8 != 0x5678 || v.RKey>>8 != 0x9999 {
		t.Errorf("keys %#x and %#x, want different objects", w.RKey, v.RKey)
	}
}

// A queue pair's parameters are checked as create_qp does.
func TestQueuePairParameters(t *testing.T) {
	r := newRig(t, DefaultLimits)
	o := r.objects()
	good := QPParams{PD: o.pd, SendCQ: o.cq, RecvCQ: o.cq, Type: abi.QPTypeRC}
	for _, c := range []struct {
		name string
		edit func(*QPParams)
		want syscall.Errno
	}{
		{"good", func(*QPParams) {}, 0},
		{"raw Ethernet", func(p *QPParams) { p.Type = abi.QPTypeRawPacket }, syscall.EOPNOTSUPP},
		{"flags", func(p *QPParams) { p.Flags = 1 }, syscall.EOPNOTSUPP},
		{"too many sends", func(p *QPParams) { p.Cap.SendWR = DefaultLimits.QPWR + 1 }, syscall.EINVAL},
		{"too many receives", func(p *QPParams) { p.Cap.RecvWR = DefaultLimits.QPWR + 1 }, syscall.EINVAL},
		{"too many entries", func(p *QPParams) { p.Cap.SendSGE = DefaultLimits.SGE + 1 }, syscall.EINVAL},
		{"too much inline", func(p *QPParams) { p.Cap.Inline = DefaultLimits.Inline + 1 }, syscall.EINVAL},
		{"no such PD", func(p *QPParams) { p.PD = 99 }, syscall.ENOENT},
		{"no such CQ", func(p *QPParams) { p.RecvCQ = 99 }, syscall.ENOENT},
		{"no such SRQ", func(p *QPParams) { p.HasSRQ, p.SRQ = true, 99 }, syscall.ENOENT},
	} {
		p := good
		c.edit(&p)
		_, err := o.s.CreateQP(p)
		wants(t, c.name, err, c.want)
	}
	q := must(o.s.CreateQP(QPParams{PD: o.pd, SendCQ: o.cq, RecvCQ: o.cq, Type: abi.QPTypeRC, Cap: QPCap{SendWR: 100, RecvWR: 5, Inline: 100}}))(t)
	if q.Cap.SendWR < 100 || q.Cap.RecvWR < 5 || q.Cap.Inline < 100 || q.Cap.SendSGE < 1 || q.Cap.RecvSGE < 1 {
		t.Errorf("asked for 100, 5 and 100 bytes inline, got %+v", q.Cap)
	}
}

// Groups: datagram queue pairs only, twice is once, the link joins with the first member
// and leaves with the last.
func TestGroups(t *testing.T) {
	r := newRig(t, DefaultLimits)
	o := r.objects()
	group := ib.GID{0: 0xff, 1: 0x0e, 15: 1}
	a, b, rc := o.qp(t, abi.QPTypeUD), o.qp(t, abi.QPTypeUD), o.qp(t, abi.QPTypeRC)
	wants(t, "a connected queue pair", o.s.AttachMcast(rc.Handle, group, 0), syscall.EINVAL)
	wants(t, "an address that is no group", o.s.AttachMcast(a.Handle, ib.GID{0: 0xfe}, 0), syscall.EINVAL)
	r.loop.refuse = syscall.ENOMEM
	wants(t, "a group that the network refuses", o.s.AttachMcast(a.Handle, group, 0), syscall.ENOMEM)
	r.loop.refuse = nil
	for _, h := range []uint32{a.Handle, a.Handle, b.Handle} {
		wants(t, "attach", o.s.AttachMcast(h, group, 0), 0)
	}
	if n := len(r.nic.Multicast(group)); n != 2 || !r.loop.groups[group] {
		t.Errorf("%d members, joined %v; want 2, true", n, r.loop.groups[group])
	}
	_, err := o.s.DestroyQP(a.Handle)
	wants(t, "a queue pair that is attached", err, syscall.EBUSY)
	wants(t, "detach", o.s.DetachMcast(a.Handle, group, 0), 0)
	wants(t, "detach again", o.s.DetachMcast(a.Handle, group, 0), syscall.EINVAL)
	if !r.loop.groups[group] {
		t.Error("the link has left while there is a member")
	}
	wants(t, "detach the last", o.s.DetachMcast(b.Handle, group, 0), 0)
	if r.loop.groups[group] {
		t.Error("the link is still joined")
	}
	// The session's end detaches what is left.
	wants(t, "attach", o.s.AttachMcast(b.Handle, group, 0), 0)
}

// The end of a session takes everything along, whatever refers to what.
func TestSessionEnd(t *testing.T) {
	r := newRig(t, DefaultLimits)
	o := r.objects()
	srq := must(o.s.CreateSRQ(SRQParams{PD: o.pd, MaxWR: 4}))(t)
	for range 10 {
		must(o.s.CreateQP(QPParams{PD: o.pd, SendCQ: o.cq, RecvCQ: o.cq, HasSRQ: true, SRQ: srq.Handle, Type: abi.QPTypeRC}))(t)
	}
	mr := o.mr(t, 1<<30, 8192, abi.AccessLocalWrite|abi.AccessMWBind)
	w := must(o.s.AllocMW(o.pd, abi.MWType1))(t)
	q := o.s.QP(o.qp(t, abi.QPTypeRC).Handle)
	if st := (*qpNIC)(q).bind(&transport.SendWQE{MWRKey: w.RKey, MRLKey: mr.LKey, RemoteAddr: 1 << 30, MWLength: 8, RKey: w.RKey}); st != transport.Success {
		t.Fatalf("bind: %d", st)
	}
	o.s.Close()
	o.s.Close() // again does nothing
	if !q.Gone() || o.s.Space.Mapped() != 0 {
		t.Errorf("after the end: queue pair gone %v, %d bytes registered", q.Gone(), o.s.Space.Mapped())
	}
}
