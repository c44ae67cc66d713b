package vswitch

import (
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/net/vhostuser"
)

// maxPairs is the maximum number of queue pairs of a guest's network card.
const maxPairs = 8

// cardFeatures are the features of a guest's network card.
const cardFeatures = vhostuser.NetCSum | vhostuser.NetGuestCSum | vhostuser.NetMTU | vhostuser.NetGuestTSO4 | vhostuser.NetGuestTSO6 |
	vhostuser.NetGuestECN | vhostuser.NetHostTSO4 | vhostuser.NetHostTSO6 | vhostuser.NetHostECN | vhostuser.NetMrgRxBuf | vhostuser.NetMQ

// mostGuests is how many guests may be connected to a port. A guest that migrates on this host is connected twice: QEMU starts its copy
// before it stops the original.
const mostGuests = 2

// A guest is a virtual machine whose QEMU is connected to a port. It is attached to the port while its rings run.
type guest struct {
	port    *Port
	place   int // in Port.guests
	close   func()
	left    chan struct{}                  // closed when it is not connected any more
	conn    atomic.Pointer[vhostuser.Conn] // nil until the connection is set up
	paused  atomic.Bool                    // Switch.Pause has paused the connection
	detach  func()                         // nil: it is not attached; only the goroutine of vhostuser.Serve uses it
	outlets [maxPairs]outlet
	inlets  [maxPairs]inlet
}

// An inlet is a transmit ring of a guest: a source of frames.
type inlet struct {
	worker
	queue   int
	chain   vhostuser.Chain
	buffers [][]byte
}

// ErrTaken means that another guest or container is attached to the port.
var ErrTaken = errors.New("a guest or a container is already attached: detach it first")

// errGuests means that too many guests are connected.
var errGuests = errors.New("two virtual machines are already connected with the NIC")

// Serve serves the network card of a guest, whose QEMU is at a socket, until QEMU disconnects. The caller sets the callbacks in d;
// Serve fills in the rest. d.Starts is called before the guest is attached to the port, d.Stops after it has been detached. ready is as
// in vhostuser.Serve.
func (p *Port) Serve(socket *net.UnixConn, d *vhostuser.Device, ready func(*vhostuser.Conn)) error {
	g, ok := p.admitGuest(socket)
	if !ok {
		socket.Close()
		return errGuests
	}
	defer p.dismiss(g)
	g.device(d)
	return vhostuser.Serve(socket, d, func(c *vhostuser.Conn) {
		g.connect(c)
		if ready != nil {
			ready(c)
		}
	})
}

// device describes the card of a guest.
func (g *guest) device(d *vhostuser.Device) {
	d.Features, d.Rings, d.Queues, d.MTU = cardFeatures, 2*maxPairs, maxPairs, g.port.MTU
	d.Kicked, d.Broken, d.Held = g.kicked, g.broken, &g.port.held[g.place]
	starts, stops := d.Starts, d.Stops
	d.Starts = func(c *vhostuser.Conn) error {
		if starts != nil {
			if err := starts(c); err != nil {
				return err
			}
		}
		if g.attach() {
			return nil
		}
		if stops != nil {
			stops(c)
		}
		return ErrTaken
	}
	d.Stops = func(c *vhostuser.Conn) {
		if g.detach != nil {
			g.detach()
			g.detach = nil
		}
		if stops != nil {
			stops(c)
		}
	}
}

// attach attaches the guest to its port. It returns false if another device is attached.
func (g *guest) attach() bool {
	done, ok := g.port.attach(&attachment{receiver: g, close: g.close})
	if ok {
		g.detach = done
	}
	return ok
}

// admitGuest adds a guest whose QEMU is at a socket. It returns false if there are too many.
func (p *Port) admitGuest(socket *net.UnixConn) (*guest, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.guests[:], nil)
	if at < 0 {
		return nil, false
	}
	g := &guest{port: p, place: at, close: func() { socket.Close() }, left: make(chan struct{})}
	p.guests[at] = g
	return g, true
}

// dismiss removes a guest whose connection has ended.
func (p *Port) dismiss(g *guest) {
	p.mu.Lock()
	p.guests[g.place] = nil
	p.mu.Unlock()
	close(g.left)
}

// connected returns the guests whose QEMU is connected.
func (p *Port) connected() (out []*guest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.guests {
		if g != nil {
			out = append(out, g)
		}
	}
	return out
}

// connect sets the connection of a guest.
func (g *guest) connect(c *vhostuser.Conn) {
	for i := range maxPairs {
		g.outlets[i].ring, g.inlets[i].queue = c.Rings()[2*i], i
	}
	g.conn.Store(c)
}

func (g *guest) broken(r *vhostuser.Ring, err error) {
	g.port.log.Warn("a guest's driver violated the virtqueue protocol: the queue is stopped until the driver starts again", "nic", g.port.NIC, "error", err)
}

// kicked is vhostuser.Device.Kicked. The guest receives from rings with even numbers.
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

// sendContained is send for a sender that is not a guest: the memory of the receiver may be gone.
func (p *Port) sendContained(w *worker) {
	if at := vhostuser.Contain(func() { p.send(w, 0) }); at != 0 {
		p.net.fault(at)
	}
}

// fault disconnects the guest in whose memory a fault occurred.
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
			p.log.Error("a guest's memory cannot be reached: its file has become shorter, or there are no more huge pages; disconnecting it", "nic", p.NIC)
			c.Close()
			return
		}
	}
}

const (
	// publishEvery is the number of frames after which the driver sees them as sent.
	publishEvery = 32
	// holdFor is the number of frames after which the ring is unlocked for a moment, so that it can be stopped.
	holdFor = 256
	// longestPause is the longest wait of a sender over its rate before it checks that its ring or file still exists.
	longestPause = 10 * time.Millisecond
)

// transmit forwards frames from a ring until it is empty.
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

// some forwards some frames, and returns whether there are more and how long to wait before them.
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
			g.port.charge(i.frame.size, now)
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

// split converts a chain to a frame: the virtio header, then the rest.
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

// put delivers a frame to a queue, or to the first queue if that one is not in use.
func (g *guest) put(o *outlet, f *frame, features uint64) bool {
	return o.deliver(f, features) || o != &g.outlets[0] && g.outlets[0].deliver(f, features)
}

// knows reports whether a driver with these features understands a header.
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
