package provision

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A saying is one limit of a device and its declared value; 0: none is declared.
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

// SetLimits applies limits that the daemon's owner has declared for the default NIC. They may be lower or higher than
// the device's.
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

// lower applies the declared limits that are lower than the device's. Administrators of tenants declare them.
func lower(l nic.Limits, said tenant.Limits) nic.Limits {
	for _, s := range sayings(&l, &said) {
		if s.said > 0 {
			*s.limit = min(*s.limit, s.said)
		}
	}
	if said.Memory > 0 && (l.Memory == 0 || uint64(said.Memory) < l.Memory) { // 0: the daemon chooses
		l.Memory = uint64(said.Memory)
	}
	return l
}
