package transport_test

import (
	"bytes"
	"fmt"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/testkit/simnet"
)

// script sends bursts made by hand to b and collects its answers; a says nothing.
type script struct {
	*world
	answers []Burst
}

func newScript(t *testing.T, typ ib.Service, opts ...option) *script {
	s := &script{world: newWorld(t, typ, opts...)}
	s.Tap = func(from *simnet.Endpoint, b *Burst) bool {
		if from == s.b {
			s.answers = append(s.answers, *b)
		}
		return true
	}
	return s
}

// burst returns a burst that a would send.
func (s *script) burst(k Kind, psn, packets uint32, size int) Burst {
	b := Burst{
		Type: ib.RC, Kind: k, First: true, Last: true, AckReq: true, Src: s.a.Num, Dst: s.b.Num, SGID: s.a.GID, DGID: s.b.GID,
		PKey: 0xffff, MTU: 1024, PSN: psn, Packets: packets, VA: simnet.Base, RKey: s.bKey, Length: uint32(size),
	}
	b.Type = s.b.QP.Snapshot().Type
	if size > 0 {
		b.Data = new(memory.Span)
		b.Data.Add(s.a.Node.Mem[:size])
	}
	return b
}

// give delivers a burst to b, lets b respond, and returns the answers as text.
func (s *script) give(b Burst) string {
	s.answers = nil
	s.b.QP.Receive(s.Now, &b, s.b.Env())
	for range 100 {
		if !s.b.QP.RespondPending() {
			break
		}
		s.b.QP.Respond(s.Now, 1<<20, s.b.Env())
	}
	out := ""
	for _, a := range s.answers {
		switch a.Kind {
		case KindAck:
			out += fmt.Sprintf("ack %d syn %#x msn %d; ", a.PSN, a.Syndrome, a.MSN)
		case KindReadResp:
			out += fmt.Sprintf("read %d+%d %v %v msn %d; ", a.PSN, a.Packets, a.First, a.Last, a.MSN)
		case KindAtomicResp:
			out += fmt.Sprintf("atomic %d orig %d msn %d; ", a.PSN, a.Orig, a.MSN)
		}
	}
	return out
}

func (s *script) want(got, want string) {
	s.t.Helper()
	if got != want {
		s.t.Errorf("answers %q, want %q", got, want)
	}
}

// TestResponder checks the RC responder's answers in a conversation.
func TestResponder(t *testing.T) {
	s := newScript(t, ib.RC)
	for i := range 4 {
		s.recv(uint64(i), 4096, uint32(i)*4096)
	}
	s.want(s.give(s.burst(KindSend, 0, 1, 8)), "ack 0 syn 0x1f msn 1; ")
	s.want(s.give(s.burst(KindSend, 0, 1, 8)), "ack 0 syn 0x1f msn 1; ") // duplicate
	s.want(s.give(s.burst(KindWrite, 1, 3, 3000)), "ack 3 syn 0x1f msn 2; ")

	// A gap: one NAK, then no answer until the missing packet arrives.
	s.want(s.give(s.burst(KindSend, 5, 1, 8)), "ack 4 syn 0x60 msn 2; ")
	s.want(s.give(s.burst(KindSend, 6, 1, 8)), "")
	// The requester went back, and the packet was lost again.
	s.want(s.give(s.burst(KindSend, 5, 1, 8)), "")
	s.Now += 1_000_000
	s.want(s.give(s.burst(KindSend, 5, 1, 8)), "ack 4 syn 0x60 msn 2; ")
	s.want(s.give(s.burst(KindSend, 6, 1, 8)), "")
	s.want(s.give(s.burst(KindSend, 4, 1, 8)), "ack 4 syn 0x1f msn 3; ")
	s.want(s.give(s.burst(KindSend, 6, 1, 8)), "ack 5 syn 0x60 msn 3; ")

	// READs: empty, of several packets, repeated, and repeated from the middle.
	r := s.burst(KindReadReq, 5, 1, 0)
	s.want(s.give(r), "read 5+1 true true msn 4; ")
	r = s.burst(KindReadReq, 6, 1, 0)
	r.Length = 2500
	s.want(s.give(r), "read 6+3 true true msn 5; ")
	s.want(s.give(r), "read 6+3 true true msn 5; ")
	r.PSN, r.VA, r.Length = 8, r.VA+2048, 2500-2048
	s.want(s.give(r), "read 8+1 true true msn 5; ")
	// A different request with an old PSN is ignored.
	r.Length++
	s.want(s.give(r), "")
	r.Length--
	r.RKey++
	s.want(s.give(r), "")

	// Atomics are not executed twice.
	f := s.burst(KindFetchAdd, 9, 1, 0)
	f.VA, f.Length, f.Swap = simnet.Base+0x10000, 8, 5
	s.want(s.give(f), "atomic 9 orig 0 msn 6; ")
	s.want(s.give(f), "atomic 9 orig 0 msn 6; ")
	f.PSN = 10
	s.want(s.give(f), "atomic 10 orig 5 msn 7; ")
	f.PSN = 9
	s.want(s.give(f), "atomic 9 orig 0 msn 7; ")

	// A duplicate of an old SEND acknowledges everything before the next READ or atomic, whose response the requester may not
	// have received.
	s.want(s.give(s.burst(KindSend, 0, 1, 8)), "ack 4 syn 0x1f msn 7; ")
	if got := s.b.QP.Counters().Duplicates; got != 8 {
		t.Errorf("%d duplicates, want 8", got)
	}
	s.wantRcvd(Success, Success)
}

