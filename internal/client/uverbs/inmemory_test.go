package uverbs_test

import (
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/uverbs"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
)

// This file is a client without socket and descriptors: queues, registered memory, events and doorbell are memory of
// this process. To the daemon it is like a client in a virtual machine, except for how bytes are carried.

// anonymous is private memory.
func anonymous(t *testing.T, size int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return mem
}

// pages is the memory of an arena. It implements nic.Pages.
type pages []byte

func (p pages) Bytes() []byte { return p }
func (p pages) Close()        {}

func (p pages) Punch(offset, size uint64) {
	unix.Madvise(p[offset:offset+size], unix.MADV_DONTNEED)
}

// slab is the memory that is registered. It implements memory.Backing.
type slab []byte

func (s slab) Size() uint64 { return uint64(len(s)) }
func (s slab) Map(offset uint64, size int) ([]byte, error) {
	return s[offset : offset+uint64(size)], nil
}
func (s slab) Unmap([]byte)          {}
func (s slab) Used() (uint64, error) { return 0, nil }
func (s slab) Hole(uint64) uint64    { return s.Size() }
func (s slab) Close() error          { return nil }

// events is a list of them. It implements nic.EventSink and is its own handle.
type events struct {
	mu   sync.Mutex
	list [][16]byte
	size int
	room int
}

func (e *events) Post(event [16]byte, n int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.list) == e.room {
		return false
	}
	e.list, e.size = append(e.list, event), n
	return true
}

func (e *events) Withdraw() (event [16]byte, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.list) == 0 {
		return event, 0
	}
	event, e.list = e.list[0], e.list[1:]
	return event, e.size
}

func (e *events) HangupFd() int { return -1 }
func (e *events) Close()        {}

// A handle identifies the client's events.
type handle struct{ *events }

func (handle) Close() error { return nil }

// A client has a device open. It implements uverbs.Device.
type client struct {
	t     *testing.T
	e     *engine.Engine
	nic   *nic.NIC
	s     *nic.Session
	arena pages
	space *memory.Space
	mem   slab // is at base for the client, with its pages in reverse order
	ctx   uverbs.Context
	sinks []*events
}

const (
	base    = 0x1000_0000
	memSize = 64 << 10
	page    = 4096
	respAt  = 0xfeed_0000 // where it wants answers
)

func newClient(t *testing.T, e *engine.Engine, n *nic.NIC) *client {
	t.Helper()
	c := &client{t: t, e: e, nic: n, arena: anonymous(t, 16<<20), mem: anonymous(t, memSize)}
	c.space = memory.NewSpaceIn(c.mem, 0)
	a := nic.NewArenaIn(c.arena)
	var err error
	if derr := e.Do(func() {
		if c.s, err = n.Open(nic.SessionOptions{Arena: a, Space: c.space, Program: "in memory"}); err == nil {
			err = e.Attach(c.s, nil)
		}
	}); derr != nil || err != nil {
		t.Fatal(derr, err)
	}
	t.Cleanup(func() {
		e.Do(func() {
			e.Detach(c.s)
			c.s.Close()
		})
		if left := c.space.Mapped(); left != 0 {
			t.Errorf("%d bytes are still registered", left)
		}
		a.Close()
		c.space.Close()
	})
	return c
}

func (c *client) NIC() *nic.NIC  { return c.nic }
func (c *client) Wake(q *nic.QP) { c.e.Wake(q) }
func (c *client) Settle()        {}

func (c *client) Do(f func(*nic.Session) error) (err error) {
	if derr := c.e.Do(func() { err = f(c.s) }); derr != nil {
		return derr
	}
	return err
}

func (c *client) OpenEvents() (nic.EventSink, uverbs.Handle, error) {
	e := &events{room: 4}
	c.sinks = append(c.sinks, e)
	return e, handle{e}, nil
}

// Map returns the client's pages, as the table of a virtual machine would.
func (c *client) Map(start, length uint64) (*memory.Region, error) {
	var extents []memory.Extent
	for at := start; at < start+length; {
		n := min(page-at%page, start+length-at)
		extents = append(extents, memory.Extent{Start: at, Length: n, Kind: memory.Own, Prot: 3, Offset: offset(at)})
		at += n
	}
	return c.space.Map(start, length, extents)
}

// offset returns the position of a client address in its backing.
func offset(at uint64) uint64 {
	at -= base
	return memSize - page - at/page*page + at%page
}

