package vswitch

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// PortConfig describes a port, which connects a NIC with the switch.
type PortConfig struct {
	NIC     string // TENANT/NAME
	Network string // TENANT/NETWORK
	MAC     overlay.MAC
	Addrs   []netip.Addr
	Subnets []netip.Prefix // subnets of the network
	MTU     int            // of packets, including the IP header
	// InUse reports whether programs have the NIC open; nil means never. While they have, RoCE (UDP port 4791 of the NIC's addresses)
	// belongs to the daemon, and otherwise to the device at the port.
	InUse func() bool
}

// A Port connects a NIC with the switch. One guest or one container at a time is attached to it. Another guest may be connected, whose
// rings do not run.
type Port struct {
	PortConfig
	net       *network
	log       *slog.Logger
	linkLocal netip.Addr

	guard  atomic.Pointer[guarded] // nil: everything is allowed
	roce   atomic.Bool             // last result of InUse
	asked  atomic.Int64            // when InUse was called
	limits limits
	shared *tenantLimits // limits of all ports of the tenant

	held [mostGuests]atomic.Int32 // see vhostuser.Device

	mu     sync.Mutex // guards changes of the attachment, and guests
	behind atomic.Pointer[attachment]
	guests [mostGuests]*guest // that are connected; nil: none

	Counters
}

// An attachment is the device at a port: a guest or a container.
type attachment struct {
	receiver
	close func()
	ended chan struct{}

	// Of a container: interrupt makes the goroutine that reads frames look at pause (succession.go).
	interrupt func(time.Time) error
	pause     atomic.Pointer[pause] // nil: none
}

// A receiver takes frames that leave the switch through a port.
type receiver interface {
	// deliver delivers a frame through one of the queues. It returns false if it drops the frame.
	deliver(f *frame, queue int, scratch []byte) bool
}

// Counters are the counters of a port. Sent and Received are from the point of view of the attached device.
type Counters struct {
	SentFrames, SentBytes         atomic.Uint64
	ReceivedFrames, ReceivedBytes atomic.Uint64
	Spoofed                       atomic.Uint64 // sent with a wrong source address
	Denied                        atomic.Uint64 // refused by policy
	Malformed                     atomic.Uint64
	NoBuffer                      atomic.Uint64 // the attached device had no buffer
	NoMember                      atomic.Uint64 // no member has the destination address
	Capped                        atomic.Uint64 // over a rate
	Time                          atomic.Uint64 // nanoseconds spent on frames that it sent, and on unicast frames from other hosts for it
}

// longestFrame is the maximum time counted for one frame: a longer time means that the goroutine was preempted.
const longestFrame = time.Millisecond

// spent adds the time spent on a frame.
func (c *Counters) spent(d time.Duration) { c.Time.Add(uint64(min(d, longestFrame))) }

// SetRate sets how many bytes per second the attached device may send and receive; 0 means no limit. burst is the burst size; 0
// selects a millisecond of the rate, but at least 64 KiB.
func (p *Port) SetRate(sent, received, burst uint64) {
	p.limits[out].set(sent, burst)
	p.limits[in].set(received, burst)
}

// pause returns how long the attached device must wait before it sends; 0 means not at all.
func (p *Port) pause(now time.Time) time.Duration {
	return max(p.limits[out].wait(now), p.shared.limits[out].wait(now))
}

// charge takes n sent bytes from the buckets.
func (p *Port) charge(n int, now time.Time) {
	p.limits[out].charge(n, now)
	p.shared.limits[out].charge(n, now)
}

// admitted reports whether n bytes may be received now.
func (p *Port) admitted(n int) bool {
	now := time.Now()
	if p.shared.limits[in].wait(now) != 0 || !p.limits[in].take(n, now) {
		return false
	}
	p.shared.limits[in].charge(n, now) // not refused even if another port was faster: the port's own bucket is charged already
	return true
}

// askEvery is the interval between calls of InUse.
const askEvery = 50 * time.Millisecond

// RoCE reports whether the NIC's RoCE belongs to the daemon.
func (p *Port) RoCE() (daemon bool) {
	if p.InUse == nil {
		return false
	}
	now := time.Now().UnixNano()
	if at := p.asked.Load(); now-at > int64(askEvery) && p.asked.CompareAndSwap(at, now) {
		p.roce.Store(p.InUse())
	}
	return p.roce.Load()
}

// attach attaches a device to the port until done is called. ok is false if another one is attached.
func (p *Port) attach(a *attachment) (done func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.behind.Load() != nil {
		return nil, false
	}
	a.ended = make(chan struct{})
	p.behind.Store(a)
	p.net.setLive(p, true)
	return func() {
		p.mu.Lock()
		p.behind.Store(nil)
		p.net.setLive(p, false)
		p.mu.Unlock()
		close(a.ended)
	}, true
}

// Attached reports whether a device is attached to the port.
func (p *Port) Attached() bool { return p.behind.Load() != nil }

// detachTime is how long Detach waits: longer than a front end can block its own goroutines.
const detachTime = 20 * time.Second

// Detach disconnects the attached device and all guests, and waits until they are gone, at most for detachTime.
func (p *Port) Detach() {
	var gone []<-chan struct{}
	for _, g := range p.connected() {
		g.close()
		gone = append(gone, g.left)
	}
	if a := p.behind.Load(); a != nil {
		a.close()
		gone = append(gone, a.ended)
	}
	late := time.After(detachTime)
	for _, c := range gone {
		select {
		case <-c:
		case <-late:
			p.log.Warn("the device attached to a NIC does not disconnect", "nic", p.NIC)
			return
		}
	}
}

