package engine

import (
	"sync/atomic"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// Tenants on several loops. All loops know all shares and caps.
//
//   - Weights divide the time of all loops. Each loop tells the others, now and then, how much time it has used for a tenant and
//     for a NIC, and what others have used counts against their shares here (schedule.Ledger). Nothing is locked.
//   - Caps are not divided. A NIC with a cap or a guarantee has all its sessions on one loop, and a tenant with a cap all sessions
//     of its NICs: they form one group, with those that they are connected to. So one bucket counts all traffic of a cap. It moves
//     with the group.

// An owner is what the first loop knows of a tenant.
type owner struct {
	nics   map[*adapter]struct{} // of the first loop
	capped bool
}

// A ledger is the time of a tenant, or of a NIC, on each loop. No loop waits for another, and nothing is locked.
type ledger []loopTime

// A loopTime is that of one loop, which alone writes it; it fills a cache line.
type loopTime struct {
	used atomic.Int64
	_    [56]byte
}

// Exchange implements schedule.Ledger.
func (l ledger) Exchange(loop int, used ib.Time) (others ib.Time) {
	l[loop].used.Store(int64(used))
	for i := range l {
		if i != loop {
			others += ib.Time(l[i].used.Load())
		}
	}
	return others
}

// ledgers are those of tenants and NICs. Only commands change the maps.
type ledgers struct {
	loops   int
	tenants map[string]ledger
	nics    map[*nic.NIC]ledger
}

func newLedgers(loops int) *ledgers {
	return &ledgers{loops: loops, tenants: make(map[string]ledger), nics: make(map[*nic.NIC]ledger)}
}

// tenant returns the ledger of a tenant, and makes it if there is none.
func (l *ledgers) tenant(name string) ledger {
	if l.tenants[name] == nil {
		l.tenants[name] = make(ledger, l.loops)
	}
	return l.tenants[name]
}

// nic returns the ledger of a NIC, and makes it if there is none.
func (l *ledgers) nic(n *nic.NIC) ledger {
	if l.nics[n] == nil {
		l.nics[n] = make(ledger, l.loops)
	}
	return l.nics[n]
}

// owner returns the record of a tenant, and makes it if there is none.
func (l *loops) owner(name string) *owner {
	o := l.owners[name]
	if o == nil {
		if l.owners == nil {
			l.owners = make(map[string]*owner)
		}
		o = &owner{nics: make(map[*adapter]struct{})}
		l.owners[name] = o
	}
	return o
}

// own makes a NIC one of a tenant; an empty name: of none.
func (l *loops) own(a *adapter, name string) {
	if a.owner != nil {
		delete(a.owner.nics, a)
		a.owner = nil
	}
	if name != "" {
		a.owner = l.owner(name)
		a.owner.nics[a] = struct{}{}
	}
}

// isCapped reports whether a rate has a cap.
func isCapped(r schedule.Rate) bool { r.Burst = 0; return r != (schedule.Rate{}) }

// noteTenant notes the parameters of a tenant. Its sessions come together on the first loop if they have to.
func (l *loops) noteTenant(name string, p schedule.TenantParams) {
	if len(l.others) == 0 {
		return
	}
	o := l.owner(name)
	before := o.capped
	if o.capped = isCapped(p.Rate); o.capped && !before {
		for a := range o.nics {
			l.gatherNIC(a.nic)
		}
	}
}

// noteShare notes the tenant and the parameters of a NIC.
func (l *loops) noteShare(a *adapter, tenant string, p schedule.NICParams) {
	if len(l.others) == 0 {
		return
	}
	before, capped := a.owner, a.capped
	l.own(a, tenant)
	a.capped = isCapped(p.Rate) || p.Guarantee != 0
	if a.capped && !capped || a.owner != before && a.owner.capped {
		l.gatherNIC(a.nic)
	}
}

// gatherNIC brings the groups of a NIC's sessions to the first loop, now or soon.
func (l *loops) gatherNIC(n *nic.NIC) {
	if len(l.others) == 0 {
		return
	}
	n.EachSession(func(s *nic.Session) {
		if c := clientOf(s); c != nil && c.e != l.first {
			l.bring(c)
		}
	})
}

// capOf returns the tenant, or else the NIC, whose sessions a cap holds together with s; nil: none does.
func (l *loops) capOf(s *nic.Session) any {
	switch a := l.first.adapters.of[s.NIC()]; {
	case a == nil || a.owner == nil:
		return nil
	case a.owner.capped:
		return a.owner
	case a.capped:
		return a
	}
	return nil
}

// eachMate calls f for the sessions that a cap holds together with s.
func (l *loops) eachMate(s *nic.Session, f func(*nic.Session)) {
	switch k := l.capOf(s).(type) {
	case *owner:
		for a := range k.nics {
			a.nic.EachSession(f)
		}
	case *adapter:
		k.nic.EachSession(f)
	}
}

// joinMates brings a new session and those that a cap holds together with it to the first loop, unless they are on one.
func (l *loops) joinMates(s *nic.Session) {
	c, apart := clientOf(s), false
	l.eachMate(s, func(o *nic.Session) {
		k := clientOf(o)
		apart = apart || k != nil && k.e != c.e
	})
	if apart {
		l.bring(c)
	}
}

// bring moves the group of c to the first loop, now or soon.
func (l *loops) bring(c *client) {
	g := l.group(nil, c)
	if l.move(g, l.first) {
		return
	}
	for _, o := range g {
		if o.e != l.first {
			o.astray = true
			o.session.EachQP(l.regroup)
		}
	}
}

// inheritCaps makes the caps of c's NIC and tenant continue on the loop that c is moved to.
func (c *client) inheritCaps(d *client) {
	if c.e.sched.nics.Limited() {
		d.e.sched.nics.Inherit(&d.adapter.band.nic, &c.adapter.band.nic, d.e.clock.now)
	}
}
