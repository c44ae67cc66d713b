package diag

import (
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/device/sysfs"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/tenancy/meter"
)

// A Census reads the counters of all NICs of a daemon for the meter. A removed NIC is read once more.
type Census struct {
	loop MeteredLoop
	nics *registry.Table
	look throttle

	reading sync.Mutex // held while reading; locked before mu
	copies  []copied   // guarded by reading

	mu sync.Mutex
	// Guarded by mu:
	gone    []*registry.NIC // NICs removed since the last reading
	retired nic.Counters    // counters of NICs read after their removal
	sum     nic.Counters    // sum of all at the last reading
	link    roce.Counters   // at the last reading
}

// A copied is a copy of a NIC's counters, with its time.
type copied struct {
	of      *registry.NIC
	idle    bool // the NIC was idle at this mark
	mark    nic.Mark
	counted nic.Counters
	now     nic.Holdings
	out, in ib.Time // time throttled
	at      time.Time
}

// A MeteredLoop also knows how long caps have delayed a NIC.
type MeteredLoop interface {
	Loop
	// Throttled returns how long a NIC could not send, and how long others could not send to it. It is called on the loop.
	Throttled(n *nic.NIC) (out, in ib.Time)
}

// NewCensus returns a Census that is informed of removed NICs.
func NewCensus(l MeteredLoop, nics *registry.Table) *Census {
	c := &Census{loop: l, nics: nics}
	nics.OnRemove(func(n *registry.NIC) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.gone = append(c.gone, n)
	})
	return c
}

// piece is the number of queue pairs read at once; a NIC counts as a few. More would delay the loop: a queue pair takes about 50 ns.
const (
	piece   = 512
	perNIC  = 8
	atNoNIC = "" // network and NIC of traffic without a NIC
)

// Read implements meter.Reader. It reads the NICs in pieces, and the loop serves others in between.
func (c *Census) Read() []meter.Reading {
	c.mu.Lock()
	gone := c.gone
	c.gone = nil
	c.mu.Unlock()
	all := append(c.nics.All(), gone...)
	live := len(all) - len(gone)
	// The loop only copies, into memory that has been touched before.
	c.reading.Lock()
	defer c.reading.Unlock()
	if len(c.copies) < len(all) {
		c.copies = make([]copied, len(all)+len(all)/4)
	}
	copies := c.copies[:len(all)]
	for next := 0; next < len(all); {
		begin := next
		c.look.look(c.loop, func() {
			at := time.Now()
			for done := 0; next < len(all) && done < piece; next++ {
				done += perNIC + all[next].Device.QPs()
				c.copy(&copies[next], all[next], at)
			}
		})
		if next == begin { // the loop has ended
			return nil
		}
	}
	out := make([]meter.Reading, 0, len(all)+1)
	var sum, retired nic.Counters
	for i, n := range all {
		counted := &copies[i].counted
		if sum.Add(counted); i >= live {
			retired.Add(counted)
		}
		r := meter.Reading{ID: n, Key: KeyOf(n), Counted: meter.Of(counted), Now: copies[i].now, Delays: counted.Delays, At: copies[i].at, Gone: i >= live}
		r.Counted[meter.ThrottledOut], r.Counted[meter.ThrottledIn] = uint64(copies[i].out), uint64(copies[i].in)
		if n.Frames != nil {
			addFrames(&r.Counted, n.Frames())
		}
		out = append(out, r)
	}
	var l roce.Counters
	var at time.Time
	c.look.look(c.loop, func() { l, at = c.loop.LinkCounters(), time.Now() })
	c.mu.Lock()
	sum.Add(&c.retired)
	c.retired.Add(&retired)
	c.sum, c.link = sum, l
	c.mu.Unlock()
	return append(out, meter.Reading{ID: c, Key: meter.Key{Tenant: meter.System, Network: atNoNIC, NIC: atNoNIC}, Counted: nobodys(&l), At: at})
}

// addFrames adds the traffic of the NIC's port in the switch.
func addFrames(u *meter.Usage, f registry.Frames) {
	u[meter.FramesOut], u[meter.FrameBytesOut] = f.Sent, f.SentBytes
	u[meter.FramesIn], u[meter.FrameBytesIn] = f.Rcvd, f.RcvdBytes
	u[meter.FrameTime] = f.Time
	for i, v := range f.Drops {
		u[meter.Drops(nic.Reason(i))] += v
	}
}

// copy reads the counters of a NIC, unless it has been idle since it was read into to.
func (c *Census) copy(to *copied, v *registry.NIC, at time.Time) {
	n := v.Device
	mark, idle := n.Mark()
	to.at = at
	to.out, to.in = c.loop.Throttled(n)
	if idle && to.idle && to.of == v && to.mark == mark {
		return
	}
	to.of, to.idle, to.mark = v, idle, mark
	n.ReadCounters(&to.counted)
	to.now = n.Holdings()
}

// Device returns the sum of all NICs' counters, including removed ones, at the last reading.
func (c *Census) Device() (nic.Counters, []sysfs.Counter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sum, sysfs.Counters(c.sum, c.link)
}

// Overlay returns the counters of virtual networks between hosts at the last reading.
func (c *Census) Overlay() roce.OverlayCounters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link.Overlay
}

// nobodys returns the packets that were dropped before their NIC was known.
func nobodys(l *roce.Counters) (u meter.Usage) {
	o := &l.Overlay
	u[meter.Drops(nic.DropSpoof)] = l.FromSelf + l.WrongPort + o.Spoofed + o.WrongPort + o.NotMember + o.Strangers + o.Unsealed
	u[meter.Drops(nic.DropNoNIC)] = l.Nowhere + l.SendErrors + l.NoSource + o.NotHere + o.NoNetwork
	u[meter.Drops(nic.DropICRC)] = l.BadICRC
	u[meter.Drops(nic.DropMalformed)] = l.Malformed + o.BadHead
	u[meter.Drops(nic.DropBuffer)] = l.SendFull
	return u
}

// KeyOf returns the key of a NIC: its name is TENANT/NAME, its network TENANT/NETWORK; the default ones have no slash.
func KeyOf(n *registry.NIC) meter.Key {
	k := meter.Key{Tenant: n.Name, Network: n.Network, NIC: n.Name}
	if t, name, declared := n.Whose(); declared {
		k.Tenant, k.NIC = t, name
	}
	if _, name, ok := strings.Cut(n.Network, "/"); ok {
		k.Network = name
	}
	return k
}