// run runs a command as a program does, without driver data, and returns the stored reply.
func run[Req, Resp abi.Struct](c *client, cmd uint32, req *Req, resp *Resp, driver int) []byte {
	c.t.Helper()
	body := abi.Encode(nil, req)
	out := driver
	if resp != nil {
		out += abi.Size[Resp]()
	}
	hdr := abi.CmdHeader{Command: cmd, InWords: uint16((len(body) + 8) / 4), OutWords: uint16(out / 4)}
	call := c.ctx.Run(c, append(abi.Encode(nil, &hdr), body...), false)
	if call.Errno != 0 {
		c.t.Fatalf("%s: %v", call.Name(), call.Errno)
	}
	var b protocol.ReplyBuilder
	b.Reset(nil)
	call.Answer(&b)
	msg, err := b.Finish(0)
	if err != nil {
		c.t.Fatal(err)
	}
	var r protocol.Reply
	if err := r.Parse(msg); err != nil {
		c.t.Fatal(err)
	}
	if len(r.FDs) != len(call.Handles()) {
		c.t.Fatalf("%s: %d handles are named, %d came", call.Name(), len(r.FDs), len(call.Handles()))
	}
	for _, s := range r.Stores {
		if s.Address == respAt && resp != nil {
			abi.Decode(s.Data, resp)
			return append([]byte(nil), s.Data[abi.Size[Resp]():]...)
		}
	}
	return nil
}

// A ring is a queue as its user sees it.
type ring struct{ mem []byte }

func (c *client) ring(m abi.MMInfo) ring { return ring{c.arena[m.Offset : m.Offset+uint64(m.Size)]} }

func (r ring) mask() uint32 { return shared32(r.mem, abi.QueueIndexMask).Load() }

func (r ring) slot(i uint32) []byte {
	return r.mem[abi.QueueData+int(i&r.mask())<<shared32(r.mem, abi.QueueLog2ElemSize).Load():]
}

// A qp is a connected queue pair with everything around it.
type qp struct {
	c          *client
	handle     uint32
	num        uint32
	lkey       uint32
	cq         uint32
	cqr        ring
	sq, rq     ring
	compEvents *events
}

const userCQ = 0x51ab

func (c *client) qp() *qp {
	c.t.Helper()
	q := &qp{c: c}
	run[abi.GetContext, abi.GetContextResp](c, abi.CmdGetContext, &abi.GetContext{Response: respAt}, &abi.GetContextResp{}, 0)
	var pd abi.AllocPDResp
	run(c, abi.CmdAllocPD, &abi.AllocPD{Response: respAt}, &pd, 0)
	var mr abi.RegMRResp
	run(c, abi.CmdRegMR, &abi.RegMR{Response: respAt, Start: base, Length: memSize, HCAVA: base, PDHandle: pd.PDHandle, AccessFlags: abi.AccessLocalWrite}, &mr, 0)
	q.lkey = mr.LKey
	var ch abi.CreateCompChannelResp
	run(c, abi.CmdCreateCompChannel, &abi.CreateCompChannel{Response: respAt}, &ch, 0)
	q.compEvents = c.sinks[len(c.sinks)-1]
	var cq abi.CreateCQResp
	var cqd abi.RxeCreateCQResp
	abi.Decode(run(c, abi.CmdCreateCQ, &abi.CreateCQ{Response: respAt, UserHandle: userCQ, CQE: 10}, &cq, abi.Size[abi.RxeCreateCQResp]()), &cqd)
	q.cq, q.cqr = cq.CQHandle, c.ring(cqd.MI)
	var made abi.CreateQPResp
	var rings abi.RxeCreateQPResp
	abi.Decode(run(c, abi.CmdCreateQP, &abi.CreateQP{
		Response: respAt, PDHandle: pd.PDHandle, SendCQHandle: q.cq, RecvCQHandle: q.cq, MaxSendWR: 4, MaxRecvWR: 4,
		MaxSendSGE: 1, MaxRecvSGE: 1, QPType: abi.QPTypeRC,
	}, &made, abi.Size[abi.RxeCreateQPResp]()), &rings)
	q.handle, q.num, q.sq, q.rq = made.QPHandle, made.QPN, c.ring(rings.SQMI), c.ring(rings.RQMI)
	return q
}

