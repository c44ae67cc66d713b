package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/state"
)

// A world is one run of a random program of verbs calls. Two runs of the same program, one of them with hosts that are
// frozen and thawed between calls, leave the same trace. The test makes the passes, in virtual time.
type world struct {
	t      *testing.T
	rng    *rand.Rand // of the program
	frng   *rand.Rand // of freezes, or of moves between loops; nil: there are none
	loops  int        // of each host; 0: hosts are frozen, and have one
	hosts  []*frozenHost
	conns  []*conn
	qps    map[uint32]*fqp // by number
	trace  []string
	at     []netip.Addr // of the hosts
	types  []uint8      // of connections
	moving []*machine   // NICs move between these; nil: hosts are frozen, and stay
	reads  int          // READs of the transfer under way
	frozen int
	bytes  int // of all states
}

// A frozenHost is a NIC at a daemon, or at one after the other.
type frozenHost struct {
	*machine
	w      *world
	n      *nic.NIC
	conf   nic.Config
	gid    ib.GID
	progs  []*fprog
	random *rand.Rand
}

// A machine is a daemon. The test makes its passes, in its virtual time.
type machine struct {
	e    *Engine
	udp  *roce.UDP
	now  ib.Time
	over *roce.Overlay // where NICs move
	here *virtual
}

// An fprog is a program of a host. What the daemon has of it changes with the daemon.
type fprog struct {
	bucket    uint32
	h         *frozenHost
	s         *nic.Session
	arena     *nic.Arena
	space     *memory.Space
	arenaFile *os.File
	bell      *os.File
	mem       []byte
	base      uint64
	kind      memory.ExtentKind
	mapping   []byte
	page      page
	async     *eventList
	channels  map[uint32]*eventList
	pd        uint32
	mr        nic.MRInfo
	cqs       []*fcq
}

// progMemory is the memory of a program: connArea for each connection.
const (
	connArea   = 1 << 20
	progMemory = 8 * connArea
	fileOffset = 5 << 30 // of the memory in its memfd: not its address
)

// An eventList is what a client reads events from. Sinks of several daemons lead to it.
type eventList struct {
	list [][]byte
	most int
}

type listSink struct{ l *eventList }

func (s listSink) Post(e [16]byte, n int) bool {
	if len(s.l.list) >= s.l.most {
		return false
	}
	s.l.list = append(s.l.list, slices.Clone(e[:n]))
	return true
}

func (s listSink) Withdraw() (e [16]byte, n int) {
	if len(s.l.list) == 0 {
		return e, 0
	}
	n = copy(e[:], s.l.list[0])
	s.l.list = s.l.list[1:]
	return e, n
}

func (s listSink) HangupFd() int { return -1 }
func (s listSink) Close()        {}

// read takes all events.
func (l *eventList) read() (out [][]byte) {
	out, l.list = l.list, nil
	return out
}

type fcq struct {
	p       *fprog
	info    nic.CQInfo
	ring    testRing
	channel int32
}

type fsrq struct {
	info nic.SRQInfo
	ring testRing
}

type fqp struct {
	p        *fprog
	typ      uint8
	info     nic.QPInfo
	cq       *fcq
	srq      *fsrq
	sq, rq   testRing
	posted   uint32
	received uint32
	done     [2][]string // completions: of sends, and of receives
	ah       uint32
}

// A conn is two connected queue pairs, and the area of both programs' memory that they use.
type conn struct {
	typ   uint8
	q     [2]*fqp
	area  int
	mw    nic.MWInfo // of q[1]; bound if bound is set
	bound bool
	hasMW bool
	group ib.GID
}

const (
	uc = 3
	ud = 4
)

func newWorld(t *testing.T, seed uint64, hosts int, kind memory.ExtentKind, freeze bool, loops int, at []netip.Addr) *world {
	w := &world{t: t, at: at, types: []uint8{rc, rc, rc, uc, ud}, rng: rand.New(rand.NewPCG(seed, 1)), qps: make(map[uint32]*fqp), loops: loops}
	if freeze {
		w.frng = rand.New(rand.NewPCG(seed, 2))
	}
	for i := range hosts {
		w.addHost(i, seed, hosts > 1)
	}
	for i := range 3 {
		w.addProg(w.hosts[i%hosts], kind)
	}
	t.Cleanup(w.close)
	return w
}

func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format, args...)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// say adds a line to the trace.
func (w *world) say(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

func (w *world) addHost(i int, seed uint64, udp bool) {
	h := &frozenHost{machine: &machine{now: 1}, w: w, gid: testGID, random: rand.New(rand.NewPCG(seed, uint64(10+i)))}
	if udp {
		err := error(unix.EADDRINUSE)
		for try := 0; try < 100 && errors.Is(err, unix.EADDRINUSE); try++ {
			if len(w.at) == i {
				w.at = append(w.at, netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))}))
			}
			if h.udp, err = roce.ListenUDP(roce.UDPOptions{Shards: w.loops}, w.at[i]); err != nil {
				w.at = w.at[:i]
			}
		}
		w.must(err)
		h.gid = ib.GIDOf(w.at[i])
	}
	h.conf = nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: h.gid, NetDev: "lo"}}, Random: func() uint32 { return h.random.Uint32() }}
	h.n = nic.New(h.conf)
	h.e = h.engine(h.n)
	w.hosts = append(w.hosts, h)
}

