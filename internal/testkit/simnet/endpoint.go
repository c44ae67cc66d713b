package simnet

import (
	"fmt"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// SendDone is a completion of the send queue.
type SendDone struct {
	WRID   uint64
	Op     transport.WROp
	Status transport.Status
	Bytes  uint32
}

// RecvDone is a completion of the receive queue.
type RecvDone struct {
	WRID uint64
	transport.RecvResult
}

// An Endpoint is one queue pair with its queues. It implements the NIC for its QP, and sends to the network.
type Endpoint struct {
	QP   transport.QP
	Num  uint32
	GID  ib.GID
	Node *Node
	net  *Net
	peer *Endpoint // the one that it was connected to
	loop *loop
	env  transport.Env

	sends   []transport.SendWQE
	retired uint32
	recvs   *[]transport.RecvWQE // its own or a shared queue

	Sent   []SendDone
	Rcvd   []RecvDone
	Events []transport.Event
	// AHs are the address handles that UD work requests name by index.
	AHs []ib.GID
	// OnSend and OnRecv, when set, are called for every completion.
	OnSend func(*Endpoint, SendDone)
	OnRecv func(*Endpoint, RecvDone)
	// LocalOps are the local operations performed.
	LocalOps []uint64
	// Invalidated are the keys that peers invalidated.
	Invalidated []uint32

	signalAll bool
	ready     bool // posted to since the last Run
	down      bool // disconnected from the network
	deadline  ib.Time

	// clock is the difference of the loop's clock to Net.Now.
	clock ib.Time

	// What the network carried for the endpoint.
	SentCNP, RcvdCNP, RcvdMarked int

	inbox  []flight // bursts that were not accepted
	asked  bool     // Later was answered
	atomic *done
}

// now returns the time on the loop's clock.
func (e *Endpoint) now() ib.Time { return e.net.Now + e.clock }

// rearm notes the queue pair's deadline, on the network's clock.
func (e *Endpoint) rearm() {
	if e.deadline = e.QP.Deadline(); e.deadline != 0 {
		e.deadline = max(e.deadline-e.clock, 1)
	}
}

// Post adds a send request and sets its position and length.
func (e *Endpoint) Post(w transport.SendWQE) {
	w.Pos = uint32(len(e.sends))
	if w.Length == 0 {
		for _, s := range w.SGE[:w.NumSGE] {
			w.Length += s.Length
		}
	}
	e.sends = append(e.sends, w)
	e.ready = true
}

// PostRecv adds a receive to the endpoint's queue, or to its shared queue.
func (e *Endpoint) PostRecv(w transport.RecvWQE) {
	w.Length = 0
	for _, s := range w.SGE[:w.NumSGE] {
		w.Length += s.Length
	}
	*e.recvs = append(*e.recvs, w)
}

// ShareRecvs makes e use o's receive queue.
func (e *Endpoint) ShareRecvs(o *Endpoint) { e.recvs = o.recvs }

// Down disconnects the endpoint, as if its machine had crashed.
func (e *Endpoint) Down() { e.down = true }

// Env returns the environment for calls of QP.
func (e *Endpoint) Env() *transport.Env { return &e.env }

func (e *Endpoint) FetchSend(pos uint32, w *transport.SendWQE) bool {
	if pos < e.retired {
		panic(fmt.Sprintf("qp %d: fetch of position %d, retired up to %d", e.Num, pos, e.retired))
	}
	if pos >= uint32(len(e.sends)) {
		return false
	}
	copySend(w, &e.sends[pos])
	return true
}

func (e *Endpoint) CompleteSend(w *transport.SendWQE, st transport.Status, bytes uint32) {
	if w.Pos != e.retired || w.Pos >= uint32(len(e.sends)) {
		panic(fmt.Sprintf("qp %d: position %d ends, %d of %d have", e.Num, w.Pos, e.retired, len(e.sends)))
	}
	e.retired++
	if st == transport.Success && w.Flags&transport.FlagSignaled == 0 && !e.signalAll {
		return
	}
	d := SendDone{w.WRID, w.Op, st, bytes}
	if e.OnSend != nil {
		e.OnSend(e, d)
		return
	}
	e.Sent = append(e.Sent, d)
}

func (e *Endpoint) TakeRecv(w *transport.RecvWQE) bool {
	q := *e.recvs
	if len(q) == 0 {
		return false
	}
	w.WRID, w.Length, w.Bad, w.NumSGE = q[0].WRID, q[0].Length, q[0].Bad, q[0].NumSGE
	copy(w.SGE[:], q[0].SGE[:q[0].NumSGE])
	*e.recvs = q[1:]
	return true
}

func (e *Endpoint) CompleteRecv(w *transport.RecvWQE, r *transport.RecvResult) {
	d := RecvDone{w.WRID, *r}
	if e.OnRecv != nil {
		e.OnRecv(e, d)
		return
	}
	e.Rcvd = append(e.Rcvd, d)
}

func (e *Endpoint) Gather(w *transport.SendWQE, off, n uint32, s *memory.Span) transport.Status {
	if e.later() {
		return transport.Later
	}
	return e.Node.list(w.SGE[:w.NumSGE], off, n, 0, s.Add)
}

func (e *Endpoint) ScatterSend(w *transport.SendWQE, off uint32, s *memory.Span) transport.Status {
	r := reader{pieces: s.Pieces()}
	st := e.Node.list(w.SGE[:w.NumSGE], off, uint32(s.Len()), ib.AccessLocalWrite, r.read)
	if e.later() {
		return transport.Later
	}
	return st
}

func (e *Endpoint) ScatterRecv(w *transport.RecvWQE, off uint32, s *memory.Span) transport.Status {
	if e.later() {
		return transport.Later
	}
	r := reader{pieces: s.Pieces()}
	return e.Node.list(w.SGE[:w.NumSGE], off, uint32(s.Len()), ib.AccessLocalWrite, r.read)
}

func (e *Endpoint) CheckRemote(rkey uint32, va uint64, n uint32, a ib.Access) transport.Status {
	if _, ok := e.Node.at(rkey, va, n, a); !ok {
		return transport.RemAccessErr
	}
	return transport.Success
}

func (e *Endpoint) CheckKey(rkey uint32, a ib.Access) transport.Status {
	if r, ok := e.Node.regions[rkey]; !ok || r.Access&a != a {
		e.Node.Faults++
		return transport.RemAccessErr
	}
	return transport.Success
}

func (e *Endpoint) WriteRemote(rkey uint32, va uint64, s *memory.Span) transport.Status {
	mem, ok := e.Node.at(rkey, va, uint32(s.Len()), ib.AccessRemoteWrite)
	if !ok {
		return transport.RemAccessErr
	}
	r := reader{pieces: s.Pieces()}
	r.read(mem)
	if e.later() {
		return transport.Later
	}
	return transport.Success
}

func (e *Endpoint) ReadRemote(rkey uint32, va uint64, n uint32, s *memory.Span) transport.Status {
	mem, ok := e.Node.at(rkey, va, n, ib.AccessRemoteRead)
	if !ok {
		return transport.RemAccessErr
	}
	if e.later() {
		return transport.Later
	}
	s.Add(mem)
	return transport.Success
}

func (e *Endpoint) Atomic(k transport.Kind, rkey uint32, va, compare, swap uint64) (uint64, transport.Status) {
	d := done{kind: k, rkey: rkey, va: va, compare: compare, swap: swap}
	if w := e.atomic; w != nil {
		if d.old = w.old; d == *w {
			e.atomic = nil
			return d.old, transport.Success
		}
		panic(fmt.Sprintf("qp %d: asked for %+v after %+v was carried out", e.Num, d, *w))
	}
	old, st := e.Node.atomic(k, rkey, va, compare, swap)
	if st == transport.Success && e.later() {
		d.old = old
		e.atomic = &d
		return 0, transport.Later
	}
	return old, st
}

func (e *Endpoint) InvalidateRemote(rkey uint32) transport.Status {
	if _, ok := e.Node.regions[rkey]; !ok {
		return transport.RemAccessErr
	}
	e.Node.Deregister(rkey)
	e.Invalidated = append(e.Invalidated, rkey)
	return transport.Success
}

func (e *Endpoint) LocalOp(w *transport.SendWQE) transport.Status {
	e.LocalOps = append(e.LocalOps, w.WRID)
	if w.Op == transport.WRBindMW && w.MWLength == 0 {
		return transport.MWBindErr
	}
	return transport.Success
}

func (e *Endpoint) ResolveAH(ah uint32) (sgid, dgid ib.GID, ok bool) {
	if ah >= uint32(len(e.AHs)) {
		return ib.GID{}, ib.GID{}, false
	}
	return e.GID, e.AHs[ah], true
}

func (e *Endpoint) GRH(b *transport.Burst, out *[40]byte) {
	*out = [40]byte{}
	copy(out[8:], b.SGID[:])
	copy(out[24:], b.DGID[:])
}

func (e *Endpoint) Send(b *transport.Burst) { e.net.send(e, b) }

func (e *Endpoint) Event(ev transport.Event) { e.Events = append(e.Events, ev) }

// copySend copies the used part of a work request: its list is long and mostly empty.
func copySend(w, s *transport.SendWQE) {
	w.Pos, w.WRID, w.Op, w.Flags = s.Pos, s.WRID, s.Op, s.Flags
	w.Imm, w.RKey, w.RemoteAddr = s.Imm, s.RKey, s.RemoteAddr
	w.CompareAdd, w.Swap = s.CompareAdd, s.Swap
	w.RemoteQPN, w.RemoteQKey, w.AH = s.RemoteQPN, s.RemoteQKey, s.AH
	w.MWRKey, w.MRLKey, w.MWLength, w.MWAccess = s.MWRKey, s.MRLKey, s.MWLength, s.MWAccess
	w.Length, w.Bad, w.NumSGE = s.Length, s.Bad, s.NumSGE
	copy(w.SGE[:], s.SGE[:s.NumSGE])
}
