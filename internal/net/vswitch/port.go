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

// PortConfig is what a port is: a NIC's end of an Ethernet cable.
type PortConfig struct {
	NIC     string // TENANT/NAME
	Network string // TENANT/NETWORK
	MAC     overlay.MAC
	Addrs   []netip.Addr
	Subnets []netip.Prefix // of the network
	MTU     int            // of packets, from IP's header on
	// InUse reports whether programs have the NIC open; nil: none ever have. Then RoCE, which is UDP port 4791 of the
	// NIC's addresses, is the daemon's, and else that of who is behind the port.
	InUse func() bool
}

// A Port is a NIC that is plugged into the switch. One guest or one container at a time is attached to it.
type Port struct {
	PortConfig
	net       *network
	log       *slog.Logger
	linkLocal netip.Addr

	guard  atomic.Pointer[guarded] // nil: everything is allowed
	roce   atomic.Bool             // what InUse said
	asked  atomic.Int64            // when
	limits limits
	shared *tenantLimits // those of all of its tenant's ports

	held atomic.Int32 // see vhostuser.Device

	mu     sync.Mutex // guards who is attached
	behind atomic.Pointer[attachment]

	Counters
}

// An attachment is who is behind a port.
type attachment struct {
	receiver
	close func()
	ended chan struct{}
}

// A receiver takes what leaves the switch through a port.
type receiver interface {
	// deliver gives it a frame, by way of one of its queues. False: it was dropped.
	deliver(f *frame, queue int, scratch []byte) bool
}

// Counters are what a port has counted. Sent and Received are as who is behind it sees them.
type Counters struct {
	SentFrames, SentBytes         atomic.Uint64
	ReceivedFrames, ReceivedBytes atomic.Uint64
	Spoofed                       atomic.Uint64 // with addresses that it does not have
	Denied                        atomic.Uint64 // by policy
	Malformed                     atomic.Uint64
	NoBuffer                      atomic.Uint64 // who is behind it did not take it
	NoMember                      atomic.Uint64 // for an address that nobody has
	Capped                        atomic.Uint64 // over a rate
	Time                          atomic.Uint64 // nanoseconds that carrying took: what it has sent, and what has come from other hosts for it and not for a group
}

// longestFrame bounds what carrying one frame takes: who needed longer had no processor meanwhile, and that is nobody's time.
const longestFrame = time.Millisecond

// spent puts the time that carrying a frame took on the account.
func (c *Counters) spent(d time.Duration) { c.Time.Add(uint64(min(d, longestFrame))) }

// SetRate says how many bytes a second who is behind the port may send and get; 0: no limit. burst may pass at once;
// 0: a millisecond of the rate, 64 KiB at least.
func (p *Port) SetRate(sent, received, burst uint64) {
	p.limits[out].set(sent, burst)
	p.limits[in].set(received, burst)
}

// pause returns how long who is behind the port has to wait before it sends; 0: not at all.
func (p *Port) pause(now time.Time) time.Duration {
	return max(p.limits[out].wait(now), p.shared.limits[out].wait(now))
}

// pay takes what is sent from what may be.
func (p *Port) pay(n int, now time.Time) {
	p.limits[out].pay(n, now)
	p.shared.limits[out].pay(n, now)
}

// admitted reports whether so much may be received now.
func (p *Port) admitted(n int) bool {
	now := time.Now()
	if p.shared.limits[in].wait(now) != 0 || !p.limits[in].take(n, now) {
		return false
	}
	p.shared.limits[in].pay(n, now) // it is not refused any more, if another port was faster: the port has paid
	return true
}

// askEvery is how often it is asked whose RoCE is.
const askEvery = 50 * time.Millisecond

// RoCE reports whether RoCE is the daemon's.
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

// attach puts somebody behind the port, who is there until done is called. False: there is somebody.
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

// Attached reports whether somebody is behind the port.
func (p *Port) Attached() bool { return p.behind.Load() != nil }

// detachTime is how long Detach waits: longer than a front end can hold up what is its own.
const detachTime = 20 * time.Second

// Detach cuts off who is behind the port. It returns when that has gone, or goes on going.
func (p *Port) Detach() {
	p.mu.Lock()
	a := p.behind.Load()
	p.mu.Unlock()
	if a != nil {
		a.close()
		select {
		case <-a.ended:
		case <-time.After(detachTime):
			p.log.Warn("who is behind a NIC does not end", "nic", p.NIC)
		}
	}
}

// A worker is what somebody who forwards needs: there is one for each goroutine.
type worker struct {
	frame   frame
	answer  [answerRoom]byte
	scratch []byte // for two frames of the longest; nil: was not needed yet
}

func (w *worker) room() []byte {
	if w.scratch == nil {
		w.scratch = make([]byte, 2*maxFrame)
	}
	return w.scratch
}

// send brings the worker's frame, which who is behind p sent through a queue, to where it goes.
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
		// Questions that nobody can answer, and what routers say: not sent on.
	case f.proto == protoUDP && f.dport == wire.Port && p.RoCE():
		p.Denied.Add(1) // the NIC's RoCE is the daemon's
	default:
		p.forward(w, queue)
	}
}

// fits reports whether a frame is not longer than the network's.
func (p *Port) fits(f *frame) bool {
	if f.virtio.gso != gsoNone {
		return f.payload-etherSize+int(f.virtio.segment) <= p.MTU
	}
	return f.size <= etherSize+p.MTU
}

// honest reports whether a frame has the sender's addresses.
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
	return false // nothing else is carried
}

var anyIPv4 = netip.IPv4Unspecified()

func (p *Port) has(a netip.Addr) bool { return slices.Contains(p.Addrs, a) }

// linkLocal returns the address that a machine gives itself by its MAC (RFC 4291, appendix A).
func linkLocal(m overlay.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

// forward finds who a frame is for.
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
	e := p.net.elsewhere(f.dst) // first: a NIC that may be anywhere has a port on every host
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

// toLinkLocal brings a frame to the port whose machine has given itself the address. Machines of other hosts are
// reached by the addresses of their NICs only.
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

// flood brings a frame that is for a group to everybody.
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

// deliver gives a frame to who is behind the port.
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

// reply gives the port's own worker's frame in b to who is behind it: an answer of the switch.
func (p *Port) reply(b []byte, queue int, scratch []byte) {
	if a := p.behind.Load(); a != nil {
		var f frame
		if f.take([][]byte{b}) && a.deliver(&f, queue, scratch) {
			p.ReceivedFrames.Add(1)
			p.ReceivedBytes.Add(uint64(f.size))
		}
	}
}

// sendTo sends a frame to a host, as ordinary ones.
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
