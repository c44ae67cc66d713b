package provision

import (
	"reflect"
	"time"

	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// declaredFaults are the Faults of a world, and their plans at the NICs of this host. The loop, or a function on it,
// touches the plans.
type declaredFaults struct {
	world *tenant.World
	plans map[*nic.NIC][]declaredPlan
}

// A declaredPlan is a Fault at one NIC.
type declaredPlan struct {
	key   tenant.Key
	rules []fault.Rule
	plan  *fault.Plan
}

// enforceFaults gives every NIC of this host the faults that a world declares for it. A plan whose rules have not
// changed keeps its counters.
func (r *Provisioner) enforceFaults(w *tenant.World) {
	list := make(map[*nic.NIC][]*tenant.Fault)
	r.mu.Lock()
	for _, s := range r.nics {
		list[s.nic.Device] = faultsFor(w, w.NIC(s.key.Tenant, s.key.Name))
	}
	r.mu.Unlock()
	if r.first != nil {
		list[r.first.Device] = faultsFor(w, nil)
	}
	r.onLoop(func() { // fails only after the loop has ended
		r.faults.world = w
		for n, faults := range list {
			r.setFaults(n, faults)
		}
	})
}

// faultsFor returns the Faults that select a NIC, by name; n is nil for the default NIC.
func faultsFor(w *tenant.World, n *tenant.NIC) (list []*tenant.Fault) {
	of := tenant.DefaultTenant
	if n != nil {
		of = n.Metadata.Tenant
	}
	for _, o := range w.ObjectsOf(tenant.KindFault, of) {
		if f := o.(*tenant.Fault); n == nil || f.Spec.NICs.Selects(n) {
			list = append(list, f)
		}
	}
	return list
}

// setFaults sets the faults of a NIC. It runs on the loop.
func (r *Provisioner) setFaults(n *nic.NIC, faults []*tenant.Fault) {
	old := r.faults.plans[n]
	if len(old) == 0 && len(faults) == 0 {
		return
	}
	var now []declaredPlan
	var plans []*fault.Plan
	for _, f := range faults {
		d := declaredPlan{key: f.Key(), rules: f.Spec.Rules}
		for _, o := range old {
			if o.key == d.key && reflect.DeepEqual(o.rules, d.rules) {
				d.plan = o.plan
			}
		}
		if d.plan == nil {
			d.plan = fault.New(named(f), time.Duration(r.cfg.Engine.Now()))
		}
		now, plans = append(now, d), append(plans, d.plan)
	}
	if r.faults.plans == nil {
		r.faults.plans = make(map[*nic.NIC][]declaredPlan)
	}
	if r.faults.plans[n] = now; len(now) == 0 {
		delete(r.faults.plans, n)
	}
	r.cfg.Engine.SetFaults(n, plans)
}

// named gives the rules of a Fault its name.
func named(f *tenant.Fault) (list []fault.Named) {
	for _, rule := range f.Spec.Rules {
		list = append(list, fault.Named{Name: f.Key().Path(), Rule: rule})
	}
	return list
}

// faultsOfNew gives a NIC that was just added its faults. It runs on the loop.
func (r *Provisioner) faultsOfNew(n *nic.NIC, c *tenant.NIC) {
	if w := r.faults.world; w != nil {
		r.setFaults(n, faultsFor(w, c))
	}
}

// FaultHits is how often the rules of a Fault have hit, and at how many NICs they are. It may be called at any time.
func (r *Provisioner) FaultHits(k tenant.Key) (hits uint64, nics int) {
	r.onLoop(func() { // fails only after the loop has ended
		for _, list := range r.faults.plans {
			for _, d := range list {
				if d.key != k {
					continue
				}
				nics++
				for _, s := range d.plan.Status() {
					hits += s.Hits
				}
			}
		}
	})
	return hits, nics
}
