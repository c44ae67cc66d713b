package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"vrdma/internal/launch"
	"vrdma/internal/meter"
)

// meter is what keeps the usage of tenants. A daemon that vrdma run started for a while keeps
// none.
func (f *daemonFlags) meter(p launch.Place, log *slog.Logger) (*meter.Meter, error) {
	path := f.usage
	if path == "none" || path == "" && f.ephemeral {
		return meter.New(), nil
	}
	if path == "" {
		path = p.Socket + ".usage"
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
