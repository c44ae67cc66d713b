package cable

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"
)

// A Bottleneck is a slow section in front of one end: frames wait in a queue and leave at a limited rate. Packets of
// ECN-capable senders (ECT) are marked Congestion Experienced when the queue is long, as in a switch.
type Bottleneck struct {
	Rate  int // bytes a second
	Queue int // frames that may wait; more are lost
	Mark  int // frames waiting from which on packets are marked
}

// Load counts what happened at a bottleneck.
type Load struct {
	Bytes  map[string]int // of RoCEv2 packets that arrived, by the sender's address
	Frames int
	Marked int
	Lost   int
	Sum    int // of the frames that each one found waiting
}

// Queue returns the average length of the queue.
func (l Load) Queue() int { return l.Sum / max(l.Frames, 1) }

// bottleneck is the queue in front of an end.
type bottleneck struct {
	Bottleneck
	to   End
	wake chan struct{}

	mu      sync.Mutex // guards all below
	waiting [][]byte
	load    Load
}

// Limit puts a bottleneck in front of an end of the cable; it stays for the test's life.
func (c *Cable) Limit(t testing.TB, end End, l Bottleneck) {
	t.Helper()
	q := &bottleneck{Bottleneck: l, to: end, wake: make(chan struct{}, 1)}
	q.load.Bytes = map[string]int{}
	c.mu.Lock()
	c.bottlenecks[end] = q
	c.mu.Unlock()
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		q.drain(done)
	}()
	t.Cleanup(func() {
		close(done)
		<-stopped
	})
}

// Load returns the counts of the bottleneck in front of an end since the last call.
func (c *Cable) Load(end End) Load {
	c.mu.Lock()
	q := c.bottlenecks[end]
	c.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.load
	q.load = Load{Bytes: map[string]int{}}
	return l
}

// put queues a frame, or loses it.
func (q *bottleneck) put(frame []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.waiting)
	q.load.Frames++
	q.load.Sum += n
	if n >= q.Queue {
		q.load.Lost++
		return
	}
	frame = slices.Clone(frame)
	if n >= q.Mark && mark(frame) {
		q.load.Marked++
	}
	if isRoCE(frame) {
		q.load.Bytes[source(frame)] += len(frame)
	}
	q.waiting = append(q.waiting, frame)
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// take returns the next frame; nil if none waits.
func (q *bottleneck) take() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil
	}
	f := q.waiting[0]
	q.waiting = q.waiting[1:]
	return f
}

// drain sends the waiting frames at the bottleneck's rate. A frame that is due within a tick is sent at once, because the
// system's clock is no finer.
func (q *bottleneck) drain(done <-chan struct{}) {
	const tick = time.Millisecond
	free := time.Now() // when the bottleneck is
	for {
		f := q.take()
		if f == nil {
			select {
			case <-q.wake:
				continue
			case <-done:
				return
			}
		}
		if now := time.Now(); free.Before(now) {
			free = now
		}
		free = free.Add(time.Duration(len(f)) * time.Second / time.Duration(q.Rate))
		if wait := time.Until(free); wait > tick {
			select {
			case <-time.After(wait):
			case <-done:
				return
			}
		}
		q.to.Write(f)
	}
}

const ecnMask, notECT, ce = 3, 0, 3

// mark sets Congestion Experienced and reports whether the sender is ECN-capable.
func mark(frame []byte) bool {
	if !isRoCE(frame) {
		return false
	}
	ip := frame[etherHeader:]
	if ip[0]>>4 == 6 {
		class := ip[0]<<4 | ip[1]>>4
		if class&ecnMask == notECT {
			return false
		}
		ip[1] |= ce << 4
		return true
	}
	if ip[1]&ecnMask == notECT {
		return false
	}
	ip[1] |= ce
	n := int(ip[0]&15) * 4
	ip[10], ip[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < n; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	return true
}
