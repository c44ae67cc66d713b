package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// hostWarnings are about NICs that a change moves to another host, or names a host for that does not exist. Both are allowed: a
// file can be older than a move, and a host can come later.
func hostWarnings(self string, s *snapshot, next *tenant.World, effects []tenant.Effect) (out []string) {
	known := map[string]bool{self: true}
	for name := range s.hosts {
		known[name] = true
	}
	for _, o := range next.Objects(tenant.KindHost) {
		known[o.Key().Name] = true
	}
	for _, e := range effects {
		n, is := e.New.(*tenant.NIC)
		if !is || n.Spec.Host == "" || e.Old == e.New {
			continue
		}
		if old, had := e.Old.(*tenant.NIC); had && old.Spec.Host != "" && old.Spec.Host != n.Spec.Host {
			out = append(out, fmt.Sprintf("%v moves from host %s to %s; a file that says host: %[2]s moves it back when it is applied: write host: %[3]s there, or host: anywhere to let it be where its container starts",
				e.Key, old.Spec.Host, n.Spec.Host))
		}
		if !known[n.Spec.Host] {
			out = append(out, fmt.Sprintf("%v is of host %s, which does not exist: no program can open it until the host does; there are %s (vrdma get hosts)",
				e.Key, n.Spec.Host, strings.Join(slices.Sorted(maps.Keys(known)), ", ")))
		}
	}
	return out
}
