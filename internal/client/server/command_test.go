package server

import (
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// TestGolden checks the offsets that the rxe provider uses: the driver's part of each response follows the core's
// directly.
func TestGolden(t *testing.T) {
	c := open(t, testServer(t))
	p := pd(c)

	r := c.must(legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 10, CompChannel: -1}, nil, 24))
	if len(r) != 24 || u32(r, 4) < 10 || u64(r, 8) == 0 || u32(r, 16) == 0 {
		t.Errorf("CREATE_CQ: %x, want cqe at 4, mmap offset at 8, size at 16", r)
	}
	cqh := u32(r, 0)
	r = c.must(extended(abi.ExCmdCreateCQ, &abi.ExCreateCQ{CQE: 10, CompChannel: -1}, 16, 16))
	if len(r) != 32 || u32(r, 12) != 16 || u64(r, 16) == 0 || u32(r, 24) == 0 {
		t.Errorf("EX_CREATE_CQ: %x, want response_length 16 at 12, mmap offset at 16", r)
	}
	r = c.must(legacy(abi.CmdResizeCQ, &abi.ResizeCQ{Response: respAddr, CQHandle: cqh, CQE: 100}, nil, 24))
	if u32(r, 0) < 100 || u64(r, 8) == 0 {
		t.Errorf("RESIZE_CQ: %x, want cqe at 0, mmap offset at 8", r)
	}

	r = c.must(legacy(abi.CmdCreateQP, qpRequest(p, cqh), nil, 64))
	if len(r) != 64 || u32(r, 4) == 0 || u64(r, 32) == 0 || u64(r, 48) == 0 {
		t.Errorf("CREATE_QP: %x, want the RQ's mmap offset at 32, the SQ's at 48", r)
	}
	qph := u32(r, 0)
	r = c.must(extended(abi.ExCmdCreateQP, &abi.ExCreateQP{
		PDHandle: p, SendCQHandle: cqh, RecvCQHandle: cqh, MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: abi.QPTypeUD,
	}, 40, 32))
	if len(r) != 72 || u32(r, 36) != 40 || u64(r, 40) == 0 || u64(r, 56) == 0 {
		t.Errorf("EX_CREATE_QP: %x, want response_length 40 at 36, the RQ's mmap offset at 40, the SQ's at 56", r)
	}
	ud := u32(r, 0)

	r = c.must(legacy(abi.CmdCreateSRQ, &abi.CreateSRQ{Response: respAddr, PDHandle: p, MaxWR: 10, MaxSGE: 1}, nil, 40))
	if len(r) != 40 || u64(r, 16) == 0 || u32(r, 24) == 0 {
		t.Errorf("CREATE_SRQ: %x, want the mmap offset at 16, size at 24", r)
	}
	srq := u32(r, 0)
	r = c.must(legacy(abi.CmdCreateAH, &abi.CreateAH{
		Response: respAddr, PDHandle: p, Attr: abi.AHAttr{IsGlobal: 1, PortNum: 1, GRH: abi.GlobalRoute{DGID: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}}},
	}, nil, 12))
	if len(r) != 12 || u32(r, 4) == 0 {
		t.Errorf("CREATE_AH: %x, want ah_num at 4, not zero", r)
	}

	// MODIFY_SRQ tells through an address of its own.
	const infoAddr = 0x5000
	reply, _ := c.send(legacy(abi.CmdModifySRQ, &abi.ModifySRQ{SRQHandle: srq, AttrMask: abi.SRQMaskMaxWR, MaxWR: 100},
		abi.Encode(nil, &abi.RxeModifySRQCmd{MMapInfoAddr: infoAddr}), 0))
	if reply.Error != 0 || len(reply.Stores) != 1 || reply.Stores[0].Address != infoAddr || len(reply.Stores[0].Data) != 16 {
		t.Errorf("MODIFY_SRQ: %+v, want one store of struct mminfo", reply)
	}
	r = c.must(legacy(abi.CmdQuerySRQ, &abi.QuerySRQ{Response: respAddr, SRQHandle: srq}, nil, 16))
	if u32(r, 0) < 100 {
		t.Errorf("QUERY_SRQ: max_wr %d after resizing to 100", u32(r, 0))
	}

	group := abi.AttachMcast{GID: [16]byte{0xff, 0x0e, 15: 1}, QPHandle: ud}
	c.must(legacy(abi.CmdAttachMcast, &group, nil, 0))
	c.must(legacy(abi.CmdDetachMcast, &group, nil, 0))

	r = c.must(legacy(abi.CmdAllocMW, &abi.AllocMW{Response: respAddr, PDHandle: p, MWType: abi.MWType2}, nil, 8))
	if u32(r, 4) == 0 {
		t.Errorf("ALLOC_MW: %x, want an rkey at 4", r)
	}
	c.must(legacy(abi.CmdDeallocMW, &abi.DeallocMW{MWHandle: u32(r, 0)}, nil, 0))

	c.must(legacy(abi.CmdModifyQP, &abi.ModifyQP{
		QPHandle: qph, AttrMask: abi.QPMaskState | abi.QPMaskPKeyIndex | abi.QPMaskPort | abi.QPMaskAccessFlags,
		QPState: abi.QPStateInit, PortNum: 1,
	}, nil, 0))
	r = c.must(legacy(abi.CmdQueryQP, &abi.QueryQP{Response: respAddr, QPHandle: qph}, nil, 128))
	var q abi.QueryQPResp
	if !abi.Decode(r, &q) || q.QPState != abi.QPStateInit || q.PortNum != 1 || q.MaxSendWR < 4 {
		t.Errorf("QUERY_QP: %+v", q)
	}
	c.must(legacy(abi.CmdReqNotifyCQ, &abi.ReqNotifyCQ{CQHandle: cqh}, nil, 0))
	post := legacy(abi.CmdPostSend, &abi.PostSend{Response: respAddr, QPHandle: qph}, nil, 4)
	c.fails("POST_SEND in INIT", post, syscall.EINVAL)
	c.must(legacy(abi.CmdModifyQP, &abi.ModifyQP{QPHandle: qph, AttrMask: abi.QPMaskState, QPState: abi.QPStateErr}, nil, 0))
	c.must(post)
	c.must(legacy(abi.CmdDestroyQP, &abi.DestroyQP{Response: respAddr, QPHandle: qph}, nil, 4))
	c.must(legacy(abi.CmdDestroySRQ, &abi.DestroySRQ{Response: respAddr, SRQHandle: srq}, nil, 4))
	c.fails("DEALLOC_PD of one in use", legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: p}, nil, 0), syscall.EBUSY)
}

