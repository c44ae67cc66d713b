package cm

import (
	"fmt"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

func TestLife(t *testing.T) {
	w, a, b := newWorld(t)
	a.connect(b)
	w.run(second)
	ca, cb := a.conn, b.conn
	if ca.State != Established || cb.State != Established {
		t.Fatalf("states %v, %v, want both established\n%v", ca.State, cb.State, w.trace)
	}
	if w.sent != 3 {
		t.Errorf("%d messages, want REQ, REP, RTU: %v", w.sent, w.trace)
	}
	// The PSN in a message is the first one that its receiver sends.
	if ca.SQPSN != 0x222222 || ca.RQPSN != 0x111111 || cb.SQPSN != 0x111111 || cb.RQPSN != 0x222222 {
		t.Errorf("PSNs: a sends from %#x and expects %#x, b %#x and %#x", ca.SQPSN, ca.RQPSN, cb.SQPSN, cb.RQPSN)
	}
	if ca.RemoteQPN != 0x22 || cb.RemoteQPN != 0x11 {
		t.Errorf("queue pairs: a -> %#x, b -> %#x", ca.RemoteQPN, cb.RemoteQPN)
	}
	// The peer's responder resources are the limit of outstanding requests.
	if ca.InitiatorDepth != 3 || ca.ResponderResources != 2 || cb.InitiatorDepth != 2 || cb.ResponderResources != 3 {
		t.Errorf("a: depth %d, resources %d; b: depth %d, resources %d", ca.InitiatorDepth, ca.ResponderResources, cb.InitiatorDepth, cb.ResponderResources)
	}
	if ca.RNRRetryCount != 6 || cb.RNRRetryCount != 7 || cb.RetryCount != 7 {
		t.Errorf("retries: a rnr %d, b rnr %d retry %d", ca.RNRRetryCount, cb.RNRRetryCount, cb.RetryCount)
	}
	if a.private != "reply" || b.private != "hello" {
		t.Errorf("private data: a got %q, b got %q", a.private, b.private)
	}
	a.m.Disconnect(w.now, ca)
	w.run(20 * second)
	a.expect("replied", "disconnected", "exited")
	b.expect("request", "connected", "disconnected", "exited")
	w.empty()
}

// TestLossy loses messages at random, and doubles others.
func TestLossy(t *testing.T) {
	for seed := range uint32(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w, a, b := newWorld(t)
			state := seed
			w.fault = func(int, wire.MAD) []ib.Time {
				state = state*1664525 + 1013904223
				switch state >> 24 % 4 {
				case 0:
					return nil
				case 1:
					return []ib.Time{latency, 40 * ms}
				}
				return []ib.Time{latency}
			}
			a.connect(b)
			w.run(300 * second)
			if a.conn.State != Established || b.conn.State != Established {
				t.Fatalf("%v, %v\n%v", a.conn.State, b.conn.State, w.trace)
			}
			a.m.Disconnect(w.now, a.conn)
			b.m.Disconnect(w.now, b.conn)
			w.empty()
		})
	}
}

func TestPatience(t *testing.T) {
	w, a, b := newWorld(t)
	b.think = 60 * second // longer than all repetitions would last without MRA
	a.think = 20 * second
	a.connect(b)
	w.run(400 * second)
	a.expect("replied")
	b.expect("request", "connected")
}

func TestUnreachable(t *testing.T) {
	w, a, b := newWorld(t)
	b.deaf = true
	a.connect(b)
	w.run(1000 * second)
	a.expect("unreachable")
	w.empty()
}

// TestVanishing checks that a peer that vanishes in any state leaves nothing behind.
func TestVanishing(t *testing.T) {
	for _, at := range []ib.Time{500e3, 4 * ms, 7 * ms, 9 * ms, 13 * ms, 30 * ms} {
		for _, who := range []string{"a", "b"} {
			t.Run(fmt.Sprintf("%s at %d us", who, at/1000), func(t *testing.T) {
				w, a, b := newWorld(t)
				a.connect(b)
				w.run(at)
				gone, other := a, b
				if who == "b" {
					gone, other = b, a
				}
				delete(w.nodes, gone.gid)
				w.run(2000 * second)
				if other.conn != nil && other.conn.State == Established {
					other.m.Disconnect(w.now, other.conn)
				}
				w.run(4000 * second)
				if other.conn != nil && other.conn.State == ReqRcvd {
					t.Errorf("nobody accepts, and nobody gives up")
				}
				w.empty()
			})
		}
	}
}