// engine makes an engine that the test drives.
func (h *frozenHost) engine(n *nic.NIC) *Engine {
	o := Options{Window: 1 << 20, NoMove: true, NoAckWait: true, Loops: h.w.loops}
	if h.udp != nil {
		o.Port, o.Wake = roce.NewPort(h.udp), h.udp.Descriptors()
	}
	e, err := newWith(n, o)
	h.w.must(err)
	e.first.clock.now = h.now
	for _, o := range e.loops.heldLoops() {
		o.clock.time = func() ib.Time { h.now += 1000; return h.now }
	}
	return e
}

// attach makes the loop serve a program, with a bucket (steering.go) that does not depend on the number of loops: numbers are
// compared.
func (w *world) attach(e *Engine, p *fprog) {
	w.must(e.Attach(p.s, p.bell))
	p.s.SetNumbers(p.bucket, roce.Buckets)
}

func (w *world) addProg(h *frozenHost, kind memory.ExtentKind) {
	p := &fprog{h: h, kind: kind, async: &eventList{most: 4}, channels: make(map[uint32]*eventList)}
	var err error
	p.arena, err = nic.NewArena()
	w.must(err)
	p.arenaFile = dupFile(w.t, p.arena.File())
	p.space, err = memory.NewSpace(0)
	w.must(err)
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	w.must(err)
	p.bell = os.NewFile(uintptr(fd), "doorbell")
	p.mapping, err = unix.Mmap(int(p.arena.File().Fd()), 0, 256<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	w.must(err)
	p.mem, err = unix.Mmap(int(p.space.File().Fd()), fileOffset, progMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	w.must(err)
	p.base = uint64(addressOf(p.mem))
	if kind != memory.Own {
		f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
		w.must(err)
		p.space.SetForeign(f)
	}
	p.page = newPage(p.mapping)
	p.s, err = h.n.Open(nic.SessionOptions{Arena: p.arena, Space: p.space, Pid: os.Getpid(), Program: "test"})
	w.must(err)
	p.bucket = uint32(len(h.progs))
	w.attach(h.e, p)
	w.must(p.s.CreateAsync(func() (nic.EventSink, error) { return listSink{p.async}, nil }))
	p.pd, err = p.s.AllocPD()
	w.must(err)
	region, err := p.space.Map(p.base, progMemory, p.extents())
	w.must(err)
	access := uint32(ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic | ib.AccessMWBind)
	p.mr, err = p.s.RegMR(nic.MRParams{PD: p.pd, Start: p.base, Length: progMemory, HcaVA: p.base, Access: access, Region: region})
	w.must(err)
	h.progs = append(h.progs, p)
}

// extents are the program's memory: of one kind, or every second page foreign.
func (p *fprog) extents() (list []memory.Extent) {
	if p.kind != memory.Hole {
		return []memory.Extent{{Start: p.base, Offset: fileOffset, Length: progMemory, Kind: p.kind, Prot: 3}}
	}
	for at := uint64(0); at < progMemory; at += 16384 {
		k := memory.Own
		if at/16384%2 == 1 {
			k = memory.Foreign
		}
		list = append(list, memory.Extent{Start: p.base + at, Offset: fileOffset + at, Length: 16384, Kind: k, Prot: 3})
	}
	return list
}

func dupFile(t testing.TB, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// forsake ends a daemon's use of a session. The program notices nothing.
func forsake(e *Engine, s *nic.Session, a *nic.Arena, m *memory.Space) {
	e.Detach(s)
	s.CloseLost()
	a.Close()
	m.Close()
}

// end ends an engine that the test has driven.
func end(e *Engine) {
	e.first.shut()
}

func (w *world) close() {
	hosts, machines := w.hosts, w.machines()
	w.hosts, w.moving = nil, nil
	for _, h := range hosts {
		for _, p := range h.progs {
			forsake(h.e, p.s, p.arena, p.space)
			p.arenaFile.Close()
			p.bell.Close()
			unix.Munmap(p.mem)
			unix.Munmap(p.mapping)
		}
	}
	for _, m := range machines {
		end(m.e)
		if m.over != nil {
			m.over.Close() // and its socket
		} else if m.udp != nil {
			m.udp.Close()
		}
	}
}

// machines are all machines.
func (w *world) machines() []*machine {
	if w.moving != nil {
		return w.moving
	}
	var list []*machine
	for _, h := range w.hosts {
		list = append(list, h.machine)
	}
	return list
}

// pass makes a pass of a machine.
func (h *machine) pass() bool {
	e := h.e
	h.unite()
	e.first.clock.read()
	e.first.bells.activateRung(e.first.clock.now)
	e.first.net.traffic.wake(e.first.clock.now)
	work := e.first.step()
	for _, o := range e.loops.others {
		o.clock.read()
		o.bells.activateRung(o.clock.now)
		work = o.step() || work
	}
	return work
}

// unite does what follows a command: connected sessions meet on one loop.
func (h *machine) unite() {
	for h.e.first.cmds.pending.Load() {
		h.e.first.cmds.pop()() // a queue pair asks to meet its peer
	}
	if l := h.e.loops; len(l.meet) > 0 {
		l.again = true // no timer: the next pass tries again
		h.e.loops.unite()
	}
}

// passes makes n passes of every host.
func (w *world) passes(n int) (work bool) {
	for range n {
		for _, m := range w.machines() {
			work = m.pass() || work
		}
	}
	return work
}

// busy reports whether a host waits for threads, and the first deadline of its queue pairs.
func (h *frozenHost) busy() (threads bool, due ib.Time) {
	h.n.EachQP(func(q *nic.QP) {
		if d := q.Transport().Deadline(); d != 0 {
			due = sooner(due, d)
		}
		threads = threads || q.Delayed()
	})
	return threads, due
}

// settle makes passes until nothing is under way.
func (w *world) settle() {
	w.t.Helper()
	quiet := 0
	for n := 0; quiet < 3; n++ {
		if n > 200_000 {
			w.fatal("the world does not settle")
		}
		if w.passes(1) {
			quiet = 0
			continue
		}
		threads := false
		var next *frozenHost
		wait := ib.Time(0)
		for _, h := range w.hosts {
			t, due := h.busy()
			threads = threads || t
			if due != 0 && (next == nil || max(due-h.now, 0) < wait) {
				next, wait = h, max(due-h.now, 0)
			}
		}
		switch {
		case threads:
			n--
			runtime.Gosched()
			time.Sleep(10 * time.Microsecond)
		case next != nil:
			for _, m := range w.machines() {
				m.now += wait
			}
		default:
			// Receives of queue pairs in error, and full event channels, are looked at by and by.
			quiet++
			for _, m := range w.machines() {
				m.now += 2 * tickEvery
				m.e.first.chores.startTick(m.e.first.clock.now - tickEvery)
			}
		}
	}
}

// maybeFreeze freezes and thaws a host, sometimes. Then the world continues with the new one, or, if that is to have
// failed, with the old one.
func (w *world) maybeFreeze() {
	w.t.Helper()
	if w.frng == nil || w.frng.IntN(3) != 0 {
		return
	}
	if w.moving != nil {
		w.moveNIC()
		return
	}
	if w.loops > 0 {
		w.moveGroup()
		return
	}
	h := w.hosts[w.frng.IntN(len(w.hosts))]
	w.frozen++
	type frozenProg struct {
		session, space []byte
		files          []*os.File
	}
	var progs []frozenProg
	var device, engine []byte
	encode := func(v any) []byte {
		b, err := state.Marshal(v)
		w.must(err)
		w.bytes += len(b)
		return b
	}
	fail := w.frng.IntN(4) == 0
	w.must(h.e.first.halt(context.Background(), func() error {
		device, engine = encode(h.n.Freeze()), encode(h.e.Freeze())
		for _, p := range h.progs {
			st, err := p.s.Freeze()
			w.must(err)
			space, files, err := p.space.Freeze()
			w.must(err)
			progs = append(progs, frozenProg{encode(st), encode(&space), files})
		}
		return nil
	}))
	old, next := *h, *h.machine
	h.machine = &next
	oldProgs := make([]fprog, len(h.progs))
	for i, p := range h.progs {
		oldProgs[i] = *p
	}
	// Another clock.
	h.now = ib.Time(w.frng.Int64N(1e15))
	var ns nic.NICState
	var es EngineState
	w.must(state.Unmarshal(device, &ns))
	w.must(state.Unmarshal(engine, &es))
	h.n = nic.New(h.conf)
	w.must(h.n.Thaw(&ns))
	h.e = h.engine(h.n)
	w.must(h.e.Thaw(&es))
	for i, p := range h.progs {
		var ss nic.SessionState
		var ms memory.SpaceState
		w.must(state.Unmarshal(progs[i].session, &ss))
		w.must(state.Unmarshal(progs[i].space, &ms))
		var err error
		p.space, err = memory.Thaw(&ms, progs[i].files, memory.ThawOptions{})
		w.must(err)
		p.arena, err = nic.NewArenaOf(dupFile(w.t, p.arenaFile))
		w.must(err)
		p.s, err = h.n.ThawSession(nic.SessionOptions{Arena: p.arena, Space: p.space, Pid: os.Getpid(), Program: "test"}, &ss, p, h.e.first.clock.now)
		w.must(err)
		w.attach(h.e, p)
		if again, err := p.s.Freeze(); err != nil || !fail && w.frng.IntN(4) == 0 && !bytes.Equal(encode(again), progs[i].session) {
			w.fatal("the state of a session that was thawed differs: %v", err)
		}
		if w.frng.IntN(2) == 0 {
			p.space.Populate()
		}
	}
	if fail {
		for _, p := range h.progs {
			forsake(h.e, p.s, p.arena, p.space)
		}
		end(h.e)
		*h = old
		for i, p := range h.progs {
			*p = oldProgs[i]
		}
		h.e.first.lookAgain()
		return
	}
	for i := range oldProgs {
		forsake(old.e, oldProgs[i].s, oldProgs[i].arena, oldProgs[i].space)
	}
	end(old.e)
}

// Region implements nic.Restorer.
func (p *fprog) Region(id uint64) (*memory.Region, error) {
	if r := p.space.Region(id); r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("no region %d", id)
}

// Sink implements nic.Restorer.
func (p *fprog) Sink(channel uint32) (nic.EventSink, error) {
	return listSink{p.channels[channel]}, nil
}

// AsyncSink implements nic.Restorer.
func (p *fprog) AsyncSink() (nic.EventSink, error) { return listSink{p.async}, nil }

func (p *fprog) ring(m nic.MMap) testRing {
	mem := p.mapping[m.Offset : m.Offset+uint64(m.Size)]
	return testRing{mem: mem, log2: binary.NativeEndian.Uint32(mem), mask: binary.NativeEndian.Uint32(mem[4:])}
}

// newCQ makes a completion queue, with a channel or without one.
func (w *world) newCQ(p *fprog) *fcq {
	c := &fcq{p: p, channel: -1}
	if w.rng.IntN(2) == 0 {
		l := &eventList{most: 2}
		id, err := p.s.CreateChannel(func() (nic.EventSink, error) { return listSink{l}, nil })
		w.must(err)
		p.channels[id] = l
		c.channel = int32(id)
	}
	var err error
	c.info, err = p.s.CreateCQ(nic.CQParams{UserHandle: uint64(1000 + len(p.cqs)), CQE: 255, Channel: c.channel})
	w.say("cq %d of %d: %+v %v", len(p.cqs), c.channel, c.info, err)
	w.must(err)
	c.ring = p.ring(c.info.Ring)
	p.cqs = append(p.cqs, c)
	return c
}

// newQP makes a queue pair, with a shared receive queue or its own.
func (w *world) newQP(p *fprog, typ uint8, shared bool) *fqp {
	q := &fqp{p: p, typ: typ, cq: w.newCQ(p)}
	params := nic.QPParams{
		UserHandle: uint64(w.rng.Uint32()), PD: p.pd, SendCQ: q.cq.info.Handle, RecvCQ: q.cq.info.Handle, Type: typ,
		Cap: nic.QPCap{SendWR: 63, RecvWR: 63, SendSGE: 2, RecvSGE: 2, Inline: 64},
	}
	if shared {
		q.srq = &fsrq{}
		var err error
		q.srq.info, err = p.s.CreateSRQ(nic.SRQParams{UserHandle: 7, PD: p.pd, MaxWR: 63, MaxSGE: 2})
		w.must(err)
		q.srq.ring = p.ring(q.srq.info.Ring)
		params.HasSRQ, params.SRQ = true, q.srq.info.Handle
	}
	var err error
	q.info, err = p.s.CreateQP(params)
	w.say("qp %+v %v", q.info, err)
	w.must(err)
	q.sq = p.ring(q.info.SQ)
	if !shared {
		q.rq = p.ring(q.info.RQ)
	}
	w.qps[q.info.Num] = q
	return q
}

// newConn makes a connection between two programs, which may be the same.
func (w *world) newConn() {
	used := map[int]bool{}
	for _, c := range w.conns {
		used[c.area] = true
	}
	area := 0
	for used[area] {
		area++
	}
	if area >= progMemory/connArea {
		return
	}
	progs := w.allProgs()
	c := &conn{typ: w.types[w.rng.IntN(len(w.types))], area: area}
	shared := w.rng.IntN(3) == 0
	for i := range c.q {
		c.q[i] = w.newQP(progs[w.rng.IntN(len(progs))], c.typ, shared)
	}
	w.conns = append(w.conns, c)
	w.connect(c)
	if c.typ == rc {
		c.mw, _ = c.q[1].p.s.AllocMW(c.q[1].p.pd, abi.MWType2)
		c.hasMW = true
	}
}

func (w *world) allProgs() (list []*fprog) {
	for _, h := range w.hosts {
		list = append(list, h.progs...)
	}
	return list
}

const qkey = 0x1234

// connect takes both queue pairs to RTS, and may be interrupted.
func (w *world) connect(c *conn) {
	masks := map[uint8][3]ib.AttrMask{
		rc: {attrInit, attrRTR, attrRTS},
		uc: {attrInit, 1<<0 | 1<<7 | 1<<8 | 1<<12 | 1<<20, 1<<0 | 1<<16},
		ud: {1<<0 | 1<<4 | 1<<5 | 1<<6, 1 << 0, 1<<0 | 1<<16},
	}[c.typ]
	mtu := uint8(1 + w.rng.IntN(5))
	psn := [2]uint32{w.rng.Uint32() & ib.PSNMask, w.rng.Uint32() & ib.PSNMask}
	depth := uint8(1 + w.rng.IntN(16))
	for step := range masks {
		for i := range c.q {
			w.maybeFreeze()
			q, peer := c.q[i], c.q[1-i]
			err := q.p.s.ModifyQP(q.info.Handle, masks[step], &nic.QPAttr{
				State: uint8(step + 1), PortNum: 1, AccessFlags: 0xf, QKey: qkey, PathMTU: mtu, DestQPN: peer.info.Num, MaxDestRDAtomic: depth, MinRNRTimer: 1,
				RQPSN: psn[1-i], SQPSN: psn[i], AH: nic.AHAttr{DGID: peer.p.h.gid, IsGlobal: true, PortNum: 1}, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: depth,
			})
			w.say("modify %d to %d: %v", i, step+1, err)
		}
	}
	if c.typ != ud {
		return
	}
	for i, q := range c.q {
		h, num, err := q.p.s.CreateAH(q.p.pd, nic.AHAttr{DGID: c.q[1-i].p.h.gid, IsGlobal: true, PortNum: 1})
		w.say("ah %d %d %v", h, num, err)
		q.ah = num
	}
}

// A request is a send work request.
type request struct {
	op     transport.WROp
	flags  uint32
	off, n uint32 // of the sender's memory
	remote uint64
	rkey   uint32
	imm    uint32
	a, b   uint64 // of atomics; of a bind: the window's address and length
	inline bool
}

// post writes a request to the send queue. It rings later, or not at all if it is not the last.
func (q *fqp) post(id uint64, r request, peer *fqp) {
	b := q.sq.slot(q.posted)
	clear(b[:208])
	le := binary.NativeEndian
	le.PutUint64(b, id)
	le.PutUint32(b[abi.SendOpcode:], uint32(r.op))
	le.PutUint32(b[abi.SendFlags:], r.flags)
	le.PutUint32(b[abi.SendImm:], r.imm)
	le.PutUint64(b[abi.SendRemoteAddr:], r.remote)
	le.PutUint32(b[abi.SendRKey:], r.rkey)
	switch {
	case q.typ == ud:
		le.PutUint32(b[abi.SendRemoteQPN:], peer.info.Num)
		le.PutUint32(b[abi.SendRemoteQKey:], qkey)
		le.PutUint32(b[abi.SendAHNum:], q.ah)
	case r.op == transport.WRCmpSwap || r.op == transport.WRFetchAdd:
		le.PutUint64(b[abi.SendCompareAdd:], r.a)
		le.PutUint64(b[abi.SendSwap:], r.b)
		le.PutUint32(b[abi.SendAtomicRKey:], r.rkey)
	case r.op == transport.WRBindMW:
		le.PutUint64(b[abi.SendMWAddr:], r.a)
		le.PutUint64(b[abi.SendMWLength:], r.b)
		le.PutUint32(b[abi.SendMWMRLKey:], q.p.mr.LKey)
		le.PutUint32(b[abi.SendMWMWRKey:], r.rkey)
		le.PutUint32(b[abi.SendMWRKey:], r.imm)
		le.PutUint32(b[abi.SendMWAccess:], uint32(ib.AccessRemoteWrite|ib.AccessRemoteRead))
	}
	le.PutUint32(b[abi.SendDMALength:], r.n)
	if r.inline {
		copy(b[abi.SendInline:], q.p.mem[r.off:r.off+r.n])
	} else {
		half := r.n / 3
		le.PutUint32(b[abi.SendNumSGE:], 2)
		for i, s := range [2][2]uint32{{r.off, half}, {r.off + half, r.n - half}} {
			e := b[abi.SendSGE+16*i:]
			le.PutUint64(e, q.p.base+uint64(s[0]))
			le.PutUint32(e[8:], s[1])
			le.PutUint32(e[12:], q.p.mr.LKey)
		}
	}
	q.posted++
	shared(q.sq.mem, 128).Store(q.posted & q.sq.mask)
}

// ring rings the doorbell.
func (q *fqp) ring() {
	h, g := q.info.Handle, &q.p.page
	g.bitmap[h/64].Or(1 << (h % 64))
	g.summary[h/4096].Or(1 << (h / 64 % 64))
	g.any.Store(1)
	if g.armed.Load() != 0 && g.armed.Swap(0) != 0 {
		q.p.bell.Write(one[:])
	}
}

// receive posts a receive.
func (q *fqp) receive(id uint64, off, n uint32) {
	ring := &q.rq
	if q.srq != nil {
		ring = &q.srq.ring
	}
	prod := shared(ring.mem, 128)
	b := ring.slot(prod.Load())
	le := binary.NativeEndian
	le.PutUint64(b, id)
	le.PutUint32(b[abi.RecvDMALength:], n)
	le.PutUint32(b[abi.RecvNumSGE:], 1)
	le.PutUint64(b[abi.RecvSGE:], q.p.base+uint64(off))
	le.PutUint32(b[abi.RecvSGE+8:], n)
	le.PutUint32(b[abi.RecvSGE+12:], q.p.mr.LKey)
	prod.Store((prod.Load() + 1) & ring.mask)
}

// poll takes all completions of the queue.
func (w *world) poll(c *fcq) {
	cons := shared(c.ring.mem, 256)
	for shared(c.ring.mem, 128).Load() != cons.Load() {
		b := c.ring.slot(cons.Load())
		le := binary.NativeEndian
		var imm uint32
		if le.Uint32(b[abi.WCFlags:]) != 0 {
			imm = le.Uint32(b[abi.WCImm:])
		}
		q, id := w.qps[le.Uint32(b[abi.WCQPNum:])], le.Uint64(b)
		status := le.Uint32(b[abi.WCStatus:])
		if w.moving != nil && status >= abi.WCStatusRemInvReqErr && status <= abi.WCStatusRetryExcErr {
			status = abi.WCStatusRetryExcErr // a NAK of a queue pair that has failed is sent once, and may be lost
		}
		q.done[id/recvID] = append(q.done[id/recvID], fmt.Sprintf("%d: status %d, op %d, %d bytes, imm %x, from %x, flags %x",
			id, status, le.Uint32(b[abi.WCOpcode:]), le.Uint32(b[abi.WCByteLen:]), imm, le.Uint32(b[abi.WCSrcQP:]), le.Uint32(b[abi.WCFlags:])))
		cons.Store((cons.Load() + 1) & c.ring.mask)
	}
}

// observe adds to the trace what the programs see.
func (w *world) observe() {
	for i, p := range w.allProgs() {
		for _, c := range p.cqs {
			w.poll(c)
		}
		read := func(name string, l *eventList) {
			var list []string
			for more := true; more; {
				events := l.read()
				more = len(events) > 0
				for _, e := range events {
					list = append(list, fmt.Sprintf("%x", e))
				}
				w.settle() // the daemon has kept events that did not fit
			}
			slices.Sort(list)
			if len(list) > 0 {
				w.say("program %d, %s: events %s", i, name, strings.Join(list, " "))
			}
		}
		read("async", p.async)
		for _, c := range p.cqs {
			if c.channel >= 0 {
				read(fmt.Sprintf("cq %d", c.info.Handle), p.channels[uint32(c.channel)])
			}
		}
		w.say("program %d: memory %x", i, crc32.Checksum(p.mem, crc32.MakeTable(crc32.Castagnoli)))
	}
	nums := make([]*fqp, 0, len(w.qps))
	for _, q := range w.qps {
		nums = append(nums, q)
	}
	slices.SortFunc(nums, func(a, b *fqp) int { return cmp.Compare(a.info.Num, b.info.Num) })
	for _, q := range nums {
		// A queue pair's sends complete in order, and so do its receives. How the two mix depends on time.
		for _, d := range slices.Concat(q.done[0], q.done[1]) {
			w.say("qp %x: %s", q.info.Num, d)
		}
		q.done = [2][]string{}
	}
}

// recvID is added to the IDs of receives.
const recvID = 1 << 32

// round lets some connections transfer something, one direction each, and waits for the end of it.
func (w *world) round() {
	for _, c := range w.conns {
		if w.rng.IntN(3) != 0 {
			w.transfer(c)
		}
	}
	w.maybeFreeze()
	w.settle()
	w.maybeFreeze()
	w.observe()
}

// transfer posts requests of one side of a connection, and the receives that they need.
func (w *world) transfer(c *conn) {
	d := w.rng.IntN(2)
	q, peer := c.q[d], c.q[1-d]
	area, half := uint32(c.area*connArea), uint32(connArea/2)
	seed := byte(w.rng.Uint32())
	pattern(q.p.mem[area:area+half], seed)
	if w.rng.IntN(2) == 0 {
		h := w.rng.IntN(2) == 0
		w.say("arm: %v", peer.p.s.ReqNotify(peer.cq.info.Handle, h))
	}
	early := w.rng.IntN(2) == 0 // receives come before sends
	w.reads = 0
	var receives []func()
	for range 1 + w.rng.IntN(6) {
		r, needs := w.request(c, d)
		if needs {
			off, id := area+half+uint32(w.rng.IntN(1000)), recvID+uint64(peer.received)
			peer.received++
			n := r.n + uint32(w.rng.IntN(3)) + 40
			post := func() { peer.receive(id, off, n) }
			if early || c.typ != rc {
				post()
			} else {
				receives = append(receives, post)
			}
		}
		q.post(uint64(q.posted), r, peer)
		if w.rng.IntN(2) == 0 {
			q.ring()
		}
		w.maybeFreeze()
		if w.rng.IntN(2) == 0 {
			w.passes(1 + w.rng.IntN(3))
		}
		w.maybeFreeze()
	}
	q.ring()
	if w.rng.IntN(2) == 0 {
		w.passes(w.rng.IntN(4))
		w.maybeFreeze()
	}
	for _, post := range receives {
		post()
	}
}

// request makes a request of side d of c. needs says that it consumes a receive.
func (w *world) request(c *conn, d int) (r request, needs bool) {
	q, peer := c.q[d], c.q[1-d]
	area, half := uint32(c.area*connArea), uint32(connArea/2)
	sizes := []int{0, 1, 60, 4096, 5000, 70_000, 400_000}
	n := uint32(sizes[w.rng.IntN(len(sizes))])
	if c.typ == ud {
		n = min(n, 200)
	}
	r = request{
		op: transport.WRSend, off: area + uint32(w.rng.IntN(500)), n: n, imm: w.rng.Uint32(),
		remote: peer.p.base + uint64(area+half) + uint64(w.rng.IntN(500)), rkey: peer.p.mr.RKey,
	}
	for _, f := range []uint32{transport.FlagSignaled, transport.FlagSignaled, transport.FlagSolicited, transport.FlagFence} {
		if w.rng.IntN(2) == 0 && !(f == transport.FlagFence && c.typ != rc) {
			r.flags |= f
		}
	}
	ops := []transport.WROp{transport.WRSend, transport.WRSendImm}
	if c.typ != ud {
		ops = append(ops, transport.WRWrite, transport.WRWriteImm)
	}
	if c.typ == rc {
		if ops = append(ops, transport.WRCmpSwap, transport.WRFetchAdd); q.p != peer.p { // else what a READ brings overlaps with a later WRITE
			ops = append(ops, transport.WRRead, transport.WRRead)
		}
		if c.hasMW && d == 1 && !c.bound {
			ops = append(ops, transport.WRBindMW)
		}
		if c.bound && d == 0 {
			ops = append(ops, transport.WRSendInv)
		}
		if c.bound && d == 1 {
			ops = append(ops, transport.WRLocalInv)
		}
	}
	r.op = ops[w.rng.IntN(len(ops))]
	if r.op == transport.WRRead {
		// After a loss, the data of two READs into the same memory may arrive in any order.
		if w.reads++; w.moving != nil && w.reads > 1 {
			r.op = transport.WRSend
		}
	}
	switch r.op {
	case transport.WRSend, transport.WRSendImm, transport.WRWriteImm, transport.WRSendInv:
		needs = true
	case transport.WRRead:
		r.off, r.remote = area+half, peer.p.base+uint64(area)+uint64(w.rng.IntN(500))
	case transport.WRCmpSwap, transport.WRFetchAdd:
		r.n, r.off, r.remote = 8, area+connArea-64, peer.p.base+uint64(area)+connArea-128
		r.a, r.b = uint64(w.rng.IntN(3)), uint64(w.rng.IntN(3))
	case transport.WRBindMW:
		r.n, r.rkey, r.imm = 0, c.mw.RKey, c.mw.RKey&^0xff|w.rng.Uint32()&0xff
		r.a, r.b = q.p.base+uint64(area+half), uint64(half)
		c.mw.RKey, c.bound = r.imm, true
	case transport.WRLocalInv:
		r.n, r.imm, c.bound = 0, c.mw.RKey, false
	}
	if r.op == transport.WRSendInv {
		r.imm, c.bound = c.mw.RKey, false
	} else if c.bound && d == 0 && (r.op == transport.WRWrite || r.op == transport.WRWriteImm) {
		r.rkey = c.mw.RKey
	}
	if r.n <= 60 && r.n > 0 && (r.op == transport.WRSend || r.op == transport.WRWrite) && w.rng.IntN(2) == 0 {
		r.flags |= transport.FlagInline
		r.inline = true
	}
	return r, needs
}

// change makes a verbs call that is not a transfer.
func (w *world) change() {
	w.maybeFreeze()
	c := w.conns[w.rng.IntN(len(w.conns))]
	i := w.rng.IntN(2)
	q := c.q[i]
	s := q.p.s
	switch w.rng.IntN(12) {
	case 0, 1:
		info, err := s.ResizeCQ(q.cq.info.Handle, uint32(100+w.rng.IntN(900)))
		w.say("resize cq: %+v %v", info, err)
		if err == nil {
			q.cq.info, q.cq.ring = info, q.p.ring(info.Ring)
		}
	case 2:
		if q.srq != nil {
			m, ok, err := s.ModifySRQ(q.srq.info.Handle, abi.SRQMaskMaxWR|abi.SRQMaskLimit, uint32(63+w.rng.IntN(200)), uint32(w.rng.IntN(3)))
			w.say("resize srq: %+v %v %v", m, ok, err)
			if err == nil {
				q.srq.ring = q.p.ring(m)
			}
		}
	case 3, 4:
		a, init, err := s.QueryQP(q.info.Handle)
		if w.moving != nil && ib.State(a.State) == ib.StateError {
			a.SQPSN, a.RQPSN = 0, 0 // how much of what failed had been sent
		}
		w.say("query: %+v %+v %v", a, init, err)
	case 5: // drain the send queue, and continue
		if c.typ == rc {
			w.say("drain: %v", s.ModifyQP(q.info.Handle, ib.MaskState|ib.MaskSQDAsyncNotify, &nic.QPAttr{State: uint8(ib.StateSQD), EnSQDAsync: 1}))
			w.maybeFreeze()
			w.settle()
			w.say("continue: %v", q.p.s.ModifyQP(q.info.Handle, ib.MaskState, &nic.QPAttr{State: uint8(ib.StateRTS)}))
		}
	case 6: // an error
		if c.typ == rc {
			r, _ := w.request(c, i)
			r.op, r.n, r.rkey, r.flags, r.inline = transport.WRWrite, 100, 77, 0, false
			q.post(uint64(q.posted), r, c.q[1-i])
			q.post(uint64(q.posted), r, c.q[1-i])
			c.q[1-i].receive(recvID+uint64(c.q[1-i].received), 0, 10)
			c.q[1-i].received++
			q.ring()
			w.maybeFreeze()
			w.settle()
			w.observe()
			w.repair(c)
		}
	case 7:
		pd, err := s.AllocPD()
		w.say("pd %d %v", pd, err)
		w.maybeFreeze()
		w.say("free: %v", q.p.s.DeallocPD(pd))
	case 8:
		w.regMR(q.p)
	case 9:
		w.group(c)
	case 10:
		w.destroy(c)
	case 11:
		w.newConn()
	}
}

// repair takes a connection that has failed through RESET.
func (w *world) repair(c *conn) {
	for _, q := range c.q {
		w.say("reset: %v", q.p.s.ModifyQP(q.info.Handle, ib.MaskState, &nic.QPAttr{State: uint8(ib.StateReset)}))
		w.maybeFreeze()
	}
	c.bound = false // RESET unbinds
	w.connect(c)
}

// regMR registers memory, and deregisters it.
func (w *world) regMR(p *fprog) {
	region, err := p.space.Map(p.base, progMemory, p.extents())
	w.must(err)
	m, err := p.s.RegMR(nic.MRParams{PD: p.pd, Start: p.base, Length: progMemory, HcaVA: p.base, Access: 1, Region: region})
	w.say("mr %+v %v", m, err)
	w.maybeFreeze()
	w.say("deregister: %v, again: %v", p.s.DeregMR(m.Handle), p.s.DeregMR(m.Handle))
}

// group attaches a queue pair to a multicast group, or detaches it.
func (w *world) group(c *conn) {
	if c.typ != ud {
		return
	}
	q, gid := c.q[0], ib.GID{0: 0xff, 1: 0x0e, 15: byte(1 + w.rng.IntN(3))}
	if c.group == (ib.GID{}) {
		w.say("attach: %v", q.p.s.AttachMcast(q.info.Handle, gid, 0))
		c.group = gid
	} else {
		w.say("detach: %v", q.p.s.DetachMcast(q.info.Handle, c.group, 0))
		c.group = ib.GID{}
	}
	w.say("members: %d", len(q.p.h.n.Multicast(gid)))
}

// destroy ends a connection.
func (w *world) destroy(c *conn) {
	if len(w.conns) < 2 {
		return
	}
	w.settle()
	w.observe()
	if c.group != (ib.GID{}) {
		w.group(c)
	}
	if c.hasMW {
		w.say("free window: %v", c.q[1].p.s.DeallocMW(c.mw.Handle))
	}
	for _, q := range c.q {
		n, err := q.p.s.DestroyQP(q.info.Handle)
		w.say("destroy qp: %d %v", n, err)
		w.maybeFreeze()
		if q.srq != nil {
			n, err := q.p.s.DestroySRQ(q.srq.info.Handle)
			w.say("destroy srq: %d %v", n, err)
		}
		comp, async, err := q.p.s.DestroyCQ(q.cq.info.Handle)
		w.say("destroy cq: %d %d %v", comp, async, err)
		delete(w.qps, q.info.Num)
		q.p.cqs = slices.DeleteFunc(q.p.cqs, func(o *fcq) bool { return o == q.cq })
	}
	w.conns = slices.DeleteFunc(w.conns, func(o *conn) bool { return o == c })
}

// run runs a program of so many rounds.
func (w *world) run(rounds int) {
	for range 4 {
		w.newConn()
	}
	for range rounds {
		w.round()
		w.change()
	}
	for i, h := range w.hosts {
		h.now += 1
		hold := h.n.Holdings()
		w.say("host %d: %+v", i, hold)
	}
}

// TestFrozenBehavesAsBefore runs random programs of verbs calls twice: once as they are, and once with daemons that are
// frozen and thawed, or fail to, between any two calls and passes. Both give the same answers, completions, events and
// data.
func TestFrozenBehavesAsBefore(t *testing.T) {
	seeds, rounds := 2, 8
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		seeds, rounds = 40, 30
	}
	for _, c := range []struct {
		name  string
		hosts int
		kind  memory.ExtentKind
	}{
		{"one host", 1, memory.Own}, {"two hosts", 2, memory.Own}, {"foreign memory", 1, memory.Foreign}, {"mixed memory, two hosts", 2, memory.Hole},
	} {
		t.Run(c.name, func(t *testing.T) {
			frozen, size := 0, 0
			for seed := range uint64(seeds) {
				var traces [2][]string
				var at []netip.Addr
				for i := range traces {
					w := newWorld(t, seed, c.hosts, c.kind, i == 1, 0, at)
					w.run(rounds)
					w.close()
					at = w.at
					traces[i] = w.trace
					frozen, size = frozen+w.frozen, size+w.bytes
				}
				for i, want := range traces[0] {
					if i >= len(traces[1]) || traces[1][i] != want {
						t.Fatalf("seed %d, line %d of %d:\n%s\nwithout freezes\n%s", seed, i, len(traces[0]),
							strings.Join(traces[1][max(i-5, 0):min(i+3, len(traces[1]))], "\n"), strings.Join(traces[0][max(i-5, 0):i+1], "\n"))
					}
				}
			}
			if frozen < 20*seeds {
				t.Errorf("%d freezes of %d programs", frozen, seeds)
			}
			t.Logf("%d freezes, %d bytes each", frozen, size/max(frozen, 1))
		})
	}
}
