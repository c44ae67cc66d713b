package engine

import (
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/wire"
)

// writeBytes is how many bytes a WRITE of three packets is on the wire.
func (q *testQP) writeBytes(peer *testQP) uint64 {
	q.c.t.Helper()
	for range 100 { // a question, or an answer, may still be about to leave
		if _, packets := q.pass(10 * time.Microsecond); packets == 0 {
			break
		}
	}
	before := q.c.e.LinkCounters()
	q.post(wr{op: opWrite, flags: signal, n: 3 * 4096, remote: peer.c.base, rkey: peer.mr.RKey})
	if _, packets := q.pass(10 * time.Microsecond); packets != 3 {
		q.c.t.Fatalf("a WRITE of three packets left in %d", packets)
	}
	sent := q.c.e.LinkCounters().SentBytes - before.SentBytes
	peer.pass(10 * time.Microsecond)
	q.pass(10 * time.Microsecond)
	if w, ok := q.try(); !ok || w.status != 0 {
		q.c.t.Fatalf("the WRITE: completed %v, %+v", ok, w)
	}
	return sent
}

// TestFillerNeedsFreshNews: a host that announced support for filler gets filler. After a silence it may be another
// host: from a new connection on it gets none until it has answered again.
func TestFillerNeedsFreshNews(t *testing.T) {
	as, bs := byHand(t, 1, Options{Recognise: true})
	a, b := as[0], bs[0]
	e := a.c.e
	meet := func(want uint32) {
		t.Helper()
		e.first.net.traffic.wake(e.first.clock.now)
		for range 100 {
			a.pass(10 * time.Microsecond)
			b.pass(10 * time.Microsecond)
			if e.first.net.hostPeers().Features(b.c.gid) == want {
				for _, bell := range e.first.bells.of {
					e.first.bells.activate(bell, e.first.clock.now)
				}
				return
			}
		}
		t.Fatalf("the peer's features are %#x, want %#x", e.first.net.hostPeers().Features(b.c.gid), want)
	}
	meet(features)
	const plain, filled = 3*(wire.BTHSize+4096+wire.ICRCSize) + wire.RETHSize, 3 * (wire.BTHSize + wire.RETHSize + wire.ImmDtSize + 4096 + wire.ICRCSize)
	if got := a.writeBytes(b); got != filled {
		t.Errorf("a WRITE to a host that understands filler: %d bytes, want %d", got, filled)
	}
	e.first.clock.now += 6e9
	e.first.net.traffic.wake(e.first.clock.now)
	if p := a.task().Connect(&a.c.gid, &b.c.gid); p.Own {
		t.Errorf("a new connection takes a host for ours that has not been heard of for 6 s: %+v", p)
	}
	a.pass(10 * time.Microsecond) // the question leaves
	for _, bell := range e.first.bells.of {
		e.first.bells.activate(bell, e.first.clock.now)
	}
	if got := a.writeBytes(b); got != plain {
		t.Errorf("a WRITE to a host that has not been heard of for 6 s: %d bytes, want %d", got, plain)
	}
	if got := a.writeBytes(b); got != filled {
		t.Errorf("a WRITE to a host that has answered again: %d bytes, want %d", got, filled)
	}
	// An older one takes its place.
	host := b.c.e.first.net.host.underlay.(*portUnderlay)
	host.peers = peers.New(peers.Config{Features: features &^ (wire.FeatureFiller | wire.FeatureLongFiller), Random: random64, Env: recognition{&b.c.e.first.net, ib.HostNetwork, host.Port}})
	e.first.clock.now += 6e9
	a.task().Connect(&a.c.gid, &b.c.gid)
	meet(features &^ (wire.FeatureFiller | wire.FeatureLongFiller))
	if got := a.writeBytes(b); got != plain {
		t.Errorf("a WRITE to a host that does not know filler: %d bytes, want %d", got, plain)
	}
}

// TestStreaming: after much traffic a loop polls longer before it sleeps, for a while.
func TestStreaming(t *testing.T) {
	as, bs := byHand(t, 1, Options{})
	a, b := as[0], bs[0]
	for _, c := range []struct {
		name   string
		bytes  uint32
		after  time.Duration
		stream bool
	}{
		{"a word", 64, 0, false},
		{"much", 3 * 4096, 0, true},
		{"much, a moment ago", 3 * 4096, time.Duration(quietAfter) - 10*time.Microsecond, true},
		{"much, a while ago", 3 * 4096, time.Duration(quietAfter) + 10*time.Microsecond, false},
	} {
		for _, q := range []*testQP{a, b} {
			q.c.e.first.net.traffic.much = 0
		}
		a.post(wr{op: opWrite, flags: signal, n: c.bytes, remote: b.c.base, rkey: b.mr.RKey})
		a.pass(time.Microsecond)
		b.pass(time.Microsecond)
		a.pass(time.Microsecond) // the acknowledgement
		for _, q := range []*testQP{a, b} {
			e := q.c.e
			want := ib.Time(defaultSpin)
			if c.stream {
				want = quietAfter
			}
			e.first.clock.now += ib.Time(c.after)
			if streams := e.first.net.traffic.mode(e.first.clock.now).streams(); streams != c.stream || e.first.proc.patience() != want {
				t.Errorf("%s: streaming %v, patient for %d ns; want %v and %d", c.name, streams, e.first.proc.patience(), c.stream, want)
			}
			e.first.net.traffic.wake(e.first.clock.now)
		}
	}
}

// TestForeignWindow: the window of a vrdma host is known; other hosts get the default.
func TestForeignWindow(t *testing.T) {
	for _, c := range []struct{ window, own, other uint32 }{
		{0, 0, 0}, {64 << 10, 64 << 10, 64 << 10}, {1 << 20, 1 << 20, foreignWindow},
	} {
		o := Options{Window: c.window}
		if got := o.window(true); got != c.own {
			t.Errorf("window %d: to a vrdma host %d, want %d", c.window, got, c.own)
		}
		if got := o.window(false); got != c.other {
			t.Errorf("window %d: to another host %d, want %d", c.window, got, c.other)
		}
	}
}
