package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"vrdma/internal/inspect"
	"vrdma/internal/launch"
	"vrdma/internal/link"
	"vrdma/internal/meter"
	"vrdma/internal/metrics"
	"vrdma/internal/nic"
	"vrdma/internal/rack"
	"vrdma/internal/store"
	"vrdma/internal/tenant"
)

// meter is what keeps the usage of tenants. A daemon that vrdma run started for a while keeps
// none.
func (f *daemonFlags) meter(p launch.Place, log *slog.Logger) (*meter.Meter, error) {
	path := f.usage
	if path == "none" || path == "" && f.ephemeral {
		return meter.New(), nil
	}
	if path == "" {
		path = strings.TrimSuffix(storePath(f.store, p), ".db") + ".usage"
	}
	m, damage, err := meter.Open(path, f.usage == "", time.Now())
	if err != nil {
		return nil, lacks("%w; choose another place with --usage FILE, or keep nothing with --usage none", err)
	}
	if damage != nil {
		log.Error("some of what tenants have used is lost", "error", damage)
	}
	return m, nil
}

// metricsAge is how old what a scraper reads may be.
const metricsAge = 100 * time.Millisecond

// serveMetrics begins to answer scrapers.
func (d *daemon) serveMetrics(addr string, perNIC bool) (*metrics.Server, error) {
	m, err := metrics.Listen(addr, metrics.Source{
		Totals: func() []meter.Total {
			d.clerk.Refresh(metricsAge)
			return d.clerk.Meter().Totals()
		},
		Device: func() metrics.Device {
			c, list := d.census.Device()
			out := metrics.Device{Name: rack.DeviceName, SentBytes: c.SentBytes, RcvdBytes: c.RcvdBytes, Counters: make(map[string]uint64)}
			for _, n := range list {
				out.Counters[n.Name] = n.Value
			}
			if o := d.census.Overlay(); o != (link.OverlayCounters{}) {
				for i, n := range o.Dropped() {
					out.Overlay = append(out.Overlay, metrics.Dropped{Reason: link.OverlayReasons[i], Value: n})
				}
				out.OverlayAnswers = o.Questions
			}
			return out
		},
		NICs: func() int { return len(d.nics.All()) },
		Waits: func() map[string]nic.Waits {
			var bulk, latency nic.Waits
			d.engine.Do(func() { bulk, latency = d.engine.Waits() }) // fails only after the loop has ended
			return map[string]nic.Waits{string(tenant.ClassBulk): bulk, string(tenant.ClassLatency): latency}
		},
		StoreAge: d.storeAge,
		Generation: func() int64 {
			if plane := d.plane.Load(); plane != nil {
				return plane.Generation()
			}
			return 0
		},
		Processor: inspect.ProcessTime,
		Alive:     func() error { return d.engine.Do(func() {}) },
		Ready:     d.ready,
		Started:   time.Now(), Version: version, PerNIC: perNIC,
	})
	if err != nil {
		return nil, lacks("%w", err)
	}
	return m, nil
}

// storeAge is how long ago a store that other daemons share was heard of.
func (d *daemon) storeAge() time.Duration {
	if s, shared := d.store.(store.Remote); shared {
		if heard := s.Health().Heard; !heard.IsZero() {
			return max(time.Since(heard), 0)
		}
	}
	return 0
}

// ready says why programs are not served.
func (d *daemon) ready() error {
	if !d.serving.Load() {
		return errors.New("not serving yet, or not any more")
	}
	return nil
}

// meter begins to read and to keep what NICs use. end reads once more and ends it; it may be
// called again.
func (d *daemon) meter() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.clerk.Run(ctx)
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-ended
	})
}
