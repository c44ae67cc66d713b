package vswitch

import (
	"sync"

	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// An outlet is where frames leave the switch for a guest: one of its receive rings. What the guest has no
// buffers for waits.
type outlet struct {
	ring *vhostuser.Ring

	mu    sync.Mutex // guards what is below
	chain vhostuser.Chain
	queue [][]byte // headers and frames that wait, oldest first
	bytes int      // of them
	spare [][]byte // for the next that have to
}

const (
	// mostWaiting bounds what waits for one ring, in frames and bytes: what a network card would hold.
	mostWaiting = 512
	mostBytes   = 2 << 20
	mostSpare   = 8
)

// deliver brings a frame to the guest, or has it wait. False: it is dropped.
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

// write puts a frame into the ring. It returns how many chains that would need at least, if there are not as
// many; 0: it is done. The ring is held.
func (o *outlet) write(features uint64, virtio, head []byte, rest [][]byte) (short int, err error) {
	o.ring.Mark()
	left := len(virtio) + len(head) + vhostuser.Size(rest)
	var count []byte // where the first buffer says how many there are
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
			count = o.chain.In[0][buffersAt:headerSize]
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
			return 0, vhostuser.ErrBroken // buffers without room would take the whole ring
		}
		o.ring.Put(&o.chain, wrote)
		if left == 0 {
			if features&vhostuser.NetMrgRxBuf != 0 {
				le.PutUint16(count, uint16(n))
			}
			return 0, nil
		}
		if features&vhostuser.NetMrgRxBuf == 0 {
			o.ring.Rewind()
			return 0, vhostuser.ErrBroken // it is longer than the guest's buffers
		}
	}
}

// hold has a frame wait. mu is held.
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

// flush brings the guest what waits: it has new buffers.
func (o *outlet) flush(features uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ring.Begin() {
		return
	}
	defer o.ring.End()
	if len(o.queue) == 0 {
		o.ring.Quiet() // nobody waits for buffers
		return
	}
	done := 0
	for done < len(o.queue) {
		b := o.queue[done]
		short, err := o.write(features, b[:headerSize], b[headerSize:], nil)
		if err != nil {
			done = len(o.queue) // the ring is broken, or this guest's buffers are too short for what it wanted
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
