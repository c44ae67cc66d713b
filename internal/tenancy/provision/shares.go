package provision

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// rateOf is a declared rate as the loop keeps it: in bytes.
func rateOf(r *tenant.Rate) schedule.Rate {
	return schedule.Rate{
		Out: bytesOf(r.Out), In: bytesOf(r.In), Burst: uint64(r.Burst),
		MessagesOut: uint64(max(r.Messages.Out, 0)), MessagesIn: uint64(max(r.Messages.In, 0)),
	}
}

// bytesOf is a rate in bytes a second. One that is not zero, and so a cap, stays one.
func bytesOf(r tenant.BitRate) uint64 { return uint64(r/8 + min(r%8, 1)) }

// shareOfTenant is what a tenant has of the loop.
func shareOfTenant(t *tenant.Tenant) schedule.TenantParams {
	return schedule.TenantParams{Weight: t.Spec.Weight, Rate: rateOf(&t.Spec.Rate)}
}

// shareOfNIC is what a NIC has of it.
func shareOfNIC(c *tenant.NIC) schedule.NICParams {
	p := schedule.NICParams{Rate: rateOf(&c.Spec.Rate), Guarantee: bytesOf(c.Spec.Guarantee)}
	if c.Spec.Class == tenant.ClassLatency {
		p.Class = schedule.Latency
	}
	return p
}

// share makes what is declared of a NIC and its tenant hold on the loop, where it is called.
func (r *Provisioner) share(t *tenant.Tenant, c *tenant.NIC, n *nic.NIC) {
	r.cfg.Engine.SetTenant(t.Metadata.Name, shareOfTenant(t))
	r.cfg.Engine.SetShare(n, t.Metadata.Name, shareOfNIC(c))
}

// shareTenants makes what a world declares of the tenants here hold.
func (r *Provisioner) shareTenants(w *tenant.World) {
	r.onLoop(func() { // fails only after the loop has ended
		for name := range r.accounts.of {
			if t := w.Tenant(name); t != nil {
				r.cfg.Engine.SetTenant(name, shareOfTenant(t))
			}
		}
	})
}