func TestRegMR(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	p := pd(c)
	const start = 0x10_0000_0100
	mr := &abi.RegMR{Response: respAddr, Start: start, Length: 5000, HCAVA: start, PDHandle: p, AccessFlags: abi.AccessLocalWrite}
	shared := protocol.Extent{Start: start, Length: 5000, Kind: protocol.ExtentOwn, Prot: 3}
	reg := func(change func(*abi.RegMR)) []byte {
		m := *mr
		change(&m)
		return legacy(abi.CmdRegMR, &m, nil, 12)
	}
	plain := reg(func(*abi.RegMR) {})

	r := c.must(plain, shared)
	if u32(r, 4) == 0 || u32(r, 4) != u32(r, 8) {
		t.Errorf("lkey %#x, rkey %#x; want equal and not zero", u32(r, 4), u32(r, 8))
	}
	c.must(legacy(abi.CmdDeregMR, &abi.DeregMR{MRHandle: u32(r, 0)}, nil, 0))
	c.must(reg(func(m *abi.RegMR) { m.Length = 0 }))
	c.must(reg(func(m *abi.RegMR) { m.AccessFlags |= abi.AccessRelaxedOrdering }), shared)

	hole := protocol.Extent{Start: start, Length: 5000, Kind: protocol.ExtentHole}
	c.fails("a hole", plain, syscall.EFAULT, hole)
	c.fails("no extents", plain, syscall.EFAULT)
	c.fails("extents elsewhere", plain, syscall.EINVAL, protocol.Extent{Start: 1, Length: 5000, Kind: 1, Prot: 3})
	c.fails("an unknown kind", plain, syscall.EINVAL, protocol.Extent{Start: start, Length: 5000, Kind: 0x101, Prot: 3})
	c.fails("other page offset", reg(func(m *abi.RegMR) { m.HCAVA++ }), syscall.EINVAL, shared)
	c.fails("remote write alone", reg(func(m *abi.RegMR) { m.AccessFlags = abi.AccessRemoteWrite }), syscall.EINVAL, shared)
	c.fails("flags that do not exist", reg(func(m *abi.RegMR) { m.AccessFlags |= 1 << 15 }), syscall.EINVAL, shared)
	c.fails("on demand", reg(func(m *abi.RegMR) { m.AccessFlags |= abi.AccessOnDemand }), syscall.EOPNOTSUPP, shared)
	c.fails("no such PD", reg(func(m *abi.RegMR) { m.PDHandle = 99 }), syscall.EINVAL, shared)
	c.fails("wraps around", reg(func(m *abi.RegMR) { m.Length = 1<<64 - 1 }), syscall.EINVAL, shared)
}

