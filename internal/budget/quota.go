package budget

import (
	"maps"
	"math"
	"slices"
)

// A Quota is what a tenant holds of a kind, and the most that it may hold.
type Quota struct {
	Tenant      string
	Kind        string // as the tenant's spec.quota spells it
	Used, Limit uint64 // a limit of 0: none
}

// quotaKinds are the kinds that a tenant's quota can limit, with their names in spec.quota.
var quotaKinds = []struct {
	kind Kind
	name string
}{
	{Devices, "devices"}, {QueuePairs, "queuePairs"}, {CompletionQueues, "completionQueues"}, {Rings, "rings"}, {Memory, "memory"}, {Connections, "connections"},
}

// Quotas returns what all tenants hold, by name and kind. A tenant without a NIC on this host is left out.
func (l *Ledger) Quotas() (out []Quota) {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.tenants)) {
		a := l.tenants[name]
		for _, q := range quotaKinds {
			limit := a.limit[q.kind]
			if limit == math.MaxInt64 {
				limit = 0
			}
			out = append(out, Quota{name, q.name, a.used[q.kind], limit})
		}
	}
	return out
}
