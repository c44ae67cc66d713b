package vswitch

import (
	"sync"

	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// An outlet is a receive ring of a guest: a destination of frames. Frames for which the guest has no buffers wait.
type outlet struct {
	ring *vhostuser.Ring

	mu    sync.Mutex // guards the fields below
	chain vhostuser.Chain
	queue [][]byte // waiting headers and frames, oldest first
	bytes int      // size of queue
	spare [][]byte // free buffers for further frames
}

const (
	// mostWaiting and mostBytes limit the queue of one ring, in frames and bytes, as on a network card.
	mostWaiting = 512
	mostBytes   = 2 << 20
	mostSpare   = 8
)

// deliver delivers a frame to the guest, or queues it. It returns false if it drops the frame.
func (o *outlet) deliver(f *frame, features uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) > 0 {
		return o.hold(f)
	}
	if !o.ring.Begin() {
		return false
	}
	defer o.ring.End()
	for {
		var virtio [headerSize]byte
		f.virtio.put(virtio[:])
		short, err := o.write(features, virtio[:], f.head, f.rest)
		switch {
		case err != nil:
			return false
		case short == 0:
			o.ring.Publish()
			return true
		case !o.ring.ListenFor(short):
			return o.hold(f)
		}
	}
}

// write writes a frame into the ring. If there are not enough chains, it returns the minimum number needed; 0 means success. The
// caller holds the ring.
func (o *outlet) write(features uint64, virtio, head []byte, rest [][]byte) (short int, err error) {
	o.ring.Mark()
	left := len(virtio) + len(head) + vhostuser.Size(rest)
	var count []byte // the field with the number of buffers, in the first one
	var countAt uint64
	from, part := virtio, -2
	for n := 1; ; n++ {
		ok, err := o.ring.Next(&o.chain)
		if err != nil {
			return 0, err
		}
		if !ok {
			o.ring.Rewind()
			return n, nil
		}
		if n == 1 {
			if len(o.chain.In) == 0 || len(o.chain.In[0]) < headerSize {
				o.ring.Rewind()
				return 0, vhostuser.ErrBroken
			}
			count, countAt = o.chain.In[0][buffersAt:headerSize], o.chain.InAt[0]+buffersAt
		}
		wrote := 0
		for _, b := range o.chain.In {
			for len(b) > 0 && left > 0 {
				for len(from) == 0 {
					part++
					if from = head; part >= 0 {
						from = rest[part]
					}
				}
				k := copy(b, from)
				b, from, wrote, left = b[k:], from[k:], wrote+k, left-k
			}
		}
		if wrote == 0 {
			o.ring.Rewind()
			return 0, vhostuser.ErrBroken // empty buffers would use up the whole ring
		}
		o.ring.Put(&o.chain, wrote)
		if left == 0 {
			if features&vhostuser.NetMrgRxBuf != 0 {
				le.PutUint16(count, uint16(n))
				o.ring.Wrote(countAt, len(count))
			}
			return 0, nil
		}
		if features&vhostuser.NetMrgRxBuf == 0 {
			o.ring.Rewind()
			return 0, vhostuser.ErrBroken // the frame is longer than the guest's buffers
		}
	}
}

// hold queues a frame. The caller holds mu.
func (o *outlet) hold(f *frame) bool {
	n := headerSize + f.size
	if len(o.queue) >= mostWaiting || o.bytes+n > mostBytes {
		return false
	}
	var b []byte
	if k := len(o.spare); k > 0 && cap(o.spare[k-1]) >= n {
		b, o.spare = o.spare[k-1][:n], o.spare[:k-1]
	} else {
		b = make([]byte, n)
	}
	f.virtio.put(b)
	f.bytes(b[headerSize:])
	o.queue, o.bytes = append(o.queue, b), o.bytes+n
	return true
}

// flush delivers waiting frames after the guest has added buffers.
func (o *outlet) flush(features uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ring.Begin() {
		return
	}
	defer o.ring.End()
	if len(o.queue) == 0 {
		o.ring.Quiet() // no frame waits for buffers
		return
	}
	done := 0
	for done < len(o.queue) {
		b := o.queue[done]
		short, err := o.write(features, b[:headerSize], b[headerSize:], nil)
		if err != nil {
			done = len(o.queue) // the ring is broken, or the guest's buffers are too short
			break
		}
		if short == 0 {
			o.bytes -= len(b)
			if len(o.spare) < mostSpare {
				o.spare = append(o.spare, b)
			}
			done++
		} else if !o.ring.ListenFor(short) {
			break
		}
	}
	o.queue = append(o.queue[:0], o.queue[done:]...)
	clear(o.queue[len(o.queue):cap(o.queue)])
	if len(o.queue) == 0 {
		o.bytes = 0
		o.ring.Quiet()
	}
	o.ring.Publish()
}