// TestSizes checks the kernel's rules for headers.
func TestSizes(t *testing.T) {
	s := testServer(t)
	c := open(t, s)
	query := func(out uint16) []byte {
		return abi.Encode(abi.Encode(nil, &abi.CmdHeader{Command: abi.CmdQueryPort, InWords: 6, OutWords: out}),
			&abi.QueryPort{Response: respAddr, PortNum: 1})
	}
	ex := func(change func(h *abi.CmdHeader, x *abi.ExCmdHeader)) []byte {
		h := abi.CmdHeader{Command: abi.ExCmdQueryDevice | abi.FlagExtended, InWords: 1, OutWords: uint16(abi.Size[abi.ExQueryDeviceResp]() / 8)}
		x := abi.ExCmdHeader{Response: respAddr}
		change(&h, &x)
		return abi.Encode(abi.Encode(abi.Encode(nil, &h), &x), &abi.ExQueryDevice{})
	}
	type words = abi.CmdHeader
	for _, test := range []struct {
		name    string
		command []byte
		want    syscall.Errno
	}{
		{"nothing", []byte{}, syscall.EINVAL},
		{"half a header", []byte{1, 0, 0, 0}, syscall.EINVAL},
		{"good", query(10), 0},
		{"in_words too small", append(query(10)[:4:4], append([]byte{5, 0}, query(10)[6:]...)...), syscall.EINVAL},
		{"longer than in_words", append(query(10), 0, 0, 0, 0), syscall.EINVAL},
		{"request too short", abi.Encode(nil, &words{Command: abi.CmdQueryPort, InWords: 2, OutWords: 10}), syscall.ENOSPC},
		{"response too short", query(9), syscall.ENOSPC},
		{"response longer than needed", query(60), 0},
		{"trailing zeros", legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: 77}, make([]byte, 8), 0), syscall.ENOENT},
		{"trailing rubbish", legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: 77}, []byte{1, 0, 0, 0}, 0), syscall.EOPNOTSUPP},
		{"unknown bits", abi.Encode(nil, &words{Command: 0x0100_0001, InWords: 2}), syscall.EINVAL},
		{"beyond the table", abi.Encode(nil, &words{Command: abi.NumCmd, InWords: 2}), syscall.EINVAL},
		{"beyond the extended table", abi.Encode(nil, &words{Command: abi.NumExCmd | abi.FlagExtended, InWords: 2}), syscall.EOPNOTSUPP},
		{"no such extended command", abi.Encode(nil, &words{Command: abi.CmdAllocPD | abi.FlagExtended, InWords: 2}), syscall.EOPNOTSUPP},
		{"known and unsupported", abi.Encode(nil, &words{Command: abi.CmdReregMR, InWords: 2}), syscall.EOPNOTSUPP},
		{"extended", ex(func(*abi.CmdHeader, *abi.ExCmdHeader) {}), 0},
		{"extended without its header", abi.Encode(nil, &words{Command: abi.ExCmdQueryDevice | abi.FlagExtended, InWords: 1}), syscall.EINVAL},
		{"extended, words do not fit", ex(func(h *abi.CmdHeader, _ *abi.ExCmdHeader) { h.InWords = 2 }), syscall.EINVAL},
		{"extended, request too short", ex(func(h *abi.CmdHeader, x *abi.ExCmdHeader) { h.InWords, x.ProviderInWords = 0, 1 }), syscall.ENOSPC},
		{"extended, response too short", ex(func(h *abi.CmdHeader, _ *abi.ExCmdHeader) { h.OutWords = 2 }), syscall.ENOSPC},
		{"extended, reserved set", ex(func(_ *abi.CmdHeader, x *abi.ExCmdHeader) { x.Reserved = 1 }), syscall.EINVAL},
		{"extended, nowhere to answer", ex(func(_ *abi.CmdHeader, x *abi.ExCmdHeader) { x.Response = 0 }), syscall.EINVAL},
		{"extended, driver data for none", ex(func(_ *abi.CmdHeader, x *abi.ExCmdHeader) { x.ProviderOutWords = 1 }), syscall.EINVAL},
		{"no room for the driver", legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 1, CompChannel: -1}, nil, 8), syscall.EINVAL},
		{"enormous response", query(0xffff), 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.t = t
			c.fails(test.name, test.command, test.want)
		})
	}
}

