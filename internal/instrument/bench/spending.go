package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A spending is processor time in seconds.
type spending struct {
	// processes is what the kernel charged the programs and the daemons with. What it does
	// for them in interrupts (softirq) is charged to whoever runs there and then, or nobody.
	processes float64
	// machine is how long processors were busy, whoever with, less what they are when nothing
	// is measured.
	machine float64
}

func (s spending) minus(o spending) spending {
	return spending{s.processes - o.processes, s.machine - o.machine}
}

// backgroundTime is how long the machine is watched while nothing is measured. The
// kernel counts in ticks of 10 ms: it must not be short.
const backgroundTime = time.Second

// background is how busy the machine is when nothing is measured, in processors.
func background(ctx context.Context) (float64, error) {
	before, err := readAccount(nil)
	if err != nil {
		return 0, err
	}
	if err := wait(ctx, backgroundTime); err != nil {
		return 0, err
	}
	after, err := readAccount(nil)
	return (after.busy - before.busy) / (after.at - before.at), err
}

// spent is the processor time that f takes while the machine is busy with other things,
// too. The programs that it starts have ended when it returns, or they do not count.
func spent(ctx context.Context, background float64, daemons []*daemon, f func(context.Context) error) (spending, error) {
	before, err := readAccount(daemons)
	if err != nil {
		return spending{}, err
	}
	if err := f(ctx); err != nil {
		return spending{}, err
	}
	after, err := readAccount(daemons)
	return between(before, after, background), err
}

// An account is processor time in seconds, up to a moment.
type account struct {
	at              float64 // the moment
	processes, busy float64
}

// between is what was spent between two accounts, less the machine's background.
func between(before, after account, background float64) spending {
	return spending{
		processes: after.processes - before.processes,
		machine:   after.busy - before.busy - background*(after.at-before.at),
	}
}

// readAccount is the processor time of our children that have ended, of the daemons and
// of the machine, up to now.
func readAccount(daemons []*daemon) (a account, err error) {
	var children syscall.Rusage
	stat, err1 := os.ReadFile("/proc/stat")
	err2 := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children)
	if err := errors.Join(err1, err2); err != nil {
		return account{}, err
	}
	if a.busy, err = parseBusy(string(stat)); err != nil {
		return account{}, err
	}
	for _, d := range daemons {
		used, err := d.cpu()
		if err != nil {
			return account{}, err
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
	return t.Busy / ticksPerSecond, err
}

// calmShare is how busy a machine may be that counts as idle, in processors.
const calmShare = 0.05

// bustle is a note about a machine that is not idle when it should be: TCP's programs
// sleep less deeply on it, and look faster.
func bustle(background float64) string {
	if background <= calmShare {
		return ""
	}
	return fmt.Sprintf("the machine was not idle: others used %.0f %% of a processor before or after this was measured", 100*background)
}