// A worker is the working storage of one forwarding goroutine.
type worker struct {
	frame   frame
	answer  [answerRoom]byte
	scratch []byte // space for two frames of maximum length; nil until needed
}

func (w *worker) room() []byte {
	if w.scratch == nil {
		w.scratch = make([]byte, 2*maxFrame)
	}
	return w.scratch
}

// send forwards the worker's frame, which the device at p sent through a queue.
func (p *Port) send(w *worker, queue int) {
	f := &w.frame
	p.SentFrames.Add(1)
	p.SentBytes.Add(uint64(f.size))
	switch {
	case !f.settle() || !p.fits(f):
		p.Malformed.Add(1)
	case !p.honest(f):
		p.Spoofed.Add(1)
	case p.answered(w, queue):
	case f.ether == etherARP || f.proto == protoICMP6 && isControl(f):
		// Requests without an answer and router messages are not forwarded.
	case f.proto == protoUDP && f.dport == wire.Port && p.RoCE():
		p.Denied.Add(1) // the NIC's RoCE belongs to the daemon
	default:
		p.forward(w, queue)
	}
}

// fits reports whether a frame respects the network's MTU.
func (p *Port) fits(f *frame) bool {
	if f.virtio.gso != gsoNone {
		return f.payload-etherSize+int(f.virtio.segment) <= p.MTU
	}
	return f.size <= etherSize+p.MTU
}

// honest reports whether a frame has the port's source addresses.
func (p *Port) honest(f *frame) bool {
	if f.from != p.MAC {
		return false
	}
	switch f.ether {
	case etherARP:
		q, ok := overlay.ParseNeighbour(f.head)
		return ok && (p.has(q.Sender) || q.Sender == anyIPv4)
	case etherIPv4:
		return p.has(f.src) || f.src == anyIPv4 && f.isDHCP()
	case etherIPv6:
		return p.has(f.src) || f.src == p.linkLocal || f.src.IsUnspecified() && f.proto == protoICMP6
	}
	return false // other protocols are not forwarded
}

var anyIPv4 = netip.IPv4Unspecified()

func (p *Port) has(a netip.Addr) bool { return slices.Contains(p.Addrs, a) }

// linkLocal returns the link-local address derived from a MAC (RFC 4291, appendix A).
func linkLocal(m overlay.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// forward finds the destination of a frame.
func (p *Port) forward(w *worker, queue int) {
	f := &w.frame
	if f.to.IsGroup() {
		p.flood(w, queue)
		return
	}
	if f.dst.IsLinkLocalUnicast() {
		p.toLinkLocal(w, queue)
		return
	}
	e := p.net.elsewhere(f.dst) // check first: a NIC without a fixed host has a port on every host
	if e == nil {
		o := p.net.at(f.dst)
		switch {
		case o == nil || f.to != o.MAC || o == p:
			p.NoMember.Add(1)
		case !p.allows(f, f.dst):
			p.Denied.Add(1)
		default:
			o.deliver(w, queue)
		}
		return
	}
	switch {
	case f.to != e.MAC && !e.Host.Linux:
		p.NoMember.Add(1)
	case !p.allows(f, f.dst):
		p.Denied.Add(1)
	default:
		p.sendTo(w, e.Host)
	}
}

// toLinkLocal delivers a frame to the port whose machine has the link-local address. Machines on other hosts are reachable only by the
// addresses of their NICs.
func (p *Port) toLinkLocal(w *worker, queue int) {
	for _, o := range p.net.attached() {
		if o.linkLocal == w.frame.dst && o.MAC == w.frame.to && o != p {
			if p.allows(&w.frame, o.Addrs[0]) {
				o.deliver(w, queue)
			} else {
				p.Denied.Add(1)
			}
			return
		}
	}
	p.NoMember.Add(1)
}

// flood delivers a multicast or broadcast frame to all members.
func (p *Port) flood(w *worker, queue int) {
	for _, o := range p.net.attached() {
		if o != p && p.allows(&w.frame, o.Addrs[0]) {
			o.deliver(w, queue)
		}
	}
	members := p.net.sw.members.Load()
	for _, h := range members.Hosts(p.net.vni()) {
		p.sendTo(w, h)
	}
}

// deliver delivers a frame to the attached device.
func (p *Port) deliver(w *worker, queue int) {
	f := &w.frame
	a := p.behind.Load()
	switch {
	case a == nil, f.proto == protoUDP && f.dport == wire.Port && p.RoCE():
		p.NoMember.Add(1)
	case !p.admitted(f.size):
		p.Capped.Add(1)
	case !a.deliver(f, queue, w.room()):
		p.NoBuffer.Add(1)
	default:
		p.ReceivedFrames.Add(1)
		p.ReceivedBytes.Add(uint64(f.size))
	}
}

// reply delivers the frame in b, an answer of the switch, to the attached device.
func (p *Port) reply(b []byte, queue int, scratch []byte) {
	if a := p.behind.Load(); a != nil {
		var f frame
		if f.take([][]byte{b}) && a.deliver(&f, queue, scratch) {
			p.ReceivedFrames.Add(1)
			p.ReceivedBytes.Add(uint64(f.size))
		}
	}
}

// sendTo sends a frame to a host, converted to ordinary frames.
func (p *Port) sendTo(w *worker, h *overlay.Host) {
	hosts := p.net.sw.cfg.Hosts
	members := p.net.sw.members.Load()
	net := members.Network(p.net.vni())
	if hosts == nil || net == nil {
		p.NoMember.Add(1)
		return
	}
	w.frame.plain(w.room(), func(b []byte) { hosts.SendFrame(net.VNI, h, b) })
}
