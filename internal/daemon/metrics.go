package daemon

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/tenancy/meter"
	"vrdma.dev/vrdma/internal/tenancy/metrics"
	"vrdma.dev/vrdma/internal/tenancy/provision"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// openMeter opens the file of --usage. A daemon that vrdma run started has none.
func (s *settings) openMeter() (*meter.Meter, error) {
	path := s.Usage
	if path == "none" || path == "" && s.Ephemeral {
		return meter.New(), nil
	}
	if path == "" {
		path = strings.TrimSuffix(storePath(s.Store, s.place), ".db") + ".usage"
	}
	m, damage, err := meter.Open(path, s.Usage == "", time.Now())
	if err != nil {
		return nil, exit.Lacks("%w; choose another place with --usage FILE, or keep nothing with --usage none", err)
	}
	if damage != nil {
		s.log.Error("part of the usage of tenants is lost", "error", damage)
	}
	return m, nil
}

// metricsAge is how old the numbers that Prometheus reads may be.
const metricsAge = 100 * time.Millisecond

// measured reads the counters of a daemon. It implements metrics.Source.
type measured struct {
	budget    *budget.Ledger
	census    *diag.Census
	collector *meter.Collector
	nics      *registry.Table
	engine    *engine.Engine
	store     *storage
	plane     *plane
	serving   *atomic.Bool
}

// Totals implements metrics.Source.
func (m *measured) Totals() []meter.Total {
	m.collector.Refresh(metricsAge)
	return m.collector.Meter().Totals()
}

// Device implements metrics.Source.
func (m *measured) Device() metrics.Device {
	c, list := m.census.Device()
	out := metrics.Device{Name: provision.DeviceName, SentBytes: c.SentBytes, RcvdBytes: c.RcvdBytes, Counters: make(map[string]uint64)}
	for _, n := range list {
		out.Counters[n.Name] = n.Value
	}
	if o := m.census.Overlay(); o != (roce.OverlayCounters{}) {
		for i, n := range o.Dropped() {
			out.Overlay = append(out.Overlay, metrics.Dropped{Reason: roce.OverlayReasons[i], Value: n})
		}
		out.OverlayAnswers = o.Questions
	}
	var hits [fault.NumActions]uint64
	m.engine.Do(func() { hits = m.engine.FaultHits() }) // fails only after the loop has ended
	for a := fault.Drop; a < fault.NumActions; a++ {
		out.Faults = append(out.Faults, metrics.Dropped{Reason: a.String(), Value: hits[a]})
	}
	return out
}

// NICs implements metrics.Source.
func (m *measured) NICs() int { return len(m.nics.All()) }

// Waits implements metrics.Source.
func (m *measured) Waits() map[string]nic.Waits {
	var bulk, latency nic.Waits
	m.engine.Do(func() { bulk, latency = m.engine.Waits() }) // fails only after the loop has ended
	return map[string]nic.Waits{string(tenant.ClassBulk): bulk, string(tenant.ClassLatency): latency}
}

// UsageUnwritten implements metrics.Source.
func (m *measured) UsageUnwritten() time.Duration {
	since := m.collector.Meter().Unwritten()
	if since.IsZero() {
		return 0
	}
	return time.Since(since)
}

// Tight implements metrics.Source.
func (m *measured) Tight() bool { return m.budget.Tight() }

// StoreAge implements metrics.Source.
func (m *measured) StoreAge() time.Duration { return m.store.age() }

// Generation implements metrics.Source.
func (m *measured) Generation() int64 { return m.plane.Generation() }

// Stalls implements metrics.Source.
func (m *measured) Stalls() uint64 { return m.engine.Stalls() }

// Processor implements metrics.Source.
func (m *measured) Processor() time.Duration { return diag.ProcessTime() }

// Loops implements metrics.Source.
func (m *measured) Loops() (list []metrics.Loop, moves uint64) {
	m.engine.Do(func() { // fails only after the loop has ended
		all, n := m.engine.LoopStatus()
		for _, l := range all {
			list = append(list, metrics.Loop{Number: l.Number, Sessions: l.Sessions, Busy: time.Duration(l.Busy), Across: l.Across, Lost: l.Lost})
		}
		moves = n
	})
	return list, moves
}

// Alive implements metrics.Source.
func (m *measured) Alive() error { return m.engine.Do(func() {}) }

// Quotas implements metrics.Source.
func (m *measured) Quotas() (out []metrics.Quota) {
	for _, q := range m.plane.quotas() {
		out = append(out, metrics.Quota{Tenant: q.Tenant, Kind: q.Kind, Used: q.Used, Limit: q.Limit})
	}
	return out
}

// Hosts implements metrics.Source.
func (m *measured) Hosts() map[string]int { return m.plane.hosts() }

// Ready implements metrics.Source.
func (m *measured) Ready() error {
	if !m.serving.Load() {
		return errors.New("not serving yet, or not any more")
	}
	return nil
}

// keep reads and writes the usage of tenants every second. end reads once more and ends it; it may be called again.
func (m *measured) keep() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.collector.Run(ctx)
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-ended
	})
}
