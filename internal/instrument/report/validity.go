package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// provenance warns about results that are not of one clean commit on one machine; "": they are.
func provenance(r *experiment.Results) string {
	parts := r.Parts
	if len(parts) == 0 {
		parts = []experiment.Part{{Program: r.Header.Program, Machine: r.Header.Machine}}
	}
	var commits, machines, dirty []string
	for _, p := range parts {
		if m := machineText(p.Machine); !slices.Contains(machines, m) {
			machines = append(machines, m)
		}
		if slices.Contains(commits, p.Program) {
			continue
		}
		commits = append(commits, p.Program)
		if strings.HasSuffix(p.Program, "-dirty") {
			dirty = append(dirty, p.Program)
		}
	}
	var faults []string
	if len(commits) > 1 {
		faults = append(faults, fmt.Sprintf("%d commits", len(commits)))
	}
	if len(dirty) > 0 {
		faults = append(faults, "changes that no commit has ("+strings.Join(dirty, ", ")+")")
	}
	if len(machines) > 1 {
		faults = append(faults, fmt.Sprintf("%d machines", len(machines)))
	}
	if len(faults) == 0 {
		return ""
	}
	return "Not for publication: these results are of " + strings.Join(faults, " and of ") + ". make report in a clean clone measures everything from one commit on one machine."
}

// tools lists the versions of the measuring tools.
func tools(m experiment.Machine) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(m.Programs)) {
		list = append(list, strings.TrimSpace(name+" "+m.Programs[name]))
	}
	if len(list) == 0 {
		return ""
	}
	return "Versions: " + strings.Join(list, "; ") + "."
}

// fewProcessors is the number of processors below which client, server and daemons compete for them.
const fewProcessors = 8

// threats says what limits the conclusions from these results, and what hardware would change.
func threats(r *experiment.Results) (out []string) {
	used := make(map[string]bool)
	for i := range r.Records {
		used[r.Records[i].Cell.Setting] = true
	}
	if used[experiment.Hosts] || used[experiment.VMsApart] {
		out = append(out, "Two hosts are two network namespaces of one machine with a veth pair between them. Packets cross two kernel network stacks, but no wire, no switch and no NIC. "+
			"Both hosts share processors, caches and memory bandwidth. With two machines the programs would not compete, and a wire would limit bandwidth and add its latency.")
	}
	if used[experiment.VMs] || used[experiment.VMsApart] || used[experiment.GuestRXE] {
		out = append(out, "Guests are emulated where KVM is missing: their processors are some ten times slower, and a notification costs much more than on hardware. Compare guests with guests only.")
	}
	if n := r.Header.Machine.Processors; n > 0 && n < fewProcessors {
		out = append(out, fmt.Sprintf("%d processors carry client, server and daemons. Programs that poll take processors from the others, so a value says which system does more with the same processors. "+
			"It does not say how fast each would be with a processor of its own.", n))
	}
	if used[experiment.Hosts] || used[experiment.Containers] || used[experiment.Host] {
		out = append(out, "Published values are of other machines, kernels and years. A ratio within one run can be compared with a ratio within one publication; absolute values cannot.")
	}
	return out
}
