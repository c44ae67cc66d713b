package simnet

import (
	"bytes"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// spoil posts a request that must fail and returns its expected status.
func (s *side) spoil(net *Net) transport.Status {
	w := transport.SendWQE{WRID: uint64(len(s.posted)) + 1000, Op: transport.WRWrite, RemoteAddr: target, RKey: s.key}
	w.NumSGE = 1
	w.SGE[0] = transport.SGE{Addr: source, Length: 1 + net.Rand.Uint32N(recvSize), LKey: s.all}
	st := transport.RemAccessErr
	switch net.Rand.IntN(6) {
	case 0:
		w.RKey ^= 1 << 31
	case 1:
		w.RemoteAddr = target + targetSize - uint64(w.SGE[0].Length) + 1
	case 2:
		w.Op, w.RKey = transport.WRRead, 1
	case 3:
		w.Op, w.SGE[0].Length = transport.WRFetchAdd, 8
		w.RemoteAddr += 4
		st = transport.RemInvReqErr
	case 4:
		w.SGE[0].LKey = 1
		st = transport.LocProtErr
	case 5:
		w.Bad = transport.LocQPOpErr
		st = transport.LocQPOpErr
	}
	s.posted = append(s.posted, expect{id: w.WRID, op: w.Op})
	s.e.Post(w)
	return st
}

// fail runs a conversation in which one request fails, or the peer crashes. All earlier requests must succeed, all later ones must be
// flushed, both in order, and nothing may be written outside of the target.
func fail(t *testing.T, seed uint64) {
	net := New(weather(seed))
	sides := pair(t, net, 17)
	s := sides[0]
	s.e.OnSend = nil
	s.peer.OnRecv, s.e.OnRecv = nil, nil
	s.e.SignalAll()
	for range net.Rand.IntN(10) {
		s.post(net, rcOps)
	}
	bad := len(s.posted)
	want := s.spoil(net)
	for range net.Rand.IntN(5) {
		s.post(net, rcOps)
	}
	for range s.recvs {
		s.postRecv(net)
	}
	death := net.Rand.IntN(4) == 0
	if death {
		net.Run(net.Now+ib.Time(net.Rand.IntN(100_000)), 10_000)
		s.peer.Down()
	}
	guard := bytes.Clone(s.peer.Node.Bytes(source, sourceSize))
	if !net.Run(net.Now+1e11, 2_000_000) {
		t.Fatalf("no end")
	}
	if len(s.e.Sent) != len(s.posted) {
		t.Fatalf("%d completions, want %d", len(s.e.Sent), len(s.posted))
	}
	failed := -1
	for i, d := range s.e.Sent {
		switch {
		case d.WRID != s.posted[i].id:
			t.Fatalf("completion %d is of request %d, want %d", i, d.WRID, s.posted[i].id)
		case failed < 0 && d.Status == transport.Success:
			s.check(s.posted[i])
		case failed < 0:
			failed = i
		case d.Status != transport.WRFlushErr:
			t.Fatalf("completion %d behind the failure: status %d", i, d.Status)
		}
	}
	got := s.e.Sent[failed].Status
	// The NAK, or a response before it, may be lost, and a peer in the error state does not repeat it.
	lossy := death || net.Drop > 0 || net.Reorder > 0
	if !(failed == bad && got == want) && !(lossy && failed <= bad && got == transport.RetryExcErr) {
		t.Fatalf("request %d failed with status %d, want %d with %d", failed, got, bad, want)
	}
	if s.e.QP.State() != ib.StateError || s.e.QP.Deadline() != 0 {
		t.Fatalf("state %d, deadline %d afterwards", s.e.QP.State(), s.e.QP.Deadline())
	}
	if !bytes.Equal(guard, s.peer.Node.Bytes(source, sourceSize)) {
		t.Fatalf("memory outside the target was written")
	}
}

// TestFailingConversations checks random conversations that end with an error.
func TestFailingConversations(t *testing.T) { each(t, 4000, fail) }

// tamper runs a conversation in which the application changes requests in progress. It may harm itself, but not its peer's memory, and
// nothing may hang or panic.
func tamper(t *testing.T, seed uint64) {
	net := New(weather(seed))
	sides := pair(t, net, 17)
	for _, s := range sides {
		s.e.OnSend, s.e.OnRecv = nil, nil
		for range 1 + net.Rand.IntN(15) {
			s.post(net, rcOps)
		}
		for range s.recvs {
			s.postRecv(net)
		}
	}
	guards := [][]byte{bytes.Clone(sides[0].e.Node.Bytes(source, sourceSize)), bytes.Clone(sides[1].e.Node.Bytes(source, sourceSize))}
	for range 300 {
		net.Run(net.Now+20_000, 200)
		s := sides[0]
		w := &s.e.sends[net.Rand.IntN(len(s.e.sends))]
		switch net.Rand.IntN(6) {
		case 0:
			w.Length = net.Rand.Uint32N(2 * recvSize)
		case 1:
			w.Op = transport.WROp(net.Rand.IntN(16))
		case 2:
			w.RemoteAddr += uint64(net.Rand.Uint32N(4096))
		case 3:
			w.NumSGE = uint8(net.Rand.IntN(6))
		case 4:
			w.SGE[0].Addr = arrivals
		case 5:
			w.Flags = uint8(net.Rand.IntN(16))
		}
	}
	// A request that became a SEND waits for ever for a receive, as its RNR retry count says.
	if sn := sides[0].e.QP.Snapshot(); !net.Run(net.Now+1e12, 2_000_000) && sides[0].e.QP.Counters().RcvdRNR < 10_000 {
		t.Fatalf("no end: %+v", sn)
	}
	if !bytes.Equal(guards[1], sides[1].e.Node.Bytes(source, sourceSize)) {
		t.Fatalf("memory of the peer outside the target was written")
	}
}

// TestTampering checks requests that change while they are in progress.
func TestTampering(t *testing.T) { each(t, 4000, tamper) }