// arm asks for an event without a command.
func (q *qp) arm() {
	q.c.t.Helper()
	w := shared32(q.c.arena, protocol.ArmWords+uint64(q.cq)*protocol.ArmStride)
	if w.Or(protocol.ArmAll)&protocol.ArmReady == 0 {
		q.c.t.Fatal("the completion queue cannot be armed in memory")
	}
}

// connect moves q to RTS with peer as its destination.
func (q *qp) connect(peer *qp) {
	q.c.t.Helper()
	modify := func(m abi.ModifyQP) {
		m.QPHandle, m.PortNum = q.handle, 1
		run[abi.ModifyQP, abi.AllocPDResp](q.c, abi.CmdModifyQP, &m, nil, 0)
	}
	modify(abi.ModifyQP{QPState: abi.QPStateInit, AttrMask: abi.QPMaskState | abi.QPMaskPKeyIndex | abi.QPMaskPort | abi.QPMaskAccessFlags})
	modify(abi.ModifyQP{
		QPState: abi.QPStateRTR, PathMTU: 5, DestQPNum: peer.num, MinRNRTimer: 1, MaxDestRDAtomic: 1,
		Dest: abi.QPDest{DGID: peer.c.nic.GIDs[0].GID, IsGlobal: 1, PortNum: 1},
		AttrMask: abi.QPMaskState | abi.QPMaskAV | abi.QPMaskPathMTU | abi.QPMaskDestQPN | abi.QPMaskRQPSN |
			abi.QPMaskMaxDestRDAtomic | abi.QPMaskMinRNRTimer,
	})
	modify(abi.ModifyQP{
		QPState: abi.QPStateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 1,
		AttrMask: abi.QPMaskState | abi.QPMaskTimeout | abi.QPMaskRetryCnt | abi.QPMaskRNRRetry | abi.QPMaskSQPSN | abi.QPMaskMaxQPRDAtomic,
	})
}

// sge fills a scatter entry.
func (q *qp) sge(b []byte, at, n int) {
	order.PutUint64(b[abi.SGEAddr:], uint64(base+at))
	order.PutUint32(b[abi.SGELength:], uint32(n))
	order.PutUint32(b[abi.SGELKey:], q.lkey)
}

func (q *qp) postReceive(at, n int) {
	prod := shared32(q.rq.mem, abi.QueueProducerIndex)
	b := q.rq.slot(prod.Load())
	order.PutUint32(b[abi.RecvDMALength:], uint32(n))
	order.PutUint32(b[abi.RecvNumSGE:], 1)
	q.sge(b[abi.RecvSGE:], at, n)
	prod.Store((prod.Load() + 1) & q.rq.mask())
}

func (q *qp) postSend(at, n int) {
	const send, signaled = 2, 2 // IB_WR_SEND, IB_SEND_SIGNALED
	prod := shared32(q.sq.mem, abi.QueueProducerIndex)
	b := q.sq.slot(prod.Load())
	order.PutUint32(b[abi.SendOpcode:], send)
	order.PutUint32(b[abi.SendFlags:], signaled)
	order.PutUint32(b[abi.SendDMALength:], uint32(n))
	order.PutUint32(b[abi.SendNumSGE:], 1)
	q.sge(b[abi.SendSGE:], at, n)
	prod.Store((prod.Load() + 1) & q.sq.mask())
	// Ring, as shim/protocol.h says.
	h := uint64(q.handle)
	shared64(q.c.arena, protocol.DoorbellBitmap+h/64*8).Or(1 << (h % 64))
	shared64(q.c.arena, protocol.DoorbellSummary+h/4096*8).Or(1 << (h / 64 % 64))
	shared32(q.c.arena, protocol.DoorbellAny).Store(1)
	if shared32(q.c.arena, protocol.DoorbellArmed).Swap(0) != 0 {
		q.c.e.Ring(q.c.s)
	}
}

// complete waits for a completion and returns its byte count.
func (q *qp) complete() int {
	q.c.t.Helper()
	cons := shared32(q.cqr.mem, abi.QueueConsumerIndex)
	wait(q.c.t, "a completion", func() bool { return shared32(q.cqr.mem, abi.QueueProducerIndex).Load() != cons.Load() })
	b := q.cqr.slot(cons.Load())
	if status := order.Uint32(b[abi.WCStatus:]); status != 0 {
		q.c.t.Fatalf("completed with status %d", status)
	}
	n := int(order.Uint32(b[abi.WCByteLen:]))
	cons.Store((cons.Load() + 1) & q.cqr.mask())
	return n
}

// wait waits for cond, a minute at most.
func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}
