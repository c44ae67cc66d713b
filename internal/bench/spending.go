package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
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

// backgroundTime is how long the machine is watched before something is measured.
const backgroundTime = 200 * time.Millisecond

// spent is the processor time that f takes. The programs that it starts have ended when it
// returns, or they do not count.
func spent(ctx context.Context, daemons []*daemon, f func(context.Context) error) (spending, error) {
	var at [3]account // before the background, after it, and after f
	look := func(i int) (err error) {
		at[i], err = readAccount(daemons)
		return err
	}
	if err := look(0); err != nil {
		return spending{}, err
	}
	if err := wait(ctx, backgroundTime); err != nil {
		return spending{}, err
	}
	if err := look(1); err != nil {
		return spending{}, err
	}
	if err := f(ctx); err != nil {
		return spending{}, err
	}
	if err := look(2); err != nil {
		return spending{}, err
	}
	return settle(at), nil
}

// An account is processor time in seconds, up to a moment.
type account struct {
	at              float64 // the moment
	processes, busy float64
}

// settle is what was spent between the last two accounts, less the machine's background
// between the first two.
func settle(at [3]account) spending {
	background := (at[1].busy - at[0].busy) / (at[1].at - at[0].at)
	return spending{
		processes: at[2].processes - at[1].processes,
		machine:   at[2].busy - at[1].busy - background*(at[2].at-at[1].at),
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

// parseBusy reads how long all processors together were busy, in seconds, from /proc/stat:
// user, nice, system, irq and softirq, in ticks of 10 ms on every Linux. The time that a
// hypervisor kept for others (steal) is not ours, and guests' time is in user already.
func parseBusy(stat string) (float64, error) {
	line, _, _ := strings.Cut(stat, "\n")
	words := strings.Fields(line)
	if len(words) < 8 || words[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q, want cpu and its times", line)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(words[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		ticks += n
	}
	const perSecond = 100
	return float64(ticks) / perSecond, nil
}
