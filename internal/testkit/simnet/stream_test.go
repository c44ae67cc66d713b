package simnet

import (
	"fmt"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// A stream is a sender that always has data to send.
type stream struct {
	e, peer *Endpoint
	op      transport.WROp
	size    uint32
	aKey    uint32
	bKey    uint32
	posted  int
	done    int
	failed  transport.Status
}

// newStream connects a new queue pair to one at node to and keeps depth requests posted.
func newStream(n *Net, num uint32, to *Node, p transport.Path, op transport.WROp, size uint32, depth int, attr transport.Attr) *stream {
	s := &stream{op: op, size: size}
	s.e = n.Add(NewNode(int(size)), transport.Config{Type: ib.RC, Num: num})
	s.peer = n.Add(to, transport.Config{Type: ib.RC, Num: num + 1})
	s.aKey = s.e.Node.Register(Base, uint64(size), AllAccess)
	s.bKey = to.Register(Base, uint64(len(to.Mem)), AllAccess)
	n.Connect(s.e, s.peer, attr, attr)
	s.e.QP.SetPath(p)
	s.peer.QP.SetPath(p)
	s.e.SignalAll()
	s.e.OnSend = func(e *Endpoint, d SendDone) {
		s.done++
		if d.Status != transport.Success {
			s.failed = d.Status
			return
		}
		s.post()
	}
	s.peer.OnRecv = func(*Endpoint, RecvDone) { s.recv() }
	for range depth {
		s.post()
		s.recv()
	}
	return s
}

func (s *stream) post() {
	w := transport.SendWQE{WRID: uint64(s.posted), Op: s.op, RKey: s.bKey, RemoteAddr: Base, NumSGE: 1}
	w.SGE[0] = transport.SGE{Addr: Base, Length: s.size, LKey: s.aKey}
	s.e.Post(w)
	s.posted++
}

func (s *stream) recv() {
	if s.op == transport.WRSend {
		w := transport.RecvWQE{NumSGE: 1}
		w.SGE[0] = transport.SGE{Addr: Base, Length: s.size, LKey: s.bKey}
		s.peer.PostRecv(w)
	}
}

// rate runs the network for a time and returns the rate of s in bit/s.
func (s *stream) rate(t *testing.T, n *Net, d ib.Time) float64 {
	t.Helper()
	before, from := s.done, n.Now
	n.Run(n.Now+d, 50_000_000)
	if n.Now-from < d {
		t.Fatalf("too many steps")
	}
	if s.failed != transport.Success {
		t.Fatalf("a request failed with status %d: %+v", s.failed, s.e.QP.Snapshot())
	}
	return float64(s.done-before) * float64(s.size) * 8 / float64(d) * 1e9
}

// wires are the tested lines: a fast clean one, as between namespaces, and a slow one with a long queue, as through a forwarding
// program.
var wires = []struct {
	name  string
	mtu   uint32
	delay ib.Time
	wire  Wire
}{
	{"10G-4096", 4096, 20_000, Wire{Rate: 1.25e9, Queue: 4 << 20}},
	{"10G-1024", 1024, 20_000, Wire{Rate: 1.25e9, Queue: 4 << 20}},
	{"2G-1024", 1024, 30_000, Wire{Rate: 0.25e9, Queue: 4 << 20}},
	{"2G-4096-far", 4096, 200_000, Wire{Rate: 0.25e9, Queue: 4 << 20}},
	{"small-buffer", 1024, 20_000, Wire{Rate: 1.25e9, Queue: 600 << 10}},
}

// measure returns the rate of a stream of 64 KiB messages in Gb/s, with this loss in both directions.
func measure(t *testing.T, mtu uint32, delay ib.Time, w Wire, p transport.Path, op transport.WROp, drop float64) float64 {
	n := New(Config{Seed: 7, Delay: delay, Chunk: 1, Wire: w, Drop: drop})
	attr := Defaults()
	attr.MTU = mtu
	s := newStream(n, 17, NewNode(64<<10), p, op, 64<<10, 64, attr)
	s.rate(t, n, 2_000_000)
	return s.rate(t, n, 30_000_000) / 1e9
}

var streamOps = []transport.WROp{transport.WRWrite, transport.WRSend, transport.WRRead}

// TestLossyStreams compares the bandwidth between vrdma hosts at 1 % and 10 % loss with that without loss.
func TestLossyStreams(t *testing.T) {
	for _, c := range wires {
		for _, op := range streamOps {
			t.Run(fmt.Sprintf("%s/op%d", c.name, op), func(t *testing.T) {
				var got [3]float64
				for i, drop := range []float64{0, 0.01, 0.1} {
					got[i] = measure(t, c.mtu, c.delay, c.wire, transport.Path{Remote: true, Own: true}, op, drop)
				}
				t.Logf("%.2f Gb/s; at 1 %%: %.2f of it, at 10 %%: %.2f", got[0], got[1]/got[0], got[2]/got[0])
				if line := float64(c.wire.Rate) * 8 / 1e9; got[0] < 0.85*line {
					t.Errorf("%.2f Gb/s of %.2f without loss", got[0], line)
				}
				if got[1] < got[0]/2 {
					t.Errorf("%.2f Gb/s at 1 %%, want half of %.2f", got[1], got[0])
				}
				if got[2] < got[0]/8 {
					t.Errorf("%.2f Gb/s at 10 %%, want an eighth of %.2f", got[2], got[0])
				}
			})
		}
	}
}

// TestInFlight: data in flight never exceeds the window, so that a receive buffer of that size loses nothing: with messages much
// longer than the window, and with many.
func TestInFlight(t *testing.T) {
	const window = 256 << 10
	for _, mtu := range []uint32{256, 1024, 4096} {
		for _, op := range streamOps {
			for _, depth := range []uint8{1, 16} {
				t.Run(fmt.Sprintf("%d/op%d/depth%d", mtu, op, depth), func(t *testing.T) {
					room := int64(window) + window/int64(mtu)*overhead
					n := New(Config{Seed: 3, Delay: 10_000, Chunk: 1, Wire: Wire{Rate: 1e9, Queue: room}})
					attr := Defaults()
					attr.MTU, attr.MaxRDAtomic = mtu, depth
					s := newStream(n, 17, NewNode(8<<20), transport.Path{Remote: true, Window: window}, op, 8<<20, 3, attr)
					if got := s.rate(t, n, 100_000_000); got == 0 {
						t.Errorf("nothing was sent")
					}
					for _, e := range []*Endpoint{s.e, s.peer} {
						if l := e.Node.Line; l.Overflowed != 0 || l.Longest > room {
							t.Errorf("%d packets lost, queue of %d bytes, want none and at most %d", l.Overflowed, l.Longest, room)
						}
						if c := e.QP.Counters(); c.Retries != 0 || c.Probes != 0 || c.Duplicates != 0 {
							t.Errorf("%d retries, %d probes, %d duplicates without loss", c.Retries, c.Probes, c.Duplicates)
						}
					}
				})
			}
		}
	}
}
