package probe

import (
	"context"
	"fmt"
	"syscall"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// On returns a probe whose name says where it runs.
func On(p Probe, where string) Probe {
	p.Name += ", " + where
	return p
}

// BesideBurner returns a probe that runs while burner (programs/burn.c) keeps the processors busy.
func BesideBurner(l *testbed.Lab, p Probe, burner []string) Probe {
	return BesideProgram(l, p, "awake", burner)
}

// BesideProgram returns a probe that runs beside a program. The program prints "ready" and ends with its input.
func BesideProgram(l *testbed.Lab, p Probe, name string, argv []string) Probe {
	measure := p.Measure
	p = On(p, name)
	p.Measure = func(ctx context.Context) (drivers.Reading, error) {
		other, err := l.StartReady(ctx, argv...)
		if err != nil {
			return drivers.Reading{}, err
		}
		defer other.Stop()
		return measure(ctx)
	}
	return p
}

// Without returns a probe that runs while the daemons are stopped. A running daemon could keep a processor awake and so make sleeping
// programs of TCP faster.
func (p Probe) Without(daemons ...*testbed.Daemon) Probe {
	measure := p.Measure
	p.Measure = func(ctx context.Context) (drivers.Reading, error) {
		for _, d := range daemons {
			if err := d.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				return drivers.Reading{}, fmt.Errorf("cannot stop the daemon: %w", err)
			}
			defer d.Cmd.Process.Signal(syscall.SIGCONT)
		}
		return measure(ctx)
	}
	return p
}