// TestErrno checks the kernel's answers to wrong handles, states and arguments.
func TestErrno(t *testing.T) {
	s := testServer(t)
	fresh := newClient(t, s, "")
	fresh.fails("before GET_CONTEXT", legacy(abi.CmdAllocPD, &abi.AllocPD{Response: respAddr}, nil, 4), syscall.EINVAL)

	c := open(t, s)
	p, q := pd(c), cq(c)
	h := qp(c, p, q)
	qpWith := func(change func(*abi.CreateQP)) []byte {
		r := qpRequest(p, q)
		change(r)
		return legacy(abi.CmdCreateQP, r, nil, 64)
	}
	exCQ := func(r abi.ExCreateCQ) []byte {
		r.CQE, r.CompChannel = 1, -1
		return extended(abi.ExCmdCreateCQ, &r, 16, 16)
	}
	modify := func(r abi.ModifyQP) []byte {
		r.QPHandle = h
		return legacy(abi.CmdModifyQP, &r, nil, 0)
	}
	for _, test := range []struct {
		name    string
		command []byte
		want    syscall.Errno
	}{
		{"second GET_CONTEXT", legacy(abi.CmdGetContext, &abi.GetContext{Response: respAddr}, nil, 8), syscall.EINVAL},
		{"port 2", legacy(abi.CmdQueryPort, &abi.QueryPort{Response: respAddr, PortNum: 2}, nil, 40), syscall.EINVAL},
		{"free a PD that is not there", legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: 999}, nil, 0), syscall.ENOENT},
		{"free a PD in use", legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: p}, nil, 0), syscall.EBUSY},
		{"destroy a CQ in use", legacy(abi.CmdDestroyCQ, &abi.DestroyCQ{Response: respAddr, CQHandle: q}, nil, 8), syscall.EBUSY},
		{"destroy a CQ that is not there", legacy(abi.CmdDestroyCQ, &abi.DestroyCQ{Response: respAddr, CQHandle: 999}, nil, 8), syscall.ENOENT},
		{"destroy a QP that is not there", legacy(abi.CmdDestroyQP, &abi.DestroyQP{Response: respAddr, QPHandle: 999}, nil, 4), syscall.ENOENT},
		{"destroy an SRQ that is not there", legacy(abi.CmdDestroySRQ, &abi.DestroySRQ{Response: respAddr, SRQHandle: 999}, nil, 4), syscall.ENOENT},
		{"destroy an AH that is not there", legacy(abi.CmdDestroyAH, &abi.DestroyAH{AHHandle: 999}, nil, 0), syscall.ENOENT},
		{"dereg an MR that is not there", legacy(abi.CmdDeregMR, &abi.DeregMR{MRHandle: 999}, nil, 0), syscall.ENOENT},
		{"query a QP that is not there", legacy(abi.CmdQueryQP, &abi.QueryQP{Response: respAddr, QPHandle: 999}, nil, 128), syscall.EINVAL},
		{"arm a CQ that is not there", legacy(abi.CmdReqNotifyCQ, &abi.ReqNotifyCQ{CQHandle: 999}, nil, 0), syscall.EINVAL},
		{"post to a QP that is not there", legacy(abi.CmdPostSend, &abi.PostSend{Response: respAddr, QPHandle: 999}, nil, 4), syscall.EINVAL},
		{"post work by command", legacy(abi.CmdPostSend, &abi.PostSend{Response: respAddr, QPHandle: h, WRCount: 1, WQESize: 72}, make([]byte, 72), 4), syscall.EOPNOTSUPP},
		{"CQ without entries", legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CompChannel: -1}, nil, 24), syscall.EINVAL},
		{"CQ too large", legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 1 << 30, CompChannel: -1}, nil, 24), syscall.EINVAL},
		{"CQ with a vector too far", legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 1, CompVector: 9, CompChannel: -1}, nil, 24), syscall.EINVAL},
		{"extended CQ with a comp_mask", exCQ(abi.ExCreateCQ{CompMask: 1}), syscall.EINVAL},
		{"extended CQ with a reserved word", exCQ(abi.ExCreateCQ{Reserved: 1}), syscall.EINVAL},
		{"extended CQ with timestamps", exCQ(abi.ExCreateCQ{Flags: 1}), syscall.EOPNOTSUPP},
		{"QP of no type", qpWith(func(r *abi.CreateQP) { r.QPType = 77 }), syscall.EINVAL},
		{"raw packet QP", qpWith(func(r *abi.CreateQP) { r.QPType = abi.QPTypeRawPacket }), syscall.EOPNOTSUPP},
		{"XRC QP", qpWith(func(r *abi.CreateQP) { r.QPType = abi.QPTypeXRCIni }), syscall.EOPNOTSUPP},
		{"QP with another PD", qpWith(func(r *abi.CreateQP) { r.PDHandle = 999 }), syscall.EINVAL},
		{"QP with another CQ", qpWith(func(r *abi.CreateQP) { r.RecvCQHandle = 999 }), syscall.EINVAL},
		{"QP with another SRQ", qpWith(func(r *abi.CreateQP) { r.IsSRQ, r.SRQHandle = 1, 999 }), syscall.EINVAL},
		{"QP too deep", qpWith(func(r *abi.CreateQP) { r.MaxSendWR = 1 << 30 }), syscall.EINVAL},
		{"XRC SRQ", legacy(abi.CmdCreateXSRQ, &abi.CreateXSRQ{Response: respAddr, PDHandle: p, MaxWR: 1, SRQType: abi.SRQTypeXRC}, nil, 40), syscall.EOPNOTSUPP},
		{"modify with bits beyond the standard", modify(abi.ModifyQP{AttrMask: 1 << 22}), syscall.EOPNOTSUPP},
		{"modify to port 2", modify(abi.ModifyQP{AttrMask: abi.QPMaskPort, PortNum: 2}), syscall.EINVAL},
		{"modify to no state", modify(abi.ModifyQP{AttrMask: abi.QPMaskState, QPState: 9}), syscall.EINVAL},
		{"modify RESET to RTS", modify(abi.ModifyQP{AttrMask: abi.QPMaskState, QPState: abi.QPStateRTS}), syscall.EINVAL},
		{"MW of no type", legacy(abi.CmdAllocMW, &abi.AllocMW{Response: respAddr, PDHandle: p, MWType: 3}, nil, 8), syscall.EINVAL},
		{"AH on port 2", legacy(abi.CmdCreateAH, &abi.CreateAH{Response: respAddr, PDHandle: p, Attr: abi.AHAttr{PortNum: 2, IsGlobal: 1}}, nil, 12), syscall.EINVAL},
		{"SRQ change without the driver's part", legacy(abi.CmdModifySRQ, &abi.ModifySRQ{}, nil, 0), syscall.EINVAL},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.t = t
			c.fails(test.name, test.command, test.want)
		})
	}
}

