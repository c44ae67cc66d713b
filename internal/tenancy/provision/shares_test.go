package provision

import (
	"testing"

	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

func TestShares(t *testing.T) {
	rate := tenant.Rate{Out: 10e9, In: 1, Burst: 1 << 20}
	rate.Messages.Out, rate.Messages.In = 1000, 2000
	want := schedule.Rate{Out: 1.25e9, In: 1, Burst: 1 << 20, MessagesOut: 1000, MessagesIn: 2000}

	var o tenant.Tenant
	o.Spec.Weight, o.Spec.Rate = 3, rate
	if got := shareOfTenant(&o); got != (schedule.TenantParams{Weight: 3, Rate: want}) {
		t.Errorf("tenant: %+v", got)
	}
	var c tenant.NIC
	c.Spec.Rate, c.Spec.Guarantee, c.Spec.Class = rate, 8e9, tenant.ClassLatency
	if got := shareOfNIC(&c); got != (schedule.NICParams{Rate: want, Guarantee: 1e9, Class: schedule.Latency}) {
		t.Errorf("NIC: %+v", got)
	}
	if got := shareOfNIC(&tenant.NIC{}); got != (schedule.NICParams{}) {
		t.Errorf("a NIC that declares nothing: %+v", got)
	}
}
