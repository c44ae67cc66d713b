package replay

import (
	"bytes"
	"encoding/binary"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
)

// A host is the NIC of the queue pair that takes part in a conversation. It derives the actions of the application from the capture.
type host struct {
	t   *testing.T
	q   transport.QP
	sc  transport.Scratch
	env transport.Env

	sends  []transport.SendWQE // posted so far
	data   [][]byte            // of each
	status []transport.Status

	feeding *packet // the packet being received
	// Requests that rxe rejected, by PSN: how often for lack of a receive, and whether finally.
	notReady map[uint32]int
	refused  map[uint32]bool

	mem      map[uint64]byte // the known content of x's memory
	received []byte          // the current receive
	arrived  [][]byte        // completed receives
	sgid     ib.GID          // source of datagrams
	dgid     ib.GID          // destination of the current datagram

	out [][]byte // sent packets, oldest first
	cut roce.Cutter
	buf []byte
}

func (h *host) FetchSend(pos uint32, w *transport.SendWQE) bool {
	if pos >= uint32(len(h.sends)) {
		return false
	}
	*w = h.sends[pos]
	return true
}

func (h *host) CompleteSend(w *transport.SendWQE, st transport.Status, bytes uint32) {
	h.status = append(h.status, st)
}

func (h *host) TakeRecv(w *transport.RecvWQE) bool {
	if h.feeding == nil {
		return false
	}
	if psn := h.feeding.psn(); h.notReady[psn] > 0 {
		h.notReady[psn]--
		return false
	}
	*w = transport.RecvWQE{Length: 1 << 20}
	return true
}

func (h *host) CompleteRecv(w *transport.RecvWQE, r *transport.RecvResult) {
	if r.Op == transport.RecvSend && r.Status == transport.Success {
		h.arrived = append(h.arrived, h.received)
	}
	h.received = nil
}

func (h *host) Gather(w *transport.SendWQE, off, n uint32, s *memory.Span) transport.Status {
	s.Add(h.data[w.Pos][off : off+n])
	return transport.Success
}

// flat returns the bytes of s.
func flat(s *memory.Span) []byte {
	var b []byte
	for _, p := range s.Pieces() {
		b = append(b, p.Mem...)
	}
	return b
}

func (h *host) ScatterSend(w *transport.SendWQE, off uint32, s *memory.Span) transport.Status {
	copy(h.data[w.Pos][off:], flat(s))
	return transport.Success
}

func (h *host) ScatterRecv(w *transport.RecvWQE, off uint32, s *memory.Span) transport.Status {
	h.received = append(h.received[:off], flat(s)...)
	return transport.Success
}

func (h *host) CheckRemote(rkey uint32, va uint64, n uint32, a ib.Access) transport.Status {
	if h.refused[h.feeding.psn()] {
		return transport.RemAccessErr
	}
	return transport.Success
}

func (h *host) CheckKey(rkey uint32, a ib.Access) transport.Status {
	return h.CheckRemote(rkey, 0, 0, a)
}

func (h *host) WriteRemote(rkey uint32, va uint64, s *memory.Span) transport.Status {
	if h.refused[h.feeding.psn()] {
		return transport.RemAccessErr
	}
	for i, b := range flat(s) {
		h.mem[va+uint64(i)] = b
	}
	return transport.Success
}

func (h *host) ReadRemote(rkey uint32, va uint64, n uint32, s *memory.Span) transport.Status {
	b := make([]byte, n)
	for i := range b {
		b[i] = h.mem[va+uint64(i)]
	}
	s.Add(b)
	return transport.Success
}

func (h *host) Atomic(k transport.Kind, rkey uint32, va, compare, swap uint64) (uint64, transport.Status) {
	var b [8]byte
	for i := range b {
		b[i] = h.mem[va+uint64(i)]
	}
	old := binary.LittleEndian.Uint64(b[:])
	switch {
	case k == transport.KindFetchAdd:
		h.set(va, old+swap)
	case old == compare:
		h.set(va, swap)
	}
	return old, transport.Success
}

func (h *host) set(va, v uint64) {
	for i := range uint64(8) {
		h.mem[va+i] = byte(v >> (8 * i))
	}
}

// know records that x's memory at va holds want. It reports whether that contradicts earlier knowledge: the application must have
// written there.
func (h *host) know(va uint64, want []byte) (changed bool) {
	for i, b := range want {
		if old, ok := h.mem[va+uint64(i)]; ok && old != b {
			changed = true
		}
		h.mem[va+uint64(i)] = b
	}
	return changed
}

func (h *host) InvalidateRemote(uint32) transport.Status      { return transport.Success }
func (h *host) LocalOp(*transport.SendWQE) transport.Status   { return transport.Success }
func (h *host) ResolveAH(uint32) (sgid, dgid ib.GID, ok bool) { return h.sgid, h.dgid, true }
func (h *host) GRH(b *transport.Burst, out *[40]byte)         {}
func (h *host) Event(transport.Event)                         {}

// Send splits a burst into packets and keeps them.
func (h *host) Send(b *transport.Burst) {
	if err := h.cut.Start(b, addrPort(b.SGID), addrPort(b.DGID)); err != nil {
		h.t.Fatal(err)
	}
	for {
		n, segment, err := h.cut.Next(h.buf, roce.MaxSegments)
		if err != nil {
			h.t.Fatal(err)
		}
		if n == 0 {
			return
		}
		for at := 0; at < n; at += segment {
			h.out = append(h.out, bytes.Clone(h.buf[at:min(n, at+segment)]))
		}
	}
}

// operationOf returns the operation of a work request, from its last packet.
func operationOf(last wire.Packet) transport.WROp {
	f := last.Format()
	switch imm := f.Headers&wire.HasImmDt != 0; f.Operation {
	case wire.Send:
		if imm {
			return transport.WRSendImm
		}
		return transport.WRSend
	case wire.Write:
		if imm {
			return transport.WRWriteImm
		}
		return transport.WRWrite
	case wire.ReadRequest:
		return transport.WRRead
	case wire.CompareSwap:
		return transport.WRCmpSwap
	}
	return transport.WRFetchAdd
}
