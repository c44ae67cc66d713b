package engine

import (
	"encoding/binary"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// A program is an application as the engine sees one: it writes work requests into
// the rings of its arena, rings the doorbell and reads completions, as the stock
// rxe provider does.
type program struct {
	t       testing.TB
	e       *Engine
	s       *nic.Session
	arena   *nic.Arena
	space   *memory.Space
	bell    *os.File
	mem     []byte // the client's own mapping of its registered memory
	base    uint64 // the address of mem in the client
	page    page
	mapping []byte // the client's mapping of its arena
	gid     ib.GID
	kind    memory.ExtentKind // of its memory; Hole: page by page Shared and Foreign
}

var testGID = ib.GID{10: 0xff, 11: 0xff, 12: 127, 15: 1}

func newEngine(t testing.TB) *Engine {
	t.Helper()
	n := nic.New(nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: testGID, NetDev: "lo"}}})
	e, err := newWith(n, Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.Start()
	t.Cleanup(e.Stop)
	return e
}

const clientMemory = 8 << 20

func newClient(t testing.TB, e *Engine) *program {
	t.Helper()
	return newClientAt(t, e, testGID)
}

// newClientOf is the client of a given user.
func newClientOf(t testing.TB, e *Engine, uid int) *program {
	t.Helper()
	return newUserAt(t, e, testGID, uid)
}

// newClientAt is newClient where the engine's address is gid.
func newClientAt(t testing.TB, e *Engine, gid ib.GID) *program {
	t.Helper()
	return newUserAt(t, e, gid, 0)
}

func newUserAt(t testing.TB, e *Engine, gid ib.GID, uid int) *program {
	t.Helper()
	return newProgram(t, e, e.only(), gid, uid)
}

// unsteered makes the numbers of c's queue pairs those that its NIC chooses: sessions of two NICs can have the same.
func (c *program) unsteered() *program {
	c.t.Helper()
	if err := c.e.Do(func() { c.s.SetNumbers(0, 0) }); err != nil {
		c.t.Fatal(err)
	}
	return c
}

