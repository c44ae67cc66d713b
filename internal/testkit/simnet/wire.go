package simnet

import (
	"vrdma.dev/vrdma/internal/ib"
)

// Wire is the last stretch of the way to a node: a queue in front of a line of limited
// rate. Everything for the queue pairs of the node goes through it, so several senders
// share it. The zero Wire is no limit at all.
type Wire struct {
	Rate  int64 // bytes a second
	Queue int64 // bytes that may wait; more are dropped
	Mark  int64 // packets that meet more bytes than this are marked; 0: none are
}

// overhead is what a packet has beside its payload: Ethernet, IPv4, UDP, BTH, ICRC.
const overhead = 14 + 20 + 8 + 12 + 4 + 24

// line is the state of a node's Wire.
type line struct {
	free ib.Time // when it has sent everything that waits

	Packets, Marked, Overflowed int
	Bytes                       int64 // that passed, overhead included
	Longest                     int64 // queue that a packet met, in bytes
	Sum                         int64 // of the queues that packets met
}

// pass lets a delivery unit into the queue. It returns how long the unit takes; ok is
// false if there was no room.
func (w *Wire) pass(l *line, now ib.Time, size int64) (wait ib.Time, mark, ok bool) {
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
