package provision

import (
	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// An account bounds what the programs of all NICs of a tenant hold together.
type account struct {
	name               string
	budget             *budget.Account // nil: nothing is bounded
	commands, requests *budget.Pace
	nics               int
}

// accounts are the accounts of the tenants that have NICs on this host. The callers of a Provisioner's methods come one
// after the other, and so there is no lock.
type accounts struct {
	host *host
	of   map[string]*account // by the tenant's name
}

// enforce applies the quotas and the rates of a world.
func (l *accounts) enforce(w *tenant.World) {
	for name, a := range l.of {
		if t := w.Tenant(name); t != nil {
			a.set(l.host.cfg.Budget, t)
			l.rate(t)
		}
	}
}

// hold returns the account of a tenant, for one more NIC.
func (l *accounts) hold(t *tenant.Tenant) *account {
	name := t.Metadata.Name
	a := l.of[name]
	if a == nil {
		a = &account{name: name, commands: &budget.Pace{Tenant: name}, requests: &budget.Pace{Tenant: name}}
		if l.host.cfg.Budget != nil {
			a.budget = l.host.cfg.Budget.Tenant(name, budget.Bill{})
		}
		l.of[name] = a
	}
	a.set(l.host.cfg.Budget, t)
	a.nics++
	return a
}

// drop releases one hold.
func (l *accounts) drop(a *account) {
	if a.nics--; a.nics == 0 {
		a.budget.Drop()
		l.host.onLoop(func() { l.host.cfg.Engine.ForgetTenant(a.name) })
		delete(l.of, a.name)
	}
}

// set applies the quota of a tenant to its account.
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
