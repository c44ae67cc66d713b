package tenant

import (
	"fmt"
	"slices"
)

// A Caller has the kernel's credentials of a client.
type Caller struct {
	// Operator: the caller is the daemon's user or root, and may do everything.
	Operator bool
	UID      int
	GIDs     []int // all of the process's groups
}

// Admits reports whether the caller is one of the users or in one of the groups. An empty list
// of users and groups admits nobody.
func (w *Who) Admits(c Caller) bool {
	return slices.Contains(w.UIDs, c.UID) || slices.ContainsFunc(w.GIDs, func(gid int) bool { return slices.Contains(c.GIDs, gid) })
}

// May returns nil if the caller may make a change, else Errors with the reasons. The operator may make every change.
// The administrators of a tenant may put and delete its NICs, policies and faults. They may not give a NIC a guarantee or the
// latency class, which take resources from other tenants, nor exceed the limits of extent.go.
func (w *World) May(who Caller, c Change) error {
	if who.Operator {
		return nil
	}
	var errs Errors
	deny := func(k Key, o Object, field, format string, args ...any) {
		e := &Error{Key: k, Field: field, Text: fmt.Sprintf(format, args...)}
		if o != nil {
			o.Meta().from.locate(e)
		}
		errs = append(errs, e)
	}
	judge := func(k Key, o Object) {
		switch {
		case k.Kind != KindNIC && k.Kind != KindPolicy && k.Kind != KindFault:
			deny(k, o, "", "only the operator may change a %s: ask whoever runs the daemon", k.Kind)
		case !w.administers(who, k.Tenant):
			deny(k, o, "", "user %d is not an administrator of tenant %s: ask one of them, or the operator", who.UID, k.Tenant)
		}
	}
	counted := make(map[string]bool) // tenants whose rules were
	for _, o := range c.Put {
		judge(o.Key(), o)
		if k := o.Key(); k.Kind == KindPolicy && !counted[k.Tenant] {
			counted[k.Tenant] = true
			if before, after := w.rulesAfter(k.Tenant, c); after > max(before, mostRules) {
				deny(k, o, "", "the policies of tenant %s would have %d rules, ports, names and labels, and its administrators may declare %d: write fewer, or ask the operator", k.Tenant, after, mostRules)
			}
		}
		if k := o.Key(); k.Kind == KindFault {
			if n := len(w.tenants[k.Tenant].names(KindFault)); n >= mostTenantFaults && w.Get(k) == nil {
				deny(k, o, "", "tenant %s has %d faults, and its administrators may declare %d: delete some, or ask the operator", k.Tenant, n, mostTenantFaults)
			}
		}
		nic, is := o.(*NIC)
		if !is {
			continue
		}
		var old NICSpec
		most := mostWords
		if before := w.NIC(nic.Metadata.Tenant, nic.Metadata.Name); before != nil {
			old, most = before.Spec, max(most, before.words())
		}
		if n := nic.words(); n > most {
			deny(o.Key(), o, "", "it has %d labels, users and groups, and administrators may give it %d: leave some out", n, mostWords)
		}
		if nic.Spec.Guarantee > old.Guarantee {
			deny(o.Key(), o, "spec.guarantee", "%s: only the operator may guarantee a rate, because it takes from other tenants", nic.Spec.Guarantee)
		}
		if nic.Spec.Class == ClassLatency && (old.Class != ClassLatency || nic.Spec.Rate.Out > old.Rate.Out) {
			deny(o.Key(), o, "spec.class", "only the operator may make or widen a NIC of class latency, because it goes before other tenants'")
		}
	}
	for _, k := range c.Delete {
		judge(k, nil)
	}
	return errs.err()
}

func (w *World) administers(who Caller, tenant string) bool {
	t := w.Tenant(tenant)
	return t != nil && t.Spec.Administrators.Admits(who)
}

// MayRead reports whether a caller may see an object. The operator sees everything, and the administrators of a tenant
// see all of its objects. Other callers see the NICs that they may open, and the networks of these NICs.
func (w *World) MayRead(who Caller, o Object) bool {
	k := o.Key()
	if who.Operator {
		return true
	}
	if k.Kind == KindTenant {
		return w.administers(who, k.Name)
	}
	if w.administers(who, k.Tenant) {
		return true
	}
	switch o := o.(type) {
	case *NIC:
		return o.Spec.Open.Admits(who)
	case *Network:
		return slices.ContainsFunc(w.NICs(k), func(n *NIC) bool { return n.Spec.Open.Admits(who) })
	}
	return false
}