// TestHandles shows that one program cannot name another's objects.
func TestHandles(t *testing.T) {
	s := testServer(t)
	a, b := open(t, s), open(t, s)
	p := pd(a)
	pd(a)
	h := pd(a)
	b.fails("another session's PD", legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: h}, nil, 0), syscall.ENOENT)
	a.must(legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: h}, nil, 0))
	a.must(legacy(abi.CmdDeallocPD, &abi.DeallocPD{PDHandle: p}, nil, 0))
}

func TestCompletionChannel(t *testing.T) {
	c := open(t, testServer(t))
	r, fds := c.send(legacy(abi.CmdCreateCompChannel, &abi.CreateCompChannel{Response: respAddr}, nil, 4))
	defer protocol.CloseFDs(fds)
	if r.Error != 0 || len(fds) != 1 || len(r.FDs) != 1 || r.FDs[0].Address != respAddr || r.FDs[0].Kind != protocol.FDComp {
		t.Fatalf("CREATE_COMP_CHANNEL: %+v with %d descriptors", r, len(fds))
	}
	c.must(legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 1, CompChannel: int32(r.FDs[0].ID)}, nil, 24))
	c.fails("a channel that is not there", legacy(abi.CmdCreateCQ, &abi.CreateCQ{Response: respAddr, CQE: 1, CompChannel: 99}, nil, 24), syscall.EBADF)
}
