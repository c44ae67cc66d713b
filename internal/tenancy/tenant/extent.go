package tenant

// Declared objects use memory of the daemon, and rules use time of the loop when a program connects. Tenants share
// both, so administrators of a tenant can declare a limited amount. The operator has no limit.
const (
	// mostRules is how many rules the policies of a tenant may have together, each port and
	// name counted as one.
	mostRules = 1000
	// mostWords is how many labels, users and groups a NIC may have.
	mostWords = 100
	// mostTenantFaults is how many Faults a tenant may have.
	mostTenantFaults = 64
)

// rules is how much a policy counts: itself, its names and labels, its rules and what they list.
func (p *Policy) rules() int {
	n := 1 + len(p.Metadata.Labels) + len(p.Spec.NICs.Names) + len(p.Spec.NICs.Labels)
	for _, list := range [][]Rule{p.Spec.Allow, p.Spec.Deny} {
		for i := range list {
			r := &list[i]
			n += 1 + len(r.Peer.Labels) + len(r.Types) + len(r.Operations)
			if r.Service != nil {
				n += len(r.Service.Ports)
			}
		}
	}
	return n
}

// words is how many words a NIC lists.
func (n *NIC) words() int {
	return len(n.Metadata.Labels) + len(n.Spec.Open.UIDs) + len(n.Spec.Open.GIDs)
}

// rulesAfter is how many rules the policies of a tenant have, and would have after a change.
func (w *World) rulesAfter(tenant string, c Change) (before, after int) {
	at := make(map[string]int)
	if h := w.tenants[tenant]; h != nil {
		for name := range h.policies {
			at[name] = w.Get(Key{KindPolicy, tenant, name}).(*Policy).rules()
			before += at[name]
		}
	}
	after = before
	for _, k := range c.Delete {
		if k.Kind == KindPolicy && k.Tenant == tenant {
			after -= at[k.Name]
			at[k.Name] = 0
		}
	}
	for _, o := range c.Put {
		if p, is := o.(*Policy); is && p.Metadata.Tenant == tenant {
			n := p.rules()
			after += n - at[p.Metadata.Name]
			at[p.Metadata.Name] = n
		}
	}
	return before, after
}
