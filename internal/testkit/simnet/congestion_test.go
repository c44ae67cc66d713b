package simnet

import (
	"fmt"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// TestSharing: two senders, one of which starts later, send over a slow line that marks packets. They must share it within 2 : 1, keep
// it busy, keep its queue short, and lose nothing.
func TestSharing(t *testing.T) {
	for _, mtu := range []uint32{1024, 4096} {
		for _, delay := range []ib.Time{5_000, 50_000} {
			for _, rate := range []int64{125e6, 1250e6} {
				for _, op := range []transport.WROp{transport.WRWrite, transport.WRRead} {
					t.Run(fmt.Sprintf("%d/%dus/%dMb/op%d", mtu, delay/1000, rate/125000, op), func(t *testing.T) {
						share(t, mtu, delay, rate, op)
					})
				}
			}
		}
	}
}

func share(t *testing.T, mtu uint32, delay ib.Time, rate int64, op transport.WROp) {
	const mark = 32 << 10
	n := New(Config{Seed: 5, Delay: delay, Chunk: 1, Wire: Wire{Rate: rate, Queue: 1 << 20, Mark: mark}})
	attr := Defaults()
	attr.MTU = mtu
	sink := NewNode(64 << 10)
	path := transport.Path{Remote: true, Own: true}
	a := newStream(n, 17, sink, path, op, 64<<10, 32, attr)
	a.rate(t, n, 5_000_000)
	b := newStream(n, 19, sink, path, op, 64<<10, 32, attr)
	if op == transport.WRRead {
		// The data of READs flows in the other direction: to the node of the requesters.
		b.e.Node = a.e.Node
		b.aKey = a.aKey
	}
	scale := ib.Time(1250e6/rate+1) / 2
	b.rate(t, n, 15_000_000*scale) // time to converge
	line := &sink.Line
	if op == transport.WRRead {
		line = &a.e.Node.Line
	}
	*line = lineStart(line)
	from, before := n.Now, [2]int{a.done, b.done}
	b.rate(t, n, 30_000_000*scale)
	span := float64(n.Now-from) / 1e9
	x, y := float64(a.done-before[0])*float64(a.size), float64(b.done-before[1])*float64(b.size)
	used := float64(line.Bytes) / span / float64(rate)
	mean := line.Sum / int64(line.Packets)
	t.Logf("%.0f : %.0f Mb/s, %.2f used, queue %d bytes on average, %d at most, %d of %d marked", x*8/span/1e6, y*8/span/1e6, used,
		mean, line.Longest, line.Marked, line.Packets)
	if x > 2*y || y > 2*x {
		t.Errorf("shares of %.0f and %.0f Mb/s, want no more than 2 : 1", x*8/span/1e6, y*8/span/1e6)
	}
	if used < 0.7 {
		t.Errorf("%.2f of the line used, want 0.7", used)
	}
	if mean > 2*mark || line.Longest > 4*mark || line.Overflowed != 0 {
		t.Errorf("queue of %d bytes on average, %d at most, %d packets lost; packets are marked from %d on", mean, line.Longest, line.Overflowed, mark)
	}
	if line.Marked == 0 || a.e.QP.Counters().Retries+b.e.QP.Counters().Retries != 0 {
		t.Errorf("%d marks, %d and %d retries, want some and none", line.Marked, a.e.QP.Counters().Retries, b.e.QP.Counters().Retries)
	}
	c, d := a.e, a.peer
	if op != transport.WRRead && (c.RcvdCNP == 0 || d.SentCNP-c.RcvdCNP > 1 || d.SentCNP > d.RcvdMarked) {
		t.Errorf("%d CNPs sent for %d marked packets, %d received", d.SentCNP, d.RcvdMarked, c.RcvdCNP)
	}
}

// lineStart returns l with its statistics reset.
func lineStart(l *wireQueue) wireQueue { return wireQueue{free: l.free} }
