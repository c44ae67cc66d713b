package vswitch

import (
	"net/netip"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// inbound queues frames from other hosts. The daemon's loop receives them and must not wait for a guest.
type inbound struct {
	mu    sync.Mutex // guards spare and closed
	spare [][]byte
	shut  bool
	queue chan arrival
	done  chan struct{}
}

type arrival struct {
	vni   uint32
	from  *overlay.Host
	bytes []byte
}

// mostArrivals limits the queue.
const mostArrivals = 1024

// Wants reports whether RoCE packets for an address of a network are for a device at a port, not for the daemon. Any goroutine may
// call it.
func (s *Switch) Wants(vni uint32, to netip.Addr) bool {
	if s.live.Load() == 0 {
		return false
	}
	n := s.network(vni)
	if n == nil {
		return false
	}
	p := n.at(to)
	return p != nil && p.Attached() && !p.RoCE()
}

// Receive queues a copy of a frame that a host sent into a network of which it is a member. Any goroutine may call it, and it does
// not block.
func (s *Switch) Receive(vni uint32, from *overlay.Host, frame []byte) {
	in := &s.inbound
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.shut || len(frame) > maxFrame || s.live.Load() == 0 {
		return
	}
	if in.queue == nil {
		in.queue, in.done = make(chan arrival, mostArrivals), make(chan struct{})
		go s.deliverArrivals()
	}
	if len(in.queue) == cap(in.queue) {
		return // the queue is full: drop the frame
	}
	var b []byte
	if n := len(in.spare); n > 0 && cap(in.spare[n-1]) >= len(frame) {
		b, in.spare = in.spare[n-1][:len(frame)], in.spare[:n-1]
	} else {
		b = make([]byte, len(frame), max(len(frame), 2048))
	}
	copy(b, frame)
	in.queue <- arrival{vni, from, b} // never blocks: only this goroutine fills it, and there is space
}

func (in *inbound) close() {
	in.mu.Lock()
	started := in.queue != nil && !in.shut
	in.shut = true
	if started {
		close(in.queue)
	}
	in.mu.Unlock()
	if started {
		<-in.done
	}
}

// deliverArrivals delivers queued frames until the switch is closed.
func (s *Switch) deliverArrivals() {
	in := &s.inbound
	defer close(in.done)
	var w worker
	for a := range in.queue {
		n := s.network(a.vni)
		if n != nil {
			if at := vhostuser.Contain(func() { n.arrived(&w, &a) }); at != 0 {
				n.fault(at)
			}
		}
		in.mu.Lock()
		if len(in.spare) < mostArrivals {
			in.spare = append(in.spare, a.bytes)
		}
		in.mu.Unlock()
	}
}

// arrived delivers a frame to its destination ports. A host sends only frames of its own members.
func (n *network) arrived(w *worker, a *arrival) {
	f := &w.frame
	f.virtio = header{}
	if !f.take([][]byte{a.bytes}) || f.ether != etherIPv4 && f.ether != etherIPv6 {
		return
	}
	members := n.sw.members.Load()
	e := members.Find(a.vni, f.src)
	if e == nil || e.Host != a.from || f.from.IsGroup() || !e.Host.Linux && f.from != e.MAC {
		return
	}
	if f.to.IsGroup() {
		for _, o := range n.attached() {
			if o.admits(f, f.src) {
				o.deliver(w, 0)
			}
		}
		return
	}
	if o := n.at(f.dst); o != nil && f.to == o.MAC {
		if !o.admits(f, f.src) {
			o.Denied.Add(1)
			return
		}
		began := time.Now()
		o.deliver(w, 0)
		o.spent(time.Since(began))
	}
}