// TestResponseOrder checks that acknowledgements and atomic responses wait for earlier READ responses.
func TestResponseOrder(t *testing.T) {
	s := newScript(t, ib.RC)
	r := s.burst(KindReadReq, 0, 1, 0)
	r.Length = 2000
	w := s.burst(KindWrite, 2, 1, 8)
	f := s.burst(KindFetchAdd, 3, 1, 0)
	f.VA, f.Length = simnet.Base+0x10000, 8
	w2 := s.burst(KindWrite, 4, 1, 8)
	bad := s.burst(KindWrite, 5, 1, 8)
	bad.RKey = 1
	for _, b := range []*Burst{&r, &w, &f, &w2} {
		s.b.QP.Receive(s.Now, b, s.b.Env())
	}
	if len(s.answers) != 0 {
		t.Errorf("%d answers before the READ response", len(s.answers))
	}
	s.want(s.give(bad), "read 0+2 true true msn 4; atomic 3 orig 0 msn 4; ack 4 syn 0x1f msn 4; ack 5 syn 0x62 msn 4; ")
	s.wantStates(ib.StateRTS, ib.StateError)
}

// TestResourceReuse checks that a new READ takes the resource of a late duplicate.
func TestResourceReuse(t *testing.T) {
	s := newScript(t, ib.RC, bAttr(func(a *Attr) { a.MaxDestRDAtomic = 2 }))
	read := func(psn uint32) Burst {
		b := s.burst(KindReadReq, psn, 1, 0)
		b.Length = 8
		return b
	}
	s.want(s.give(read(0)), "read 0+1 true true msn 1; ")
	s.want(s.give(read(1)), "read 1+1 true true msn 2; ")
	old := read(0)
	s.b.QP.Receive(s.Now, &old, s.b.Env())
	s.want(s.give(read(2)), "read 2+1 true true msn 3; ")
	// Three at once are more than negotiated.
	for _, psn := range []uint32{3, 4} {
		b := read(psn)
		s.b.QP.Receive(s.Now, &b, s.b.Env())
	}
	s.want(s.give(read(5)), "read 3+1 true true msn 5; read 4+1 true true msn 5; ack 5 syn 0x61 msn 5; ")
	s.wantStates(ib.StateRTS, ib.StateError)
}

