package engine

import (
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/roce"
)

// frames are the Ethernet frames of virtual machines and containers to other hosts. The workers of
// the switch put them into a bounded queue. The loop, which owns the overlay's sockets, takes them
// out once a pass, so that frames are batched, encrypted, captured and counted like packets.
//
//	switch worker ── SendFrame ──▶ queue ── loop: send ──▶ roce.Overlay.SendFrame ──▶ Flush
type frames struct {
	waiting atomic.Bool // the queue is not empty
	lost    atomic.Uint64

	mu    sync.Mutex
	queue frameQueue
	taken frameQueue // the loop's, while it sends them
}

// A frameQueue is frames in order, their bytes one behind the other.
type frameQueue struct {
	list []queuedFrame
	data []byte
}

type queuedFrame struct {
	vni    uint32
	to     *overlay.Host
	length int
}

// framesMost is how many bytes of frames wait for the loop. It also bounds what one pass sends.
const framesMost = 1 << 20

// SendFrame sends an Ethernet frame of a virtual network to another host that has members of it.
// It does not keep the frame and does not block. If the queue is full it drops and counts the frame,
// as a wire would. Any goroutine may call it.
func (e *Engine) SendFrame(vni uint32, to *overlay.Host, frame []byte) {
	f := &e.first.frames
	f.mu.Lock()
	if len(f.queue.data)+len(frame) > framesMost {
		f.mu.Unlock()
		f.lost.Add(1)
		return
	}
	f.queue.list = append(f.queue.list, queuedFrame{vni, to, len(frame)})
	f.queue.data = append(f.queue.data, frame...)
	first := !f.waiting.Swap(true)
	f.mu.Unlock()
	if first {
		e.first.cmds.wake()
	}
}

// send gives the waiting frames to the overlay; nil: there is none, and they are lost.
func (f *frames) send(o *roce.Overlay) {
	f.mu.Lock()
	f.queue, f.taken = f.taken, f.queue
	f.waiting.Store(false)
	f.mu.Unlock()
	data := f.taken.data
	for _, q := range f.taken.list {
		if o != nil {
			o.SendFrame(q.vni, q.to, data[:q.length])
		} else {
			f.lost.Add(1)
		}
		data = data[q.length:]
	}
	clear(f.taken.list)
	f.taken.list, f.taken.data = f.taken.list[:0], f.taken.data[:0]
}
