package control

import (
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A QuotaUse is what a tenant holds of a kind on this host.
type QuotaUse struct {
	Kind  string `json:"kind"` // as in spec.quota
	Used  uint64 `json:"used"`
	Limit uint64 `json:"limit,omitempty"` // 0: none
}

// quotaOf returns what a tenant holds.
func (p *Plane) quotaOf(o *tenant.Tenant) []QuotaUse {
	if p.cfg.Budget == nil {
		return nil
	}
	name := o.Metadata.Name
	world := p.snapshots.now.Load().world
	out := []QuotaUse{{"nics", uint64(len(world.ObjectsOf(tenant.KindNIC, name))), uint64(o.Spec.Quota.NICs)}}
	for _, q := range p.cfg.Budget.Quotas() {
		if q.Tenant == name {
			out = append(out, QuotaUse{q.Kind, q.Used, q.Limit})
		}
	}
	return out
}

// Quotas returns what all tenants hold, NICs included.
func (p *Plane) Quotas() []budget.Quota {
	out := p.cfg.Budget.Quotas()
	world := p.snapshots.now.Load().world
	for _, o := range world.Objects(tenant.KindTenant) {
		t := o.(*tenant.Tenant)
		nics := len(world.ObjectsOf(tenant.KindNIC, t.Metadata.Name))
		out = append(out, budget.Quota{Tenant: t.Metadata.Name, Kind: "nics", Used: uint64(nics), Limit: uint64(t.Spec.Quota.NICs)})
	}
	return out
}

// HostStates counts the hosts of a shared store by state.
func (p *Plane) HostStates() map[State]int {
	out := map[State]int{Ready: 0, Gone: 0}
	snap := p.snapshots.now.Load()
	for _, o := range snap.world.Objects(tenant.KindHost) {
		out[p.registration.status(snap, o.(*tenant.Host)).State]++
	}
	return out
}
