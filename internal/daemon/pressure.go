package daemon

import (
	"context"
	"math"
	"os"
	"runtime/debug"

	"vrdma.dev/vrdma/internal/budget"
)

// limitHeap makes the garbage collector keep within the daemon's control group: the accounts allow a quarter of its memory for
// objects, and the collector may let the heap grow to twice that. GOMEMLIMIT has precedence.
func (s *settings) limitHeap() {
	if s.machine.Memory < s.machine.Physical && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(min(s.machine.Memory/2, math.MaxInt64)))
	}
}

// followPressure reacts while tasks of the daemon's control group, or of the machine, wait for memory, until ctx ends.
func (d *daemon) followPressure(ctx context.Context) {
	w, err := budget.WatchPressure(budget.PressureFiles("/proc/self"))
	if err != nil {
		d.log.Debug("memory pressure cannot be watched", "error", err)
		return
	}
	d.log.Debug("memory pressure is watched", "file", w.Name())
	err = w.Run(ctx, func(under bool) {
		d.budget.SetTight(under)
		if !under {
			d.log.Info("memory is no longer short: users have their limits again")
			return
		}
		d.log.Warn("memory is short: users other than the owner have an eighth of their limits for new objects", "file", w.Name())
		debug.FreeOSMemory()
	})
	d.budget.SetTight(false)
	if err != nil {
		d.log.Warn("memory pressure is not watched any more", "error", err)
	}
}
