package transport_test

import (
	"testing"

	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/testkit/simnet"
)

// These tests send what a peer may send but no vrdma requester does: it must neither hang the loop nor cause endless answers.

// TestStashedReadOfTooMuch sends a READ longer than any message ahead of its turn, and then a packet that makes the responder
// scan the stash.
func TestStashedReadOfTooMuch(t *testing.T) {
	s := newScript(t, ib.RC)
	s.remote(ownPath)
	r := s.burst(KindReadReq, 1, 1, 0)
	r.Length = 1<<32 - 1
	s.give(r)
	s.give(s.burst(KindSend, 3, 1, 8))
	s.Now += 10_000_000
	s.give(s.burst(KindSend, 3, 1, 8))
	if n := len(s.answers); n == 0 || n > 8 {
		t.Errorf("%d answers, want a few", n)
	}
}

// TestStashedOverlap sends a READ ahead of its turn whose response would overlap earlier packets, and expects few checks of
// unused sequence numbers.
func TestStashedOverlap(t *testing.T) {
	s := newScript(t, ib.RC)
	s.remote(ownPath)
	s.give(s.burst(KindSend, 10, 1, 8))
	r := s.burst(KindReadReq, 9, 1, 0)
	r.Length = 10 << 10
	s.give(r)
	for i := range uint32(8) {
		s.give(s.burst(KindSend, 1+i, 1, 8))
	}
	asked := 0
	for range 1000 {
		s.Now += 10_000_000
		s.give(s.burst(KindSend, 10, 1, 8))
		asked += len(s.answers)
	}
	// Walking all sequence numbers a thousand times takes minutes.
	if asked == 0 || asked > 8000 {
		t.Errorf("%d answers to 1000 packets", asked)
	}
}

// TestRefusalNamesWhatIsExpected sends a burst that begins with packets already received. The NAK must name the first packet that
// has not been received: the requester may know that the others arrived, and ignores a NAK for them.
func TestRefusalNamesWhatIsExpected(t *testing.T) {
	s := newScript(t, ib.RC)
	head := s.burst(KindWriteImm, 0, 2, 2048)
	head.Length, head.Last = 3000, false
	s.want(s.give(head), "ack 1 syn 0x1f msn 0; ")
	s.want(s.give(s.burst(KindWriteImm, 0, 3, 3000)), "ack 2 syn 0x2c msn 0; ")
	s.recv(1, 8, 0)
	s.want(s.give(s.burst(KindWriteImm, 0, 3, 3000)), "ack 2 syn 0x1f msn 1; ")
}

// TestRepairBeforeRead reports a gap that reaches into a READ when the requester has just gone back: the READ counts once, and a
// fence after it opens.
func TestRepairBeforeRead(t *testing.T) {
	w := newWorld(t, ib.RC, onWire).remote(ownPath)
	quiet := true
	w.Tap = func(from *simnet.Endpoint, b *Burst) bool { return quiet }
	fenced := w.req(WRWrite, 8, 0)
	fenced.Flags = FlagFence
	w.post(w.req(WRWrite, 8, 0), w.req(WRRead, 3000, 0), w.req(WRWrite, 8, 0), fenced)
	for range 3 {
		w.Step(w.Now)
	}
	// The peer misses the first WRITE and the READ, and may request them twice.
	nak := Burst{
		Type: ib.RC, Kind: KindAck, First: true, Last: true, Src: w.b.Num, Dst: w.a.Num, SGID: w.b.GID, DGID: w.a.GID, PKey: 0xffff,
		PSN: 0, MSN: 4, Packets: 1, Syndrome: NakSequence,
	}
	w.a.QP.Receive(w.Now, &nak, w.a.Env())
	nak.Syndrome = NakSequence | 0x1f
	w.a.QP.Receive(w.Now, &nak, w.a.Env())
	quiet = false
	w.run()
	w.wantSent(Success, Success, Success, Success)
	if s := w.a.QP.Snapshot(); s.RDOut != 0 {
		t.Errorf("%d READs outstanding in the end", s.RDOut)
	}
}
