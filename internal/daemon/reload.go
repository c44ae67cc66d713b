package daemon

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"vrdma.dev/vrdma/internal/platform/systemd"
	"vrdma.dev/vrdma/internal/tenancy/metrics"
)

// reloading reads the configuration file again and changes what a running daemon can change.
type reloading struct {
	mu      sync.Mutex      // held while the file is read and changes are made
	metrics *metrics.Server // guarded by mu; nil: not served
}

// Reload reads the configuration file again. It changes all that can change, or nothing if the file has a mistake. The lines say
// what was changed, and what needs a restart.
func (d *daemon) Reload() (lines []string, err error) {
	d.tell(systemd.Reloading())
	defer d.tell(systemd.Ready)
	d.reloading.mu.Lock()
	defer d.reloading.mu.Unlock()
	next := d.flags.clone()
	if err := next.readFile(); err != nil {
		d.log.Error("the configuration is not reloaded: it has mistakes", "error", err)
		return nil, err
	}
	was := *d.Options
	changed, fixed := difference(d.Options, next)
	if len(changed) > 0 {
		if err := d.takeOver(next); err != nil {
			*d.Options = was
			d.log.Error("the configuration is not reloaded", "error", err)
			return nil, err
		}
	}
	// Both levels show the lines about the change: a higher one is set after them.
	defer d.level.Set(d.level.Level())
	var before slog.Level
	if before.UnmarshalText([]byte(was.LogLevel)) == nil && before < d.level.Level() {
		d.level.Set(before)
	}
	for _, c := range changed {
		d.log.Info("the configuration has changed", "setting", c.key, "was", c.was, "is", c.is)
		lines = append(lines, fmt.Sprintf("%s: %s, was %s", c.key, c.is, c.was))
	}
	for _, c := range fixed {
		d.log.Warn("a change of the configuration needs a restart of the daemon", "setting", c.key, "is", c.was, "file", c.is)
		lines = append(lines, fmt.Sprintf("%s: stays %s until the daemon restarts; the file has %s", c.key, c.was, c.is))
	}
	if len(lines) == 0 {
		d.log.Info("the configuration is read again: nothing has changed")
	}
	return lines, nil
}

// clone copies options, with lists of their own.
func (o *Options) clone() *Options {
	c := *o
	for _, list := range []*[]string{&c.Addr, &c.Underlay, &c.Guests} {
		*list = slices.Clone(*list)
	}
	return &c
}

// A change is a setting with another value.
type change struct{ key, was, is string }

// difference returns the settings that differ: those that can change in a running daemon, and the others.
func difference(now, next *Options) (changed, fixed []change) {
	after := next.Settings()
	for i, s := range now.Settings() {
		was, is := s.Values(), after[i].Values()
		if slices.Equal(was, is) {
			continue
		}
		c := change{s.Key, valuesText(was), valuesText(is)}
		if s.Reload {
			changed = append(changed, c)
		} else {
			fixed = append(fixed, c)
		}
	}
	return changed, fixed
}

func valuesText(v []string) string {
	if len(v) == 0 {
		return "the default"
	}
	return strings.Join(v, ", ")
}

// takeOver changes the daemon to the settings of next that can change. reloading.mu is held.
func (d *daemon) takeOver(next *Options) error {
	if d.Metrics != next.Metrics || d.PerNIC != next.PerNIC {
		wasAddress, wasPerNIC := d.Metrics, d.PerNIC
		d.Metrics, d.PerNIC = next.Metrics, next.PerNIC
		if err := d.serveMetrics(); err != nil {
			d.Metrics, d.PerNIC = wasAddress, wasPerNIC
			return err
		}
	}
	d.LogLevel = next.LogLevel
	var level slog.Level
	if err := level.UnmarshalText([]byte(next.LogLevel)); err != nil {
		return err // cannot happen: the file was checked
	}
	d.level.Set(level)
	return nil
}

// serveMetrics serves metrics at the address of the settings, and ends another server. After an error the old one serves on.
// reloading.mu is held.
func (d *daemon) serveMetrics() error {
	old := d.reloading.metrics
	same := old != nil && d.Metrics == d.reloading.metrics.Asked()
	if same { // the new server needs the address
		old.Close()
		d.reloading.metrics, old = nil, nil
	}
	var m *metrics.Server
	if d.Metrics != "" {
		var err error
		if m, err = metrics.Listen(d.Metrics, metrics.Config{Source: d.measured, Started: d.started, Version: d.Version, PerNIC: d.PerNIC}); err != nil {
			return err
		}
		d.log.Info("serving metrics", "address", m.Addr().String())
	}
	if old != nil {
		old.Close()
	}
	d.reloading.metrics = m
	return nil
}

// endMetrics ends the server of metrics.
func (d *daemon) endMetrics() {
	d.reloading.mu.Lock()
	defer d.reloading.mu.Unlock()
	if m := d.reloading.metrics; m != nil {
		m.Close()
		d.reloading.metrics = nil
	}
}
