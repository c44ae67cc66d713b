package provision

import (
	"time"

	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/tenancy/policy"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// enforceRules compiles the policies of a world and gives them to the NICs whose rules have changed. It returns after
// connections that the rules forbid have ended.
func (r *Provisioner) enforceRules(w *tenant.World) {
	r.rules = policy.Compile(w, r.rules)
	r.aging.Store(r.rules)
	var list []engine.Guarded
	r.mu.Lock()
	for key, s := range r.nics {
		if g := r.rules.NIC(key); g != nil && g != s.guard {
			s.guard = g
			s.ethernet.guard(g)
			list = append(list, engine.Guarded{NIC: s.nic.Device, Guard: g})
		}
	}
	r.mu.Unlock()
	if !r.running {
		for _, g := range list {
			g.NIC.SetGuard(g.Guard)
		}
		return
	}
	r.cfg.Engine.SetGuards(list) // fails only after the loop has ended, with all connections
}

// Age sets how old the knowledge of the store may be. It may be called at any time.
func (r *Provisioner) Age(age time.Duration) {
	if rules := r.aging.Load(); rules != nil {
		rules.SetAge(age)
	}
}

// guardFor returns what gives a new NIC its rules before the first program opens it; nil: it has none.
func (r *Provisioner) guardFor(s *hostedNIC) func(*nic.NIC) {
	if r.rules == nil {
		return nil
	}
	s.guard = r.rules.NIC(s.key)
	if s.guard == nil {
		return nil
	}
	return func(n *nic.NIC) { n.SetGuard(s.guard) }
}