// TestInvalidSequences checks bursts that no requester sends.
func TestInvalidSequences(t *testing.T) {
	part := func(b Burst, first, last bool) Burst { b.First, b.Last = first, last; return b }
	cases := map[string]func(*script) []Burst{
		"middle without first": func(s *script) []Burst { return []Burst{part(s.burst(KindSend, 0, 1, 1024), false, false)} },
		"last without first":   func(s *script) []Burst { return []Burst{part(s.burst(KindWrite, 0, 1, 8), false, true)} },
		"first within a message": func(s *script) []Burst {
			return []Burst{part(s.burst(KindSend, 0, 1, 1024), true, false), s.burst(KindSend, 1, 1, 8)}
		},
		"write within a send": func(s *script) []Burst {
			return []Burst{part(s.burst(KindSend, 0, 1, 1024), true, false), part(s.burst(KindWrite, 1, 1, 8), false, true)}
		},
		"read within a send": func(s *script) []Burst {
			return []Burst{part(s.burst(KindSend, 0, 1, 1024), true, false), s.burst(KindReadReq, 1, 1, 0)}
		},
		"first packet too short": func(s *script) []Burst { return []Burst{part(s.burst(KindSend, 0, 1, 1000), true, false)} },
		"last packet empty": func(s *script) []Burst {
			return []Burst{part(s.burst(KindSend, 0, 1, 1024), true, false), part(s.burst(KindSend, 1, 1, 0), false, true)}
		},
		"packet too long":          func(s *script) []Burst { return []Burst{s.burst(KindSend, 0, 1, 1025)} },
		"fewer bytes than packets": func(s *script) []Burst { return []Burst{s.burst(KindSend, 0, 3, 2048)} },
		"write longer than announced": func(s *script) []Burst {
			b := s.burst(KindWrite, 0, 2, 2048)
			b.Length = 2047
			return []Burst{b}
		},
		"write shorter than announced": func(s *script) []Burst {
			b := s.burst(KindWrite, 0, 2, 2048)
			b.Length = 2049
			return []Burst{b}
		},
		"read with data":     func(s *script) []Burst { return []Burst{s.burst(KindReadReq, 0, 1, 8)} },
		"read too long":      func(s *script) []Burst { b := s.burst(KindReadReq, 0, 1, 0); b.Length = 1<<31 + 1; return []Burst{b} },
		"read of 2 packets":  func(s *script) []Burst { return []Burst{s.burst(KindReadReq, 0, 2, 0)} },
		"kind unknown":       func(s *script) []Burst { return []Burst{s.burst(0, 0, 1, 0)} },
		"write over the end": func(s *script) []Burst { b := s.burst(KindWrite, 0, 1, 8); b.Length = 1<<31 + 1; return []Burst{b} },
	}
	for name, bursts := range cases {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, ib.RC)
			s.recv(1, 8192, 0x1000)
			got := ""
			l := bursts(s)
			for i, b := range l {
				b.AckReq = i == len(l)-1
				got = s.give(b)
			}
			s.want(got, fmt.Sprintf("ack %d syn 0x61 msn 0; ", len(l)-1))
			s.wantStates(ib.StateRTS, ib.StateError)
		})
	}
}

// TestStrangers checks that packets from other hosts or queue pairs change nothing.
func TestStrangers(t *testing.T) {
	cases := map[string]func(*Burst){
		"other queue pair":   func(b *Burst) { b.Src++ },
		"other source":       func(b *Burst) { b.SGID[15]++ },
		"other destination":  func(b *Burst) { b.DGID[15]++ },
		"other partition":    func(b *Burst) { b.PKey = 0xfffe },
		"other type":         func(b *Burst) { b.Type = ib.UC },
		"no packets":         func(b *Burst) { b.Packets = 0 },
		"too many packets":   func(b *Burst) { b.Packets = 1<<23 + 1 },
		"PSN of 25 bits":     func(b *Burst) { b.PSN = 1 << 24 },
		"response unasked":   func(b *Burst) { b.Kind = KindReadResp },
		"ACK unasked":        func(b *Burst) { b.Kind, b.Data = KindAck, nil },
		"response unknown":   func(b *Burst) { b.Kind = KindAck + 1 },
		"atomic ACK unasked": func(b *Burst) { b.Kind, b.Data = KindAtomicResp, nil },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, ib.RC)
			s.recv(1, 64, 0)
			b := s.burst(KindSend, 0, 1, 8)
			change(&b)
			s.want(s.give(b), "")
			s.wantRcvd()
			s.wantStates(ib.StateRTS, ib.StateRTS)
			s.want(s.give(s.burst(KindSend, 0, 1, 8)), "ack 0 syn 0x1f msn 1; ")
		})
	}
	// A limited member talks to a full one, but not to another limited one.
	for _, c := range []struct {
		own, theirs uint16
		ok          bool
	}{{0xffff, 0x7fff, true}, {0x7fff, 0xffff, true}, {0x7fff, 0x7fff, false}} {
		s := newScript(t, ib.RC, bAttr(func(a *Attr) { a.PKey = c.own }))
		s.recv(1, 64, 0)
		b := s.burst(KindSend, 0, 1, 8)
		b.PKey = c.theirs
		if got := s.give(b) != ""; got != c.ok {
			t.Errorf("P_Key %#x to %#x: accepted %v, want %v", c.theirs, c.own, got, c.ok)
		}
	}
}

// TestEstablished checks the event for the first packet in RTR.
func TestEstablished(t *testing.T) {
	s := newScript(t, ib.RC)
	n := simnet.New(simnet.Config{Local: true})
	e := n.Add(s.b.Node, Config{Type: ib.RC, Num: 5})
	n.ToRTR(e, s.a, simnet.Defaults(), 0)
	for i := range 2 {
		b := s.burst(KindWrite, uint32(i), 1, 8)
		b.DGID = e.GID
		e.QP.Receive(0, &b, e.Env())
	}
	if fmt.Sprint(e.Events) != fmt.Sprint([]Event{EventCommEst}) {
		t.Errorf("events %v, want CommEst once", e.Events)
	}
	if e.QP.Snapshot().Attr.RQPSN != 2 {
		t.Errorf("expects PSN %d, want 2", e.QP.Snapshot().Attr.RQPSN)
	}
}

