package daemon

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/exit"
)

const (
	// mostLoops bounds the number of loops.
	mostLoops = 64
	// autoLoops is the value of --loops for as many loops as the traffic needs, and mostAuto their largest number.
	autoLoops = "auto"
	mostAuto  = 8
)

// parseLoops reads a number of loops.
func parseLoops(text string) (n int, auto bool, err error) {
	if text == autoLoops {
		return min(runtime.GOMAXPROCS(0), mostAuto), true, nil // it knows the process's processors and its cgroup's limit
	}
	if n, err = strconv.Atoi(text); err != nil || n < 1 || n > mostLoops {
		return 0, false, fmt.Errorf("want auto, or a number from 1 to %d", mostLoops)
	}
	return n, false, nil
}

func checkLoops(text string) error {
	_, _, err := parseLoops(text)
	return err
}

// countLoops returns the number of loops; auto: it is the largest number.
func (o *Options) countLoops() (n int, auto bool, err error) {
	text, name := o.Loops, "--loops"
	if text == "" {
		text, name = os.Getenv("VRDMA_LOOPS"), "VRDMA_LOOPS="
	}
	if text == "" && o.Ephemeral {
		text = autoLoops
	}
	if text == "" {
		return 1, false, nil
	}
	if n, auto, err = parseLoops(text); err != nil {
		return 0, false, exit.Usage("%s %s: %w", name, text, err)
	}
	return n, auto, nil
}

// Loops implements diag.Operation.
func (d *daemon) Loops() (list []protocol.LoopStatus, moves uint64) {
	d.engine.Do(func() { // fails only after the loop has ended
		all, n := d.engine.LoopStatus()
		for _, l := range all {
			list = append(list, protocol.LoopStatus{Number: l.Number, Used: l.Used, Sessions: l.Sessions, Busy: time.Duration(l.Busy), Across: l.Across, AcrossLost: l.Lost})
		}
		moves = n
	})
	return list, moves
}

// MoveProcess implements diag.Operation.
func (d *daemon) MoveProcess(pid, loop int) (err error) {
	if failed := d.engine.Do(func() { err = d.engine.MoveProcess(pid, loop) }); failed != nil {
		return failed
	}
	return err
}
