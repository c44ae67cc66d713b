package provision

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// rateOf converts a declared rate to bytes, as the loop keeps it.
func rateOf(r *tenant.Rate) schedule.Rate {
	return schedule.Rate{
		Out: bytesOf(r.Out), In: bytesOf(r.In), Burst: uint64(r.Burst),
		MessagesOut: uint64(max(r.Messages.Out, 0)), MessagesIn: uint64(max(r.Messages.In, 0)),
	}
}

// bytesOf converts a rate to bytes a second. A rate that is not zero stays a cap.
func bytesOf(r tenant.BitRate) uint64 { return uint64(r/8 + min(r%8, 1)) }

// shareOfTenant is a tenant's share of the loop.
func shareOfTenant(t *tenant.Tenant) schedule.TenantParams {
	return schedule.TenantParams{Weight: t.Spec.Weight, Rate: rateOf(&t.Spec.Rate)}
}

// shareOfNIC is a NIC's share of the loop.
func shareOfNIC(c *tenant.NIC) schedule.NICParams {
	p := schedule.NICParams{Rate: rateOf(&c.Spec.Rate), Guarantee: bytesOf(c.Spec.Guarantee)}
	if c.Spec.Class == tenant.ClassLatency {
		p.Class = schedule.Latency
	}
	return p
}

// share applies what is declared for a NIC and its tenant. It runs on the loop.
func (r *Provisioner) share(t *tenant.Tenant, c *tenant.NIC, n *nic.NIC) {
	r.cfg.Engine.SetTenant(t.Metadata.Name, shareOfTenant(t))
	r.cfg.Engine.SetShare(n, t.Metadata.Name, shareOfNIC(c))
}

// shareTenants applies what a world declares for the tenants on this host.
func (r *Provisioner) shareTenants(w *tenant.World) {
	r.onLoop(func() { // fails only after the loop has ended
		for name := range r.accounts.of {
			if t := w.Tenant(name); t != nil {
				r.cfg.Engine.SetTenant(name, shareOfTenant(t))
			}
		}
	})
}
