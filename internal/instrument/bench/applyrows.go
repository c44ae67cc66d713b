package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// The number of objects that are declared to measure apply and an idle daemon.
const (
	largeTenants  = 10
	largeNetworks = 10 // in each tenant
	largeNICs     = 10 // in each network
	largePolicies = 10 // in each network, with as many rules each
)

// manyObjects declares 1000 NICs in 100 networks, and 10 000 rules.
func manyObjects() string {
	var s strings.Builder
	object := func(kind, name, of, spec string) {
		fmt.Fprintf(&s, "apiVersion: vrdma.io/v1\nkind: %s\nmetadata: {name: %s%s}\nspec: {%s}\n---\n", kind, name, of, spec)
	}
	for t := range largeTenants {
		of := fmt.Sprintf(", tenant: t%d", t)
		object("Tenant", fmt.Sprintf("t%d", t), "", "weight: 1")
		for n := range largeNetworks {
			object("Network", fmt.Sprintf("n%d", n), of, "subnets: [10.1.0.0/24]")
			for i := range largeNICs {
				object("NIC", fmt.Sprintf("n%d-%d", n, i), of, fmt.Sprintf("network: n%d", n))
			}
			for p := range largePolicies {
				var rules strings.Builder
				for r := range largePolicies {
					fmt.Fprintf(&rules, "{direction: in, peer: {nic: n%d-%d}, service: {space: tcp, ports: [%d]}}, ", n, r, 7000+10*p+r)
				}
				object("Policy", fmt.Sprintf("p%d-%d", n, p), of, fmt.Sprintf("nics: {network: n%d}, deny: [%s]", n, strings.TrimSuffix(rules.String(), ", ")))
			}
		}
	}
	return s.String()
}

// large starts a daemon, declares many objects and calls f with how long that took.
func (q qosProbes) large(name, unit string, f func(ctx context.Context, h *tenantDaemon, took time.Duration) (float64, error)) probe.Probe {
	return q.probe(name, unit, nil, func(ctx context.Context, h *tenantDaemon) (float64, error) {
		file := filepath.Join(h.dir, "large.yaml")
		if err := os.WriteFile(file, []byte(manyObjects()), 0o644); err != nil {
			return 0, err
		}
		begin := time.Now()
		if _, err := q.lab.Run(ctx, q.lab.Vrdma, "apply", "--socket", h.Socket, "-f", file); err != nil {
			return 0, err
		}
		return f(ctx, h, time.Since(begin))
	})
}

// applying measures the duration of vrdma apply with many objects.
func (q qosProbes) applying() probe.Probe {
	return q.large("apply", "s", func(_ context.Context, _ *tenantDaemon, took time.Duration) (float64, error) {
		return took.Seconds(), nil
	})
}

// watchIdle is how long the idle daemon is watched.
const watchIdle = 3 * time.Second

// idling measures the processor time of a daemon whose NICs are unused, in percent.
func (q qosProbes) idling() probe.Probe {
	return q.large("1000 idle NICs", "%", func(ctx context.Context, h *tenantDaemon, _ time.Duration) (float64, error) {
		// The daemon writes device trees a few at a time.
		if err := h.waitIdle(ctx, 5); err != nil {
			return 0, err
		}
		before, err1 := h.daemon.CPUTime()
		err2 := testbed.Sleep(ctx, watchIdle)
		after, err3 := h.daemon.CPUTime()
		return 100 * (after - before).Seconds() / watchIdle.Seconds(), errors.Join(err1, err2, err3)
	})
}