// newProgram is one that uses NIC n, of which gid is an address.
func newProgram(t testing.TB, e *Engine, n *nic.NIC, gid ib.GID, uid int) *program {
	t.Helper()
	c := &program{t: t, e: e, base: 0x7f00_0000_0000, gid: gid, kind: memory.Own}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	c.arena, err = nic.NewArena()
	must(err)
	c.space, err = memory.NewSpace(0)
	must(err)
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	must(err)
	c.bell = os.NewFile(uintptr(fd), "doorbell")
	c.mapping, err = unix.Mmap(int(c.arena.File().Fd()), 0, 256<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	c.mem, err = unix.Mmap(int(c.space.File().Fd()), int64(c.base), clientMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	c.page = newPage(c.mapping)
	e.Do(func() {
		c.s, err = n.Open(nic.SessionOptions{Arena: c.arena, Space: c.space, Pid: os.Getpid(), User: uid, Program: "test"})
		if err == nil {
			err = e.Attach(c.s, c.bell)
		}
	})
	must(err)
	t.Cleanup(c.close)
	return c
}

func (c *program) close() {
	c.e.Do(func() {
		c.e.Detach(c.s)
		c.s.Close()
	})
	c.bell.Close()
	c.arena.Close()
	c.space.Close()
	unix.Munmap(c.mem)
	unix.Munmap(c.mapping)
}

func (c *program) do(f func() error) {
	c.t.Helper()
	var err error
	if run := func() { err = f() }; c.e.first.cmds.stopping.Load() {
		run() // the test is in the loop's place
	} else {
		c.e.Do(run)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// A testQP is a queue pair with its rings as the client maps them.
type testQP struct {
	c      *program
	info   nic.QPInfo
	pd     uint32
	cq     nic.CQInfo
	mr     nic.MRInfo
	sq, rq testRing
	cqr    testRing
	posted uint32

	timeout uint8 // code of the local ACK timeout; 0: 14
}

type testRing struct {
	mem  []byte
	log2 uint32
	mask uint32
}

func (c *program) ring(m nic.MMap) testRing {
	mem := c.mapping[m.Offset : m.Offset+uint64(m.Size)]
	return testRing{mem: mem, log2: binary.NativeEndian.Uint32(mem), mask: binary.NativeEndian.Uint32(mem[4:])}
}

func (r *testRing) slot(i uint32) []byte { return r.mem[384+uint64(i&r.mask)<<r.log2:] }

// newQP makes a queue pair with a completion queue and the client's whole memory
// registered.
func (c *program) newQP(typ uint8) *testQP {
	c.t.Helper()
	q := &testQP{c: c}
	region, err := c.space.Map(c.base, clientMemory, c.extents())
	if err != nil {
		c.t.Fatal(err)
	}
	c.do(func() (err error) {
		pd, err := c.s.AllocPD()
		if err != nil {
			return err
		}
		q.pd = pd
		if q.mr, err = c.s.RegMR(nic.MRParams{PD: pd, Start: c.base, Length: clientMemory, HcaVA: c.base, Access: 0xf, Region: region}); err != nil {
			return err
		}
		if q.cq, err = c.s.CreateCQ(nic.CQParams{CQE: 8191, Channel: -1}); err != nil {
			return err
		}
		q.info, err = c.s.CreateQP(nic.QPParams{PD: pd, SendCQ: q.cq.Handle, RecvCQ: q.cq.Handle, Type: typ,
			Cap: nic.QPCap{SendWR: 1023, RecvWR: 1023, SendSGE: 4, RecvSGE: 4}})
		return err
	})
	q.sq, q.rq, q.cqr = c.ring(q.info.SQ), c.ring(q.info.RQ), c.ring(q.cq.Ring)
	return q
}

// extents are what the shim would say of the client's memory.
func (c *program) extents() (list []memory.Extent) {
	if c.kind != memory.Hole {
		return []memory.Extent{{Start: c.base, Offset: c.base, Length: clientMemory, Kind: c.kind, Prot: 3}}
	}
	kinds := []memory.ExtentKind{memory.Own, memory.Foreign}
	for at := uint64(0); at < clientMemory; at += 4096 {
		list = append(list, memory.Extent{Start: c.base + at, Offset: c.base + at, Length: 4096, Kind: kinds[at/4096%2], Prot: 3})
	}
	return list
}

const (
	attrInit = 1<<0 | 1<<3 | 1<<4 | 1<<5
	attrRTR  = 1<<0 | 1<<7 | 1<<8 | 1<<12 | 1<<15 | 1<<17 | 1<<20
	attrRTS  = 1<<0 | 1<<9 | 1<<10 | 1<<11 | 1<<13 | 1<<16
)

// connect takes both to RTS.
func connect(a, b *testQP) {
	a.to(b)
	if a != b {
		b.to(a)
	}
}

func (q *testQP) to(peer *testQP) {
	q.c.t.Helper()
	q.c.do(func() error {
		s, h := q.c.s, q.info.Handle
		if err := s.ModifyQP(h, attrInit, &nic.QPAttr{State: 1, PortNum: 1, AccessFlags: 0xf}); err != nil {
			return err
		}
		if err := s.ModifyQP(h, attrRTR, &nic.QPAttr{State: 2, PathMTU: 5, DestQPN: peer.info.Num, MaxDestRDAtomic: 16, MinRNRTimer: 1,
			AH: nic.AHAttr{DGID: peer.c.gid, IsGlobal: true, PortNum: 1}}); err != nil {
			return err
		}
		timeout := q.timeout
		if timeout == 0 {
			timeout = 14
		}
		return s.ModifyQP(h, attrRTS, &nic.QPAttr{State: 3, Timeout: timeout, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 16})
	})
}

// A wr is a send work request in short.
type wr struct {
	op     uint32
	flags  uint32
	off, n uint32 // local bytes
	remote uint64
	rkey   uint32
	id     uint64
}

// write puts a work request into the next slot.
func (q *testQP) write(w wr) {
	b := q.sq.slot(q.posted)
	clear(b[:208])
	le := binary.NativeEndian
	le.PutUint64(b, w.id)
	le.PutUint32(b[12:], w.op)
	le.PutUint32(b[16:], w.flags)
	le.PutUint64(b[24:], w.remote)
	le.PutUint32(b[32:], w.rkey)
	le.PutUint32(b[184:], w.n)
	le.PutUint32(b[196:], 1)
	le.PutUint64(b[208:], q.c.base+uint64(w.off))
	le.PutUint32(b[216:], w.n)
	le.PutUint32(b[220:], q.mr.LKey)
	q.posted++
}

var one = [8]byte{1}

// ring publishes what was written and rings, as the shim does.
func (q *testQP) ring() {
	shared(q.sq.mem, 128).Store(q.posted & q.sq.mask)
	h := q.info.Handle
	q.c.page.bitmap[h/64].Or(1 << (h % 64))
	q.c.page.summary[h/4096].Or(1 << (h / 64 % 64))
	q.c.page.any.Store(1)
	if q.c.page.armed.Load() != 0 && q.c.page.armed.Swap(0) != 0 {
		q.c.bell.Write(one[:])
	}
}

func (q *testQP) post(w wr) {
	q.write(w)
	q.ring()
}

// recv posts a receive.
func (q *testQP) recv(off, n uint32) {
	prod := shared(q.rq.mem, 128)
	b := q.rq.slot(prod.Load())
	le := binary.NativeEndian
	le.PutUint32(b[16:], n)
	le.PutUint32(b[28:], 1)
	le.PutUint64(b[40:], q.c.base+uint64(off))
	le.PutUint32(b[48:], n)
	le.PutUint32(b[52:], q.mr.LKey)
	prod.Store((prod.Load() + 1) & q.rq.mask)
}

// A wc is a completion in short.
type wc struct {
	id             uint64
	status, opcode uint32
	length         uint32
}

// try polls once.
func (q *testQP) try() (wc, bool) {
	cons := shared(q.cqr.mem, 256)
	if shared(q.cqr.mem, 128).Load() == cons.Load() {
		return wc{}, false
	}
	b := q.cqr.slot(cons.Load())
	le := binary.NativeEndian
	w := wc{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint32(b[20:])}
	cons.Store((cons.Load() + 1) & q.cqr.mask)
	return w, true
}

// wait polls until a completion comes.
func (q *testQP) wait() wc {
	q.c.t.Helper()
	for start := time.Now(); time.Since(start) < time.Minute; {
		if w, ok := q.try(); ok {
			return w
		}
		yield() // the engine may need this processor
		if q.c.kind != memory.Own {
			runtime.Gosched() // and so may the workers for foreign memory
		}
	}
	q.c.t.Fatal("no completion within a minute")
	return wc{}
}

// newWith is an engine that serves n, on the host's own network.
func newWith(n *nic.NIC, o Options) (*Engine, error) {
	network := &flatNetwork{}
	network.Add(n)
	o.Resolver = network
	e, err := New(o)
	if err != nil {
		return nil, err
	}
	return e, e.Add(n, nil)
}

// only is the NIC of an engine that serves one.
func (e *Engine) only() *nic.NIC {
	for n := range e.first.adapters.of {
		return n
	}
	return nil
}

// flow is what the scheduler knows of the client.
func (c *program) flow() *flow { return &clientOf(c.s).flow }

// task is the loop's record of the queue pair.
func (q *testQP) task() *task { return taskOf(q.c.s.QP(q.info.Handle)) }
