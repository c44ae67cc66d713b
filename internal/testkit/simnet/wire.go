package simnet

import (
	"vrdma.dev/vrdma/internal/ib"
)

// A Wire is the last link to a node: a queue in front of a line of limited rate. All queue pairs of the node share it. The zero Wire
// has no limit.
type Wire struct {
	Rate  int64 // bytes/s
	Queue int64 // bytes that may wait; more are dropped
	Mark  int64 // packets that find more bytes than this in the queue are marked; 0: none
}

// overhead is the size of a packet without payload: Ethernet, IPv4, UDP, BTH, ICRC.
const overhead = 14 + 20 + 8 + 12 + 4 + 24

// A wireQueue is the state of a node's Wire.
type wireQueue struct {
	free ib.Time // when all waiting packets are sent

	Packets, Marked, Overflowed int
	Bytes                       int64 // sent, with overhead
	Longest                     int64 // longest queue that a packet found, in bytes
	Sum                         int64 // sum of the queues that packets found
}

// pass adds a delivery unit to the queue. It returns how long the unit takes; ok is false if the queue is full.
func (w *Wire) pass(l *wireQueue, now ib.Time, size int64) (wait ib.Time, mark, ok bool) {
	if w.Rate == 0 {
		return 0, false, true
	}
	queue := max(int64(l.free-now), 0) * w.Rate / 1e9
	if w.Queue != 0 && queue+size > w.Queue {
		l.Overflowed++
		return 0, false, false
	}
	l.Packets++
	l.Bytes += size
	l.Sum += queue
	l.Longest = max(l.Longest, queue)
	if mark = w.Mark != 0 && queue > w.Mark; mark {
		l.Marked++
	}
	l.free = max(l.free, now) + ib.Time(size*1e9/w.Rate)
	return l.free - now, mark, true
}