// TestOverlap checks a burst that repeats packets of the message in progress and continues with new ones.
func TestOverlap(t *testing.T) {
	s := newScript(t, ib.RC)
	s.recv(1, 8192, 0x4000)
	for _, k := range []Kind{KindSend, KindWrite} {
		base := s.b.QP.Snapshot().Attr.RQPSN
		b := s.burst(k, base, 2, 2048)
		b.Last, b.Length = false, 4096
		s.give(b)
		b = s.burst(k, base+1, 3, 3072)
		b.Data.Reset()
		b.Data.Add(s.a.Node.Mem[1024:4096])
		b.First = false
		s.give(b)
	}
	s.wantRcvd(Success)
	if !bytes.Equal(s.b.Node.Mem[0x4000:0x5000], s.a.Node.Mem[:4096]) || !bytes.Equal(s.b.Node.Mem[:4096], s.a.Node.Mem[:4096]) {
		t.Errorf("wrong data")
	}
	if sn := s.b.QP.Snapshot(); sn.Attr.RQPSN != 8 || sn.MSN != 2 {
		t.Errorf("PSN %d, MSN %d, want 8 and 2", sn.Attr.RQPSN, sn.MSN)
	}
}

// TestSegmentation checks how messages are split, across the wrap of the PSN.
func TestSegmentation(t *testing.T) {
	for _, mtu := range []uint32{256, 512, 1024, 2048, 4096} {
		for _, n := range []uint32{0, 1, mtu - 1, mtu, mtu + 1, 5 * mtu, 5*mtu + 3} {
			for _, op := range []WROp{WRSend, WRWrite, WRRead} {
				t.Run(fmt.Sprintf("%d/%d/%d", mtu, n, op), func(t *testing.T) {
					set := func(a *Attr) { a.MTU, a.SQPSN = mtu, 1<<24-3 }
					w := newWorld(t, ib.RC, aAttr(set), bAttr(set), config(func(c *Config) { c.MaxBurst = 2 * mtu }))
					w.recv(1, 6*mtu, 0)
					kind := KindReadResp
					if op != WRRead {
						kind = KindSend
					}
					var bursts []Burst
					w.Tap = func(from *simnet.Endpoint, b *Burst) bool {
						if b.Kind == kind || b.Kind == KindWrite {
							bursts = append(bursts, *b)
						}
						return false
					}
					w.post(w.req(op, n, 0))
					w.run()
					w.wantSent(Success)
					next, packets := uint32(1<<24-3), uint32(0)
					for i, b := range bursts {
						if b.First != (i == 0) || b.Last != (i == len(bursts)-1) || b.PSN != next {
							t.Errorf("burst %d: first %v, last %v, PSN %#x, want PSN %#x", i, b.First, b.Last, b.PSN, next)
						}
						next = (next + b.Packets) & 0xffffff
						packets += b.Packets
					}
					want := max(1, (n+mtu-1)/mtu)
					if packets != want || w.a.QP.Snapshot().Attr.SQPSN != next {
						t.Errorf("%d packets, next PSN %#x, want %d packets, PSN %#x", packets, w.a.QP.Snapshot().Attr.SQPSN, want, next)
					}
				})
			}
		}
	}
}

// TestReplay checks that a READ that is repeated before it could be answered is answered once, and more and more slowly for a
// peer that is not a vrdma host. So a replay attack cannot flood its victim.
func TestReplay(t *testing.T) {
	s := newScript(t, ib.RC)
	s.remote(Path{Remote: true})
	r := s.burst(KindReadReq, 0, 1, 0)
	r.Length = 2500
	s.want(s.give(r), "read 0+3 true true msn 1; ")
	for range 100 {
		s.Now += 1_000_000
		s.b.QP.Receive(s.Now, &r, s.b.Env())
	}
	if got := s.b.QP.Counters().Duplicates; got != 100 {
		t.Errorf("%d duplicates, want 100", got)
	}
	s.Now += 1_000_000_000
	s.want(s.give(r), "read 0+3 true true msn 1; ")
	if rate := s.b.QP.Snapshot().Rate; rate == 0 || rate > 100_000 {
		t.Errorf("%d bytes in a millisecond after 100 repetitions, want few", rate)
	}
}
