package provision

import (
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// An account is what all NICs of a tenant may have together.
type account struct {
	name               string
	budget             *budget.Account // nil: nothing is bounded
	commands, requests *budget.Pace
	nics               int
}

// hold is the account of a tenant, for one more NIC.
func (r *Provisioner) hold(t *tenant.Tenant) *account {
	name := t.Metadata.Name
	a := r.tenants[name]
	if a == nil {
		a = &account{name: name, commands: &budget.Pace{Tenant: name}, requests: &budget.Pace{Tenant: name}}
		if r.cfg.Budget != nil {
			a.budget = r.cfg.Budget.Tenant(name, budget.Bill{})
		}
		r.tenants[name] = a
	}
	a.set(r.cfg.Budget, t)
	a.nics++
	return a
}

// drop undoes hold.
func (r *Provisioner) drop(a *account) {
	if a.nics--; a.nics == 0 {
		a.budget.Drop()
		r.onLoop(func() { r.cfg.Engine.ForgetTenant(a.name) })
		delete(r.tenants, a.name)
	}
}

// set makes the quota of a tenant that of its account.
func (a *account) set(l *budget.Ledger, t *tenant.Tenant) {
	q := &t.Spec.Quota
	a.commands.Set(q.Commands)
	a.requests.Set(q.ConnectionRequests)
	if l == nil {
		return
	}
	l.Tenant(a.name, budget.Bill{
		budget.Devices: uint64(q.Devices), budget.QueuePairs: uint64(q.QueuePairs), budget.CompletionQueues: uint64(q.CompletionQueues),
		budget.Rings: uint64(q.Rings), budget.Memory: uint64(q.Memory), budget.Connections: uint64(q.Connections),
	}).Drop()
}
