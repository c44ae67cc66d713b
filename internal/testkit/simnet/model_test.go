package simnet

import (
	"bytes"
	"encoding/binary"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Layout of a node's memory in a conversation. Each direction has a target that the peer's operations read and write, a source that is
// never written, and space for received data.
const (
	targetSize = 32 << 10
	sourceSize = 16 << 10
	target     = Base
	source     = target + targetSize
	arrivals   = source + sourceSize
	nodeSize   = targetSize + sourceSize + 2*20*recvSize
	recvSize   = 12 << 10
)

// A side is one direction of a conversation: what e sends, and the model of the peer.
type side struct {
	t       *testing.T
	e, peer *Endpoint
	key     uint32 // of the peer's target
	all     uint32 // of all of e's memory

	model  []byte // the expected content of the peer's target after all posted operations
	next   uint64 // address of e's next received data
	posted []expect
	done   int
	recvs  []message // what the peer must receive, in order
	rcvd   int
	reads  []span // READs since the last fence
	mtu    uint32
	first  uint32 // PSN of e's first request
	ready  int    // receives posted at the peer
	other  *side
}

type span struct{ lo, hi uint64 }

// expect is the expected result of a request.
type expect struct {
	id       uint64
	signaled bool
	op       transport.WROp
	sges     []transport.SGE
	data     []byte // expected content of sges, for READs and atomics
	bytes    uint32
}

// message is the expected content of a receive.
type message struct {
	data    []byte
	op      transport.RecvOp
	hasImm  bool
	imm     uint32
	solicit bool
}

// alloc finds space for n bytes of received data.
func (s *side) alloc(e *Endpoint, next *uint64, n uint32) uint64 {
	if *next+uint64(n) > Base+nodeSize {
		s.t.Fatalf("conversation needs too much memory")
	}
	a := *next
	*next += uint64(n)
	return a
}

// split splits [addr, addr+n) into a random scatter/gather list.
func split(n *Net, addr uint64, length, key uint32) []transport.SGE {
	var l []transport.SGE
	for length > 0 && len(l) < 5 && n.Rand.IntN(3) != 0 {
		k := n.Rand.Uint32N(length + 1)
		l = append(l, transport.SGE{Addr: addr, Length: k, LKey: key})
		addr += uint64(k)
		length -= k
	}
	if length > 0 || len(l) == 0 && n.Rand.IntN(2) == 0 {
		l = append(l, transport.SGE{Addr: addr, Length: length, LKey: key})
	}
	return l
}

// size returns a random message length. Limits of packets and bursts are more likely.
func size(n *Net, mtu uint32) uint32 {
	switch n.Rand.IntN(8) {
	case 0:
		return 0
	case 1:
		return mtu
	case 2:
		return min(mtu*(1+n.Rand.Uint32N(6))+n.Rand.Uint32N(3)-1, recvSize)
	case 3, 4:
		return n.Rand.Uint32N(64)
	case 5:
		return n.Rand.Uint32N(min(16*mtu, recvSize))
	}
	return n.Rand.Uint32N(min(2*mtu, recvSize))
}

// post posts a random request and applies it to the model.
func (s *side) post(net *Net, ops []transport.WROp) {
	w := transport.SendWQE{WRID: uint64(len(s.posted)) + 1000, Op: ops[net.Rand.IntN(len(ops))]}
	if net.Rand.IntN(3) != 0 {
		w.Flags |= transport.FlagSignaled
	}
	x := expect{id: w.WRID, signaled: w.Flags != 0, op: w.Op}
	n := size(net, s.mtu)
	off := uint64(net.Rand.Uint32N(targetSize - n + 1))
	w.RemoteAddr, w.RKey = target+off, s.key
	fenced := false
	switch w.Op {
	case transport.WRCmpSwap, transport.WRFetchAdd, transport.WRAtomicWrite:
		n = 8
		off = uint64(net.Rand.Uint32N(targetSize/8)) * 8
		w.RemoteAddr = target + off
		s.atomic(net, &w, &x, s.model[off:off+8])
		fenced = s.touches(off, off+8)
	case transport.WRRead:
		x.data = bytes.Clone(s.model[off : off+uint64(n)])
		x.sges = split(net, s.alloc(s.e, &s.next, n), n, s.all)
	case transport.WRLocalInv, transport.WRBindMW:
		w.MWLength = 1
		n = 0
	default:
		from := source + uint64(net.Rand.Uint32N(sourceSize-n+1))
		x.sges = split(net, from, n, s.all)
		data := bytes.Clone(s.e.Node.Bytes(from, n))
		w.Imm = net.Rand.Uint32()
		m := message{data: data, solicit: net.Rand.IntN(4) == 0}
		if m.solicit {
			w.Flags |= transport.FlagSolicited
		}
		m.imm, m.hasImm = w.Imm, w.Op == transport.WRSendImm || w.Op == transport.WRWriteImm
		if w.Op == transport.WRWrite || w.Op == transport.WRWriteImm {
			copy(s.model[off:], data)
			fenced = s.touches(off, off+uint64(n))
			m.op = transport.RecvWriteImm
		}
		if w.Op != transport.WRWrite {
			s.recvs = append(s.recvs, m)
		}
	}
	// A later operation may overtake the reading of a READ's data unless it is fenced.
	if fenced || net.Rand.IntN(16) == 0 {
		w.Flags |= transport.FlagFence
		s.reads = s.reads[:0]
	}
	if w.Op == transport.WRRead {
		s.reads = append(s.reads, span{off, off + uint64(n)})
	}
	w.NumSGE = uint8(copy(w.SGE[:], x.sges))
	x.bytes = n
	s.posted = append(s.posted, x)
	s.e.Post(w)
}

func (s *side) atomic(net *Net, w *transport.SendWQE, x *expect, mem []byte) {
	old := binary.LittleEndian.Uint64(mem)
	w.CompareAdd, w.Swap = net.Rand.Uint64(), net.Rand.Uint64()
	if net.Rand.IntN(2) == 0 {
		w.CompareAdd = old
	}
	switch {
	case w.Op == transport.WRFetchAdd:
		binary.LittleEndian.PutUint64(mem, old+w.CompareAdd)
	case w.Op == transport.WRAtomicWrite, old == w.CompareAdd:
		binary.LittleEndian.PutUint64(mem, w.Swap)
	}
	if w.Op == transport.WRAtomicWrite {
		w.Length = 8
		return
	}
	x.data = binary.LittleEndian.AppendUint64(nil, old)
	x.sges = split(net, s.alloc(s.e, &s.next, 8), 8, s.all)
}

// touches reports whether a write overlaps a READ that it might overtake.
func (s *side) touches(lo, hi uint64) bool {
	for _, r := range s.reads {
		if lo < r.hi && r.lo < hi {
			return true
		}
	}
	return false
}

// sent checks a completion of e's send queue.
func (s *side) sent(e *Endpoint, d SendDone) {
	for s.done < len(s.posted) && !s.posted[s.done].signaled && s.posted[s.done].id != d.WRID {
		s.check(s.posted[s.done])
		s.done++
	}
	if s.done == len(s.posted) {
		s.t.Fatalf("completion of %d, nothing is outstanding", d.WRID)
	}
	x := s.posted[s.done]
	s.done++
	if d.WRID != x.id || d.Status != transport.Success || d.Op != x.op || d.Bytes != x.bytes {
		s.t.Fatalf("completion %+v, want request %d, op %d, %d bytes, success", d, x.id, x.op, x.bytes)
	}
	s.check(x)
}

// check compares the result of a READ or atomic.
func (s *side) check(x expect) {
	if x.data == nil {
		return
	}
	if got := s.e.Node.gather(x.sges); !bytes.Equal(got, x.data) {
		s.t.Fatalf("request %d (op %d) brought wrong data: %d bytes, first difference at %d", x.id, x.op, len(got), differ(got, x.data))
	}
}

// received checks a completion of the peer's receive queue.
func (s *side) received(e *Endpoint, d RecvDone) {
	if s.rcvd == len(s.recvs) {
		s.t.Fatalf("receive %+v, none expected", d)
	}
	m := s.recvs[s.rcvd]
	s.rcvd++
	if d.WRID != uint64(s.rcvd-1) || d.Status != transport.Success || d.Op != m.op || d.HasImm != m.hasImm ||
		m.hasImm && d.Imm != m.imm || d.Solicited != m.solicit || int(d.ByteLen) != len(m.data) {
		s.t.Fatalf("receive %+v, want number %d, op %d, %d bytes, immediate %v %d, solicited %v", d, s.rcvd-1, m.op, len(m.data), m.hasImm, m.imm, m.solicit)
	}
	if m.op == transport.RecvSend {
		if got := s.peer.Node.gather(s.peerRecv(s.rcvd - 1))[:len(m.data)]; !bytes.Equal(got, m.data) {
			s.t.Fatalf("receive %d has wrong data, first difference at %d of %d", s.rcvd-1, differ(got, m.data), len(m.data))
		}
	}
}

// peerRecv returns the buffer of the peer's i-th receive.
func (s *side) peerRecv(i int) []transport.SGE {
	return []transport.SGE{{Addr: arrivals + (20+uint64(i))*recvSize, Length: recvSize}}
}

// postRecv posts the peer's next receive, in random pieces.
func (s *side) postRecv(net *Net) {
	b := s.peerRecv(s.ready)[0]
	w := transport.RecvWQE{WRID: uint64(s.ready)}
	w.NumSGE = uint8(copy(w.SGE[:], split(net, b.Addr, recvSize, s.other.all)))
	s.ready++
	s.peer.PostRecv(w)
}

func (n *Node) gather(sges []transport.SGE) []byte {
	var b []byte
	for _, e := range sges {
		b = append(b, n.Bytes(e.Addr, e.Length)...)
	}
	return b
}

func differ(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// newSide prepares one direction.
func newSide(t *testing.T, e, peer *Endpoint) *side {
	s := &side{t: t, e: e, peer: peer, next: arrivals}
	s.key = peer.Node.Register(target, targetSize, AllAccess)
	s.all = e.Node.Register(Base, nodeSize, ib.AccessLocalWrite)
	s.model = bytes.Clone(peer.Node.Bytes(target, targetSize))
	e.OnSend = s.sent
	peer.OnRecv = s.received
	return s
}

var rcOps = []transport.WROp{
	transport.WRWrite, transport.WRWriteImm, transport.WRSend, transport.WRSendImm, transport.WRRead, transport.WRRead,
	transport.WRCmpSwap, transport.WRFetchAdd, transport.WRAtomicWrite, transport.WRLocalInv, transport.WRBindMW,
}

// final compares everything at the end.
func (s *side) final() {
	for ; s.done < len(s.posted); s.done++ {
		if x := s.posted[s.done]; x.signaled {
			s.t.Fatalf("request %d was never completed", x.id)
		} else {
			s.check(x)
		}
	}
	if got := s.peer.Node.Bytes(target, targetSize); !bytes.Equal(got, s.model) {
		s.t.Fatalf("remote memory differs from the model at %d", differ(got, s.model))
	}
	local := 0
	for _, x := range s.posted {
		if x.op == transport.WRLocalInv || x.op == transport.WRBindMW {
			local++
		}
	}
	if len(s.e.LocalOps) != local {
		s.t.Fatalf("%d local operations performed, want %d", len(s.e.LocalOps), local)
	}
	if sn := s.e.QP.Snapshot(); sn.State != ib.StateRTS || sn.Outstanding != 0 || sn.RDOut != 0 {
		s.t.Fatalf("queue pair at the end: state %d, %d packets and %d READs outstanding", sn.State, sn.Outstanding, sn.RDOut)
	}
	if s.e.Node.Faults != 0 {
		s.t.Fatalf("%d accesses refused", s.e.Node.Faults)
	}
}

func fill(n *Net, b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], n.Rand.Uint64())
	}
}