func TestReject(t *testing.T) {
	w, a, b := newWorld(t)
	b.refuse = RejectInvalidService
	a.connect(b)
	w.run(second)
	a.expect("rejected 8")
	w.empty()

	w, a, b = newWorld(t)
	b.passive = true
	a.connect(b)
	w.run(ms * 2)
	if err := b.m.Reject(w.now, b.conn, RejectConsumer, []byte("never")); err != nil {
		t.Fatal(err)
	}
	w.run(second)
	a.expect("rejected 28")
	if a.private != "never" {
		t.Errorf("private data %q, want what b said", a.private)
	}
	w.empty()

	// By the active side, after REP.
	w, a, b = newWorld(t)
	a.passive = true
	a.connect(b)
	w.run(second)
	if err := a.m.Reject(w.now, a.conn, RejectConsumer, nil); err != nil {
		t.Fatal(err)
	}
	w.run(2 * second)
	b.expect("request", "rejected 28")
	w.empty()
}

func TestIgnored(t *testing.T) {
	w, a, b := newWorld(t)
	b.refuse = Ignore
	a.connect(b)
	w.run(second)
	a.expect()
	b.refuse = 0
	w.run(20 * second)
	a.expect("replied")
}

func TestBothDisconnect(t *testing.T) {
	w, a, b := newWorld(t)
	a.connect(b)
	w.run(second)
	a.m.Disconnect(w.now, a.conn)
	b.m.Disconnect(w.now, b.conn)
	w.run(20 * second)
	a.expect("replied", "disconnected", "exited")
	b.expect("request", "connected", "disconnected", "exited")
	w.empty()
}

// TestDestroy ends a connection at every moment, from either side, and checks that no side hangs.
func TestDestroy(t *testing.T) {
	for at := ib.Time(0); at < 30*ms; at += 500e3 {
		for _, who := range []string{"a", "b", "both"} {
			t.Run(fmt.Sprintf("%s at %d us", who, at/1000), func(t *testing.T) {
				w, a, b := newWorld(t)
				a.connect(b)
				w.run(10 * ms)
				w.run(at + 1)
				for _, n := range []*node{a, b} {
					if (n.name == who || who == "both") && n.conn != nil {
						n.m.Destroy(w.now, n.conn)
					}
				}
				w.empty()
			})
		}
	}
}

// A peer that restarts uses its queue pair again: the old connection is stale.
func TestStale(t *testing.T) {
	w, a, b := newWorld(t)
	a.connect(b)
	w.run(second)
	again := w.add("a", 1) // the same address, the same device, no memory
	again.m.next += 1000
	again.connect(b)
	w.run(2 * second)
	again.expect("rejected 10")
	b.expect("request", "connected", "disconnected")
	w.run(20 * second)
	again.log = nil
	again.connect(b)
	w.run(21 * second)
	again.expect("replied")
}

func TestStrangers(t *testing.T) {
	w, a, b := newWorld(t)
	a.connect(b)
	w.run(second)
	ca := a.conn
	c := w.add("c", 3)
	mad := func(m wire.CMMessage) wire.MAD {
		d := make(wire.MAD, wire.MADSize)
		d.InitCM(m, 1)
		drep := wire.DREP(d.Data()) // they all begin with the two numbers
		drep.SetLocalCommID(ca.RemoteID)
		drep.SetRemoteCommID(ca.LocalID)
		wire.DREQ(d.Data()).SetRemoteQPN(0x11)
		return d
	}
	for _, m := range []wire.CMMessage{wire.CMDREQ, wire.CMDREP, wire.CMREJ, wire.CMREP, wire.CMRTU, wire.CMMRA, wire.CMLAP} {
		c.Send(c.gid, a.gid, mad(m))
	}
	w.run(2 * second)
	if ca.State != Established {
		t.Errorf("a message from elsewhere made the connection %v", ca.State)
	}
	// From the right address, but for another queue pair.
	d := mad(wire.CMDREQ)
	wire.DREQ(d.Data()).SetRemoteQPN(0x99)
	b.Send(b.gid, a.gid, d)
	w.run(3 * second)
	if ca.State != Established {
		t.Errorf("a DREQ for another queue pair made the connection %v", ca.State)
	}
}

func TestQuestion(t *testing.T) {
	for name, copies := range map[string][]ib.Time{"sent": {latency}, "lost": nil, "doubled": {latency, 20 * ms}} {
		for n := range 2 {
			t.Run(fmt.Sprintf("%s %d", name, n), func(t *testing.T) {
				w, a, b := newWorld(t)
				w.fault = func(i int, _ wire.MAD) []ib.Time {
					if i == n {
						return copies
					}
					return []ib.Time{latency}
				}
				if _, err := a.m.Ask(w.now, a, service, Path{SGID: a.gid, DGID: b.gid}, []byte("hello")); err != nil {
					t.Fatal(err)
				}
				w.run(60 * second)
				a.expect("answered")
				b.expect("question")
				if a.private != "reply" || b.private != "hello" {
					t.Errorf("private data %q and %q", a.private, b.private)
				}
				w.empty()
			})
		}
	}
	w, a, b := newWorld(t)
	b.refuse = SidrUnsupported
	a.m.Ask(w.now, a, service, Path{SGID: a.gid, DGID: b.gid}, nil)
	w.run(second)
	a.expect("answered 1")
	w.empty()
}

