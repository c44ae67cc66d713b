package provision

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A saying is one limit of a device, and what somebody said of it; 0: nothing.
type saying struct {
	limit *int
	said  int
}

func sayings(l *nic.Limits, said *tenant.Limits) []saying {
	return []saying{
		{&l.PDs, said.PDs}, {&l.CQs, said.CQs}, {&l.QPs, said.QPs}, {&l.MRs, said.MRs}, {&l.MWs, said.MWs}, {&l.SRQs, said.SRQs},
		{&l.AHs, said.AHs}, {&l.Channels, said.Channels},
	}
}

// SetLimits makes the limits that somebody said those of a device, whether they are lower or
// higher: the default NIC's, which the daemon's owner says.
func SetLimits(l nic.Limits, said tenant.Limits) nic.Limits {
	for _, s := range sayings(&l, &said) {
		if s.said != 0 {
			*s.limit = s.said
		}
	}
	if said.Memory > 0 {
		l.Memory = uint64(said.Memory)
	}
	return l
}

// lower makes those that are lower those of a device: administrators of tenants say them.
func lower(l nic.Limits, said tenant.Limits) nic.Limits {
	for _, s := range sayings(&l, &said) {
		if s.said > 0 {
			*s.limit = min(*s.limit, s.said)
		}
	}
	if said.Memory > 0 && (l.Memory == 0 || uint64(said.Memory) < l.Memory) { // 0: as the daemon finds right
		l.Memory = uint64(said.Memory)
	}
	return l
}
