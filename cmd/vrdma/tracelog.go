package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// traceLog writes records as lines and collects the data of the summary.
type traceLog struct {
	w        io.Writer
	start    time.Time // of the first record
	open     int       // sessions
	commands int
	failed   int
	lost     uint64
	refused  map[string]int
	spent    time.Duration
}

func newTraceLog(w io.Writer) *traceLog {
	return &traceLog{w: w, refused: make(map[string]int)}
}

func (l *traceLog) add(r *protocol.TraceRecord) {
	if l.start.IsZero() {
		l.start = r.Time
	}
	if r.Lost > 0 {
		l.lost += r.Lost
		fmt.Fprintf(l.w, "... %d commands came too fast to be shown\n", r.Lost)
	}
	switch r.Command {
	case protocol.TraceOpen:
		l.open++
	case protocol.TraceClose:
		l.open--
	default:
		l.commands++
		l.spent += r.Duration
		if r.Errno != 0 {
			l.failed++
		}
		if r.Refused {
			l.refused[r.Command]++
		}
	}
	fmt.Fprintln(l.w, l.line(r))
}

// line formats one record: time, process, command, result, duration.
func (l *traceLog) line(r *protocol.TraceRecord) string {
	text := fmt.Sprintf("%10.3f ms %s[%d.%d] ", float64(r.Time.Sub(l.start))/1e6, r.Program, r.Pid, r.Session)
	if r.Command == protocol.TraceOpen || r.Command == protocol.TraceClose {
		return text + r.Command + " " + r.Args
	}
	text += r.Command + "(" + r.Args + ")"
	switch {
	case r.Refused:
		text += " = " + r.Error + " NOT SUPPORTED"
	case r.Errno != 0:
		text += " = " + r.Error
	case r.Result != "":
		text += " = " + r.Result
	default:
		text += " = ok"
	}
	return text + fmt.Sprintf("  %.1f us", float64(r.Duration)/1e3)
}

// finish writes the summary.
func (l *traceLog) finish() {
	if l.start.IsZero() {
		fmt.Fprintln(l.w, "vrdma trace: the program did not open the device")
		return
	}
	fmt.Fprintf(l.w, "vrdma trace: %d commands, %d failed, %.3f ms in the daemon\n", l.commands, l.failed, float64(l.spent)/1e6)
	if l.lost > 0 {
		fmt.Fprintf(l.w, "vrdma trace: %d more came too fast to be shown\n", l.lost)
	}
	if len(l.refused) == 0 {
		fmt.Fprintln(l.w, "vrdma trace: nothing was refused as unsupported")
		return
	}
	fmt.Fprintln(l.w, "vrdma trace: refused as unsupported:")
	for _, name := range slices.Sorted(maps.Keys(l.refused)) {
		fmt.Fprintf(l.w, "  %6d x %s\n", l.refused[name], name)
	}
}
