package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// States of a service, see sd_notify(3).
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Alive    = "WATCHDOG=1"
)

// A Notifier tells the service manager what the daemon does. The zero Notifier tells nobody.
type Notifier struct {
	address  string
	watchdog time.Duration
}

// FromEnvironment returns the Notifier of this process, and removes its variables from the environment: child processes are not
// the service.
func FromEnvironment() *Notifier {
	n := fromEnvironment(os.Getenv, os.Getpid())
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		os.Unsetenv(name)
	}
	return n
}

func fromEnvironment(getenv func(string) string, pid int) *Notifier {
	n := &Notifier{}
	// Other address families exist only for virtual machines.
	if a := getenv("NOTIFY_SOCKET"); strings.HasPrefix(a, "/") || strings.HasPrefix(a, "@") {
		n.address = a
	}
	of := getenv("WATCHDOG_PID")
	if usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 && usec < 1<<40 && (of == "" || of == strconv.Itoa(pid)) {
		n.watchdog = time.Duration(usec) * time.Microsecond
	}
	return n
}

// Environment is what makes FromEnvironment of another process return the same Notifier.
func (n *Notifier) Environment() (env []string) {
	if n.address != "" {
		env = append(env, "NOTIFY_SOCKET="+n.address)
	}
	if n.watchdog > 0 {
		env = append(env, fmt.Sprintf("WATCHDOG_USEC=%d", n.watchdog.Microseconds()))
	}
	return env
}

// MainPID says that another process is the service from now on.
func MainPID(pid int) string { return fmt.Sprintf("MAINPID=%d", pid) }

// Used reports whether a service manager listens.
func (n *Notifier) Used() bool { return n.address != "" }

// Send sends assignments such as READY=1 in one datagram.
func (n *Notifier) Send(assignments ...string) error {
	if n.address == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("the service manager: %w", err)
	}
	defer c.Close()
	// A manager that does not read must not stop the daemon.
	c.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte(strings.Join(assignments, "\n"))); err != nil {
		return fmt.Errorf("the service manager: %w", err)
	}
	return nil
}

// Status is the assignment of a line for systemctl status.
func Status(format string, args ...any) string {
	return "STATUS=" + strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")
}

// Reloading is the assignments that begin a reload. Ready ends it. systemd orders them by the monotonic clock.
func Reloading() string {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return "RELOADING=1" // cannot happen: the clock always exists
	}
	return "RELOADING=1\nMONOTONIC_USEC=" + strconv.FormatInt(t.Nano()/1000, 10)
}

// ErrNoProgress is the error of a proof that did not end in time.
var ErrNoProgress = errors.New("the daemon makes no progress")

// Watch pings the watchdog until ctx ends, each time after proof has returned nil. A proof that hangs or fails sends no ping,
// so that the manager restarts a daemon whose goroutines run while its work does not. missed is called for each ping that is not
// sent. Watch returns at once if the manager has no watchdog.
func (n *Notifier) Watch(ctx context.Context, proof func() error, missed func(error)) {
	if n.watchdog == 0 || n.address == "" {
		return
	}
	every := n.watchdog / 3 // sd_watchdog_enabled(3) recommends at most half
	tick := time.NewTicker(every)
	defer tick.Stop()
	done := make(chan error, 1)
	running := false
	for {
		if !running {
			running = true
			go func() { done <- proof() }()
		}
		var err error
		select {
		case err = <-done:
			running = false
		case <-tick.C:
			missed(ErrNoProgress)
			continue
		case <-ctx.Done():
			return
		}
		if err == nil {
			err = n.Send(Alive)
		}
		if err != nil {
			missed(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
