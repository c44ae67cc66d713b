package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A daemon that the lab started, to look at from outside.
type daemon struct {
	cmd *exec.Cmd
	log *os.File
}

// startDaemon starts a daemon in the lab and waits until it answers.
func (l *Lab) startDaemon(ctx context.Context) (*daemon, error) {
	log, err := os.Create(filepath.Join(l.Dir, "daemon.log"))
	if err != nil {
		return nil, err
	}
	d := &daemon{cmd: l.command(ctx, l.Vrdma, "daemon", "--socket", l.Socket), log: log}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		log.Close()
		return nil, err
	}
	for range 500 {
		if _, err = l.Run(ctx, l.Vrdma, "status", "--socket", l.Socket); err == nil {
			return d, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	text, _ := os.ReadFile(log.Name()) // may be empty: then err says enough
	d.stop()
	return nil, fmt.Errorf("the daemon does not answer: %w\n%s", err, lastLines(string(text), 5))
}

// stop ends the daemon and waits for it.
func (d *daemon) stop() {
	d.cmd.Process.Signal(syscall.SIGTERM)
	d.cmd.Wait() // whatever it says, it is gone
	d.log.Close()
}

// cpu is the processor time that the daemon has used.
func (d *daemon) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return parseCPU(string(text))
}

// parseCPU reads utime and stime, fields 14 and 15 of /proc/PID/stat, in ticks of
// 10 ms on every Linux. The name in field 2 may contain anything.
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

// anonymous is the daemon's RssAnon in bytes: what it holds for itself, without
// the rings and registered memory that it shares with programs.
func (d *daemon) anonymous() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	return parseAnonymous(string(text))
}

func parseAnonymous(status string) (float64, error) {
	for line := range strings.Lines(status) {
		if rest, found := strings.CutPrefix(line, "RssAnon:"); found {
			number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			kib, err := strconv.ParseFloat(number, 64)
			return kib * 1024, err
		}
	}
	return 0, errors.New("/proc/PID/status has no RssAnon")
}

// A crowd is many programs that opened the device and wait.
type crowd struct {
	members []*exec.Cmd
	inputs  []io.Closer
}

// gather starts n programs, each with qps idle queue pairs, and waits until all
// are ready.
func (l *Lab) gather(ctx context.Context, idle string, n, qps int) (*crowd, error) {
	c := &crowd{}
	for range n {
		member := l.command(ctx, l.Under(idle, strconv.Itoa(qps))...)
		member.Stderr = os.Stderr
		in, err1 := member.StdinPipe()
		out, err2 := member.StdoutPipe()
		if err := errors.Join(err1, err2); err != nil {
			c.dismiss()
			return nil, err
		}
		if err := member.Start(); err != nil {
			c.dismiss()
			return nil, err
		}
		c.members, c.inputs = append(c.members, member), append(c.inputs, in)
		// One after the other: a hundred programs that start at once only
		// stand in each other's way.
		if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
			c.dismiss()
			return nil, fmt.Errorf("an idle program did not become ready: %q, %w", line, err)
		}
	}
	return c, nil
}

// dismiss ends all programs and waits for them.
func (c *crowd) dismiss() {
	for _, in := range c.inputs {
		in.Close()
	}
	for _, member := range c.members {
		member.Wait() // how it ended is of no interest
	}
}
