package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Daemon is a daemon that the lab started.
type Daemon struct {
	Cmd   *exec.Cmd
	log   *os.File
	ended chan struct{}
}

// Start starts the host's daemon and waits until it answers.
func (h *Host) Start(ctx context.Context, args ...string) (*Daemon, error) {
	l := h.Lab
	log, err := os.Create(h.Socket + ".log")
	if err != nil {
		return nil, err
	}
	argv := append([]string{l.Vrdma, "daemon", "--socket", h.Socket}, args...)
	d := &Daemon{Cmd: l.Command(ctx, h.At(argv...)...), log: log, ended: make(chan struct{})}
	d.Cmd.Stdout, d.Cmd.Stderr = log, log
	if err := d.Cmd.Start(); err != nil {
		log.Close()
		return nil, err
	}
	l.Accounting.SetRole("daemon")
	l.Accounting.charge(d.Cmd.Process.Pid)
	l.Accounting.SetRole("")
	go func() {
		d.Cmd.Wait() // its log says more than its status
		close(d.ended)
	}()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); { // long: the machine may be busy
		if _, err = h.Status(ctx); err == nil {
			return d, nil
		}
		select {
		case <-d.ended:
			err = ErrEnded
		case <-time.After(10 * time.Millisecond):
			continue
		}
		break
	}
	d.Stop()
	text, _ := os.ReadFile(log.Name()) // an empty log is fine: err says why
	return nil, fmt.Errorf("the daemon does not answer: %w\n%s", err, LastLines(string(text), 5))
}

// Stop ends the daemon and waits for it.
func (d *Daemon) Stop() {
	d.Cmd.Process.Signal(syscall.SIGTERM)
	<-d.ended
	d.log.Close()
}

// CPUTime returns the processor time that the daemon has used, in ticks.
func (d *Daemon) CPUTime() (time.Duration, error) { return cpuTime(d.Cmd.Process.Pid) }

// cpuTime returns the processor time that a process has used, in ticks.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(text))
}

// parseCPU reads utime and stime, fields 14 and 15 of /proc/PID/stat, in ticks of 10 ms. The name in field 2 may contain any
// character.
func parseCPU(stat string) (time.Duration, error) {
	_, rest, found := strings.Cut(stat[max(0, strings.LastIndexByte(stat, ')')):], ") ")
	words := strings.Fields(rest)
	if !found || len(words) < 13 {
		return 0, fmt.Errorf("/proc/PID/stat holds %q", stat)
	}
	user, err1 := strconv.ParseInt(words[11], 10, 64)
	system, err2 := strconv.ParseInt(words[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return 0, err
	}
	return time.Duration(user+system) * 10 * time.Millisecond, nil
}

// AnonymousMemory returns the daemon's RssAnon in bytes: its own memory, without the rings and registered memory that it shares with
// programs.
func (d *Daemon) AnonymousMemory() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return parseMemory(string(text), "RssAnon")
}

// preciseCPUTime returns the daemon's processor time from schedstat, in nanoseconds. Without schedstat it returns CPUTime.
func (d *Daemon) preciseCPUTime() (total time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", d.Cmd.Process.Pid))
	if err != nil || len(files) == 0 {
		return d.CPUTime()
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		word, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return d.CPUTime()
		}
		total += time.Duration(n)
	}
	return total, nil
}
