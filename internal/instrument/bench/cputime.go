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

// cpuSeconds is processor time in seconds.
type cpuSeconds struct {
	// processes is what the kernel charged the programs and the daemons. Work in interrupts (softirq) is charged to the task that
	// happens to run, or to none.
	processes float64
	// machine is how long all processors were busy, less the background.
	machine float64
}

func (s cpuSeconds) minus(o cpuSeconds) cpuSeconds {
	return cpuSeconds{s.processes - o.processes, s.machine - o.machine}
}

// backgroundTime is how long the background is measured. The kernel counts in ticks of 10 ms, so it must not be short.
const backgroundTime = time.Second

// background measures how busy the machine is while nothing is measured, in processors.
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

// cpuTimeOf returns the processor time that f uses. Programs that f starts count only if they have ended when it returns.
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

// A cpuReading is processor time in seconds until now.
type cpuReading struct {
	at              float64 // the time of the reading
	processes, busy float64
}

// between returns the difference of two readings, less the background.
func between(before, after cpuReading, background float64) cpuSeconds {
	return cpuSeconds{
		processes: after.processes - before.processes,
		machine:   after.busy - before.busy - background*(after.at-before.at),
	}
}

// readCPU reads the processor time of our ended children, of the daemons and of the machine.
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

// parseBusy reads from /proc/stat how long all processors together were busy, in seconds.
func parseBusy(stat string) (float64, error) {
	t, err := experiment.ParseTicks(stat)
	return t.Busy / testbed.TicksPerSecond, err
}

// calmShare is how busy an idle machine may be, in processors.
const calmShare = 0.05

// busyNote notes that the machine was not idle: sleeping TCP programs then wake up faster.
func busyNote(background float64) string {
	if background <= calmShare {
		return ""
	}
	return fmt.Sprintf("the machine was not idle: others used %.0f %% of a processor before or after this was measured", 100*background)
}
