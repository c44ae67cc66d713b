package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A cpuSeconds is processor time in seconds.
type cpuSeconds struct {
	// processes is what the kernel charged the programs and the daemons with. What it does
	// for them in interrupts (softirq) is charged to whoever runs there and then, or nobody.
	processes float64
	// machine is how long processors were busy, whoever with, less what they are when nothing
	// is measured.
	machine float64
}

func (s cpuSeconds) minus(o cpuSeconds) cpuSeconds {
	return cpuSeconds{s.processes - o.processes, s.machine - o.machine}
}

// backgroundTime is how long the machine is watched while nothing is measured. The
// kernel counts in ticks of 10 ms: it must not be short.
const backgroundTime = time.Second

// background is how busy the machine is when nothing is measured, in processors.
func background(ctx context.Context) (float64, error) {
	before, err := readCPU(nil)
	if err != nil {
		return 0, err
	}
	if err := testbed.Sleep(ctx, backgroundTime); err != nil {
		return 0, err
	}
	after, err := readCPU(nil)
	return (after.busy - before.busy) / (after.at - before.at), err
}

// cpuTimeOf is the processor time that f takes while the machine is busy with other things,
// too. The programs that it starts have ended when it returns, or they do not count.
func cpuTimeOf(ctx context.Context, background float64, daemons []*testbed.Daemon, f func(context.Context) error) (cpuSeconds, error) {
	before, err := readCPU(daemons)
	if err != nil {
		return cpuSeconds{}, err
	}
	if err := f(ctx); err != nil {
		return cpuSeconds{}, err
	}
	after, err := readCPU(daemons)
	return between(before, after, background), err
}

// An cpuReading is processor time in seconds, up to a moment.
type cpuReading struct {
	at              float64 // the moment
	processes, busy float64
}

// between is what was spent between two accounts, less the machine's background.
func between(before, after cpuReading, background float64) cpuSeconds {
	return cpuSeconds{
		processes: after.processes - before.processes,
		machine:   after.busy - before.busy - background*(after.at-before.at),
	}
}

// readCPU is the processor time of our children that have ended, of the daemons and
// of the machine, up to now.
func readCPU(daemons []*testbed.Daemon) (a cpuReading, err error) {
	var children syscall.Rusage
	stat, err1 := os.ReadFile("/proc/stat")
	err2 := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children)
	if err := errors.Join(err1, err2); err != nil {
		return cpuReading{}, err
	}
	if a.busy, err = parseBusy(string(stat)); err != nil {
		return cpuReading{}, err
	}
	for _, d := range daemons {
		used, err := d.CPUTime()
		if err != nil {
			return cpuReading{}, err
		}
		a.processes += used.Seconds()
	}
	a.processes += time.Duration(children.Utime.Nano() + children.Stime.Nano()).Seconds()
	a.at = float64(time.Now().UnixNano()) / 1e9
	return a, nil
}

// parseBusy reads how long all processors together were busy, in seconds, from /proc/stat.
func parseBusy(stat string) (float64, error) {
	t, err := experiment.ParseTicks(stat)
	return t.Busy / testbed.TicksPerSecond, err
}

// calmShare is how busy a machine may be that counts as idle, in processors.
const calmShare = 0.05

// busyNote is a note about a machine that is not idle when it should be: TCP's programs
// sleep less deeply on it, and look faster.
func busyNote(background float64) string {
	if background <= calmShare {
		return ""
	}
	return fmt.Sprintf("the machine was not idle: others used %.0f %% of a processor before or after this was measured", 100*background)
}
