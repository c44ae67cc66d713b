package metrics

import (
	"strconv"
	"time"
)

// A Loop is a loop of the daemon.
type Loop struct {
	Number   int
	Sessions int
	Busy     time.Duration // time that it has worked for programs
	Across   uint64        // packets that it has received for queue pairs of other loops
	Lost     uint64        // packets from other loops that did not fit into its queue
}

// loops writes how busy the loops are, and their sessions.
func (p *page) loops(list []Loop, moves uint64) {
	p.family("vrdma_loop_busy_seconds_total", "counter", "Time that a loop has worked for programs. A loop whose rate is near 1 is a bottleneck: see vrdma daemon --loops.")
	for _, l := range list {
		p.sample(l.Busy.Seconds(), "loop", strconv.Itoa(l.Number))
	}
	p.family("vrdma_loop_sessions", "gauge", "Open devices that a loop serves.")
	for _, l := range list {
		p.sample(float64(l.Sessions), "loop", strconv.Itoa(l.Number))
	}
	p.family("vrdma_loop_across_packets_total", "counter", "Packets that have arrived at a loop for queue pairs of other loops. Those from other hosts are handed over: senders mix packets for several loops, or more programs than steering buckets reach other hosts. Those of this host are dropped: a program waits to be moved, or sends to a queue pair that is not connected to it.")
	for _, l := range list {
		p.sample(float64(l.Across), "loop", strconv.Itoa(l.Number))
	}
	p.family("vrdma_loop_across_lost_packets_total", "counter", "Packets that other loops have handed over to a loop and that did not fit into its queue.")
	for _, l := range list {
		p.sample(float64(l.Lost), "loop", strconv.Itoa(l.Number))
	}
	p.family("vrdma_loop_moves_total", "counter", "Open devices that have moved to another loop.")
	p.sample(float64(moves))
}
