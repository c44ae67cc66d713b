package vswitch

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// maxPairs is how many pairs of queues a guest's card may have.
const maxPairs = 8

// cardFeatures are those of a guest's network card.
const cardFeatures = vhostuser.NetCSum | vhostuser.NetGuestCSum | vhostuser.NetMTU | vhostuser.NetGuestTSO4 | vhostuser.NetGuestTSO6 |
	vhostuser.NetGuestECN | vhostuser.NetHostTSO4 | vhostuser.NetHostTSO6 | vhostuser.NetHostECN | vhostuser.NetMrgRxBuf | vhostuser.NetMQ

// A guest is a virtual machine behind a port.
type guest struct {
	port    *Port
	conn    atomic.Pointer[vhostuser.Conn] // nil: it has just come
	outlets [maxPairs]outlet
	inlets  [maxPairs]inlet
}

// An inlet is where frames of a guest come from: one of its transmit rings.
type inlet struct {
	worker
	queue   int
	chain   vhostuser.Chain
	buffers [][]byte
}

// ErrTaken is what attaching returns when somebody else is attached.
var ErrTaken = errors.New("a guest or a container is attached already: it has to go first")

// Serve returns the network card of a guest, whose QEMU is at a socket, until that has gone. Of d what it hears is the
// caller's, and the rest is filled in; ready is as in vhostuser.Serve.
func (p *Port) Serve(socket *net.UnixConn, d *vhostuser.Device, ready func(*vhostuser.Conn)) error {
	g := &guest{port: p}
	done, ok := p.attach(&attachment{receiver: g, close: func() { socket.Close() }})
	if !ok {
		socket.Close()
		return ErrTaken
	}
	defer done()
	d.Features, d.Rings, d.Queues, d.MTU = cardFeatures, 2*maxPairs, maxPairs, p.MTU
	d.Kicked, d.Broken, d.Held = g.kicked, g.broken, &p.held
	return vhostuser.Serve(socket, d, func(c *vhostuser.Conn) {
		for i := range maxPairs {
			g.outlets[i].ring, g.inlets[i].queue = c.Rings()[2*i], i
		}
		g.conn.Store(c)
		if ready != nil {
			ready(c)
		}
	})
}

func (g *guest) broken(r *vhostuser.Ring, err error) {
	g.port.log.Warn("a guest's driver broke the rules: the queue stands still until the driver starts again", "nic", g.port.NIC, "error", err)
}

// kicked is vhostuser.Device.Kicked. The even rings are those that the guest receives from.
func (g *guest) kicked(r *vhostuser.Ring) {
	at := vhostuser.Contain(func() {
		if r.Index%2 == 0 {
			g.outlets[r.Index/2].flush(r.Conn().Features())
		} else {
			g.transmit(r, &g.inlets[r.Index/2])
		}
	})
	if at != 0 {
		g.port.net.fault(at)
	}
}

// sendContained is send for somebody who is not a guest: the receiver's memory may be gone.
func (p *Port) sendContained(w *worker) {
	if at := vhostuser.Contain(func() { p.send(w, 0) }); at != 0 {
		p.net.fault(at)
	}
}

// fault cuts off the guest in whose memory there was a fault.
func (n *network) fault(at uintptr) {
	for _, p := range n.attached() {
		a := p.behind.Load()
		if a == nil {
			continue
		}
		g, ok := a.receiver.(*guest)
		if !ok {
			continue
		}
		if c := g.conn.Load(); c != nil && c.Owns(at) {
			p.log.Error("a guest's memory cannot be reached: its file has become shorter, or there are no more huge pages; cutting it off", "nic", p.NIC)
			c.Close()
			return
		}
	}
}

const (
	// publishEvery is after how many frames the driver is told that they are sent.
	publishEvery = 32
	// holdFor is after how many frames the ring is given up for a moment, for those who want to stop it.
	holdFor = 256
	// longestPause is how long somebody who is over a rate waits before it looks whether its ring, or its file, is still there.
	longestPause = 10 * time.Millisecond
)

// transmit takes frames from a ring until there are none.
func (g *guest) transmit(r *vhostuser.Ring, i *inlet) {
	for {
		pause, more := g.some(r, i)
		if !more {
			return
		}
		if pause > 0 {
			time.Sleep(min(pause, longestPause))
		}
	}
}

// some takes some frames, and reports whether there are more, and how long to wait before.
func (g *guest) some(r *vhostuser.Ring, i *inlet) (pause time.Duration, more bool) {
	if !r.Begin() {
		return 0, false
	}
	defer r.End()
	r.Quiet()
	for n, last := 1, time.Now(); ; n++ {
		now := time.Now()
		g.port.spent(now.Sub(last))
		last = now
		if pause = g.port.pause(now); pause > 0 || n > holdFor {
			r.Publish()
			return pause, true
		}
		ok, err := r.Next(&i.chain)
		if err != nil {
			return 0, false
		}
		if !ok {
			r.Publish()
			return 0, r.Listen()
		}
		if i.split() {
			g.port.pay(i.frame.size, now)
			g.port.send(&i.worker, i.queue)
		} else {
			g.port.Malformed.Add(1)
		}
		r.Put(&i.chain, 0)
		if n%publishEvery == 0 {
			r.Publish()
		}
	}
}

// split makes a frame of a chain: the header, then the rest.
func (i *inlet) split() bool {
	var virtio [headerSize]byte
	n := 0
	i.buffers = i.buffers[:0]
	for _, b := range i.chain.Out {
		k := copy(virtio[n:], b)
		if n, b = n+k, b[k:]; len(b) > 0 {
			i.buffers = append(i.buffers, b)
		}
	}
	if n < headerSize {
		return false
	}
	i.frame.virtio = parseNetHeader(virtio[:])
	return i.frame.take(i.buffers)
}

// deliver implements receiver.
func (g *guest) deliver(f *frame, queue int, scratch []byte) bool {
	c := g.conn.Load()
	if c == nil {
		return false
	}
	features := c.Features()
	o := &g.outlets[queue%maxPairs]
	if !knows(features, &f.virtio) {
		all := true
		f.plain(scratch, func(b []byte) {
			var one frame
			all = one.take([][]byte{b}) && g.put(o, &one, features) && all
		})
		return all
	}
	return g.put(o, f, features)
}

// put gives a frame to a queue, or if that is not in use to the first.
func (g *guest) put(o *outlet, f *frame, features uint64) bool {
	return o.deliver(f, features) || o != &g.outlets[0] && g.outlets[0].deliver(f, features)
}

// knows reports whether a driver with such features understands a header.
func knows(features uint64, h *header) bool {
	switch h.gso &^ gsoECN {
	case gsoTCP4:
		if features&vhostuser.NetGuestTSO4 == 0 {
			return false
		}
	case gsoTCP6:
		if features&vhostuser.NetGuestTSO6 == 0 {
			return false
		}
	}
	if h.gso&gsoECN != 0 && features&vhostuser.NetGuestECN == 0 {
		return false
	}
	return h.flags&needsSum == 0 || features&vhostuser.NetGuestCSum != 0
}