func TestAlternatePathRefused(t *testing.T) {
	w, a, b := newWorld(t)
	a.connect(b)
	w.run(second)
	var aprs []wire.APR
	w.fault = func(_ int, m wire.MAD) []ib.Time {
		if wire.CMMessage(m.Attribute()) == wire.CMAPR {
			if m.TID() != 7 {
				t.Errorf("APR of transaction %d, want that of the LAP", m.TID())
			}
			aprs = append(aprs, wire.APR(slices.Clone(m.Data())))
		}
		return []ib.Time{latency}
	}
	for _, c := range []struct {
		name   string
		id     uint32 // b's
		status uint8
	}{{"ours", b.conn.LocalID, 2}, {"unknown", b.conn.LocalID + 1, 1}} {
		m := make(wire.MAD, wire.MADSize)
		m.InitCM(wire.CMLAP, 7)
		lap := wire.LAP(m.Data())
		lap.SetLocalCommID(a.conn.LocalID)
		lap.SetRemoteCommID(c.id)
		aprs = nil
		a.Send(a.gid, b.gid, m)
		w.run(w.now + second)
		if len(aprs) != 1 || aprs[0].Status() != c.status || aprs[0].LocalCommID() != c.id || aprs[0].RemoteCommID() != a.conn.LocalID {
			t.Errorf("%s: APRs %x, want one with status %d", c.name, aprs, c.status)
		}
	}
	if a.conn.State != Established || b.conn.State != Established {
		t.Errorf("then %v and %v, want both established", a.conn.State, b.conn.State)
	}
}

func TestPrivateTooLong(t *testing.T) {
	w, a, b := newWorld(t)
	long := make([]byte, 93)
	if _, err := a.m.Connect(0, a, service, Path{SGID: a.gid, DGID: b.gid}, &Params{Private: long}, false); err != ErrPrivate {
		t.Errorf("REQ with 93 bytes: %v, want ErrPrivate", err)
	}
	b.passive = true
	a.connect(b)
	w.run(2 * ms)
	if err := b.m.Accept(w.now, b.conn, &Params{Private: make([]byte, 197)}); err != ErrPrivate {
		t.Errorf("REP with 197 bytes: %v, want ErrPrivate", err)
	}
	if err := b.m.Reject(w.now, b.conn, RejectConsumer, make([]byte, 149)); err != ErrPrivate {
		t.Errorf("REJ with 149 bytes: %v, want ErrPrivate", err)
	}
	if err := b.m.Accept(w.now, a.conn, &Params{}); err != ErrState {
		t.Errorf("accepting one's own request: %v, want ErrState", err)
	}
}

// FuzzReceive checks that no input causes a panic or state that stays forever.
func FuzzReceive(f *testing.F) {
	for m := wire.CMREQ; m <= wire.CMAPR; m++ {
		mad := make(wire.MAD, wire.MADSize)
		mad.InitCM(m, 1)
		f.Add([]byte(mad), uint32(0))
	}
	f.Fuzz(func(t *testing.T, b []byte, state uint32) {
		w, a, n := newWorld(t)
		a.connect(n)
		w.run(ib.Time(state%40) * ms)
		mad := make(wire.MAD, wire.MADSize)
		copy(mad, b)
		if len(b) > 32 && a.conn != nil {
			// Half of the inputs name an existing connection.
			if b[0]&1 == 0 {
				wire.DREP(mad.Data()).SetRemoteCommID(a.conn.LocalID)
			}
		}
		n.Send(n.gid, a.gid, mad)
		a.Send(a.gid, n.gid, mad)
		w.run(w.now + 10*second)
		for _, x := range []*node{a, n} {
			x.m.Each(func(c *Conn) { x.m.Destroy(w.now, c) })
		}
		w.empty()
	})
}

// TestExpireAtOnce checks that one call handles a limited number of deadlines, and that later calls handle the rest.
func TestExpireAtOnce(t *testing.T) {
	w, a, b := newWorld(t)
	b.deaf = true
	const n = 20
	for range n {
		a.connect(b)
	}
	w.now = a.m.Deadline() + second
	calls := 0
	for ; a.m.Deadline() <= w.now; calls++ {
		before := w.sent
		a.m.Expire(w.now)
		if again := w.sent - before; again > expireAtOnce {
			t.Fatalf("one call repeated %d requests, want %d at most", again, expireAtOnce)
		}
	}
	if w.sent != 2*n || calls != (n+expireAtOnce-1)/expireAtOnce {
		t.Errorf("%d messages in %d calls, want %d requests twice", w.sent, calls, n)
	}
}
