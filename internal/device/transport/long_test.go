package transport

import (
	"fmt"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
)

// endless is a host whose memory is one buffer over and over, so that a message can be
// as long as it may be. It checks that every byte arrives once and in order.
type endless struct {
	fastHost
	peer *endless
	next uint64 // offset at which data must arrive
}

// longest is the longest message that verbs can express.
const longest = 1<<31 - 1

var everywhere [64 << 10]byte

func (h *endless) Gather(w *SendWQE, off, n uint32, s *memory.Span) Status {
	s.Add(everywhere[:n])
	return Success
}
func (h *endless) ReadRemote(rkey uint32, va uint64, n uint32, s *memory.Span) Status {
	s.Add(everywhere[:n])
	return Success
}
func (h *endless) arrive(off uint64, s *memory.Span) Status {
	if off == 0 && h.next == longest {
		h.next = 0 // the second message
	}
	if off != h.next {
		return LocProtErr
	}
	h.next += uint64(s.Len())
	return Success
}
func (h *endless) ScatterSend(w *SendWQE, off uint32, s *memory.Span) Status {
	return h.arrive(uint64(off), s)
}
func (h *endless) ScatterRecv(w *RecvWQE, off uint32, s *memory.Span) Status {
	return h.arrive(uint64(off), s)
}
func (h *endless) WriteRemote(rkey uint32, va uint64, s *memory.Span) Status { return h.arrive(va, s) }
func (h *endless) Send(b *Burst) {
	if b.Kind == KindAck {
		h.peer.acks[h.peer.nacks] = *b
		h.peer.nacks++
		return
	}
	h.peer.q.Receive(1, b, &h.peer.env)
}

// TestLongestMessages sends 2 GiB - 1 bytes at the smallest and the largest MTU: 2^23
// packets, all that the sequence numbers can hold.
func TestLongestMessages(t *testing.T) {
	for _, mtu := range []uint32{256, 4096} {
		for _, op := range []WROp{WRSend, WRWrite, WRRead} {
			t.Run(fmt.Sprintf("MTU %d op %d", mtu, op), func(t *testing.T) {
				x, y := newFastPair(ib.RC)
				a, b := &endless{fastHost: *x}, &endless{fastHost: *y}
				a.peer, b.peer = b, a
				sc := new(Scratch)
				for _, h := range []*endless{a, b} {
					h.env = NewEnv(h, h, sc)
					h.q.Modify(&Attr{MTU: mtu}, ib.MaskMTU, 1, &h.env)
					h.r.Length = longest
				}
				a.w = SendWQE{Op: op, Length: longest}
				a.posted = 2
				for range 100_000 {
					more := a.q.Run(1, 1<<20, &a.env)
					a.deliver()
					for b.q.RespondPending() {
						b.q.Respond(1, 1<<20, &b.env)
					}
					if !more && !a.q.RunPending() {
						break
					}
				}
				if s := a.q.Snapshot(); a.done != 2 || a.failed != 0 || s.Outstanding != 0 {
					t.Errorf("%d done, %d failed, snapshot %+v", a.done, a.failed, s)
				}
			})
		}
	}
}

func (h *endless) deliver() {
	for i := range h.nacks {
		h.q.Receive(1, &h.acks[i], &h.env)
	}
	h.nacks = 0
}
