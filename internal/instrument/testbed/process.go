package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// A Server is the server of a tool, here or on another machine.
type Server interface {
	// CPUTime returns its processor time until now.
	CPUTime() (time.Duration, error)
	// Stop waits for the grace period moment, ends the server and returns its output and processor time. With asked it first sends
	// an interrupt, as Ctrl-C does.
	Stop(moment time.Duration, asked bool) (said string, used time.Duration)
}

// StartServer starts a server on the host and waits until it is ready.
func (h *Host) StartServer(ctx context.Context, w Launcher, port int, argv []string) (Server, error) {
	if h.Agent != nil {
		if h.DaemonSide != nil {
			w = w.inGuest()
		}
		return h.Agent.startServer(ctx, w, port, argv)
	}
	s, err := h.Lab.Start(ctx, w.Command(h, argv...))
	if err != nil {
		return nil, err
	}
	// In a guest ctx has no deadline: without this one the host would end the guest before it knew the reason. The limit is for
	// becoming ready only.
	waiting, cancel := context.WithTimeoutCause(ctx, ToolTimeout, Timeout(ToolTimeout))
	defer cancel()
	if err := Await(waiting, w.Ready(h, port), s.Ended); err != nil {
		said, _ := s.Stop(0, false)
		return nil, Failure(waiting, argv, err, said)
	}
	return s, nil
}

// A Process is a started program and its output.
type Process struct {
	Cmd            *exec.Cmd
	Stdout, Stderr Transcript
	Ended          chan error
	once           sync.Once
	err            error
}

// Start starts a program of the current role. If it times out, its output says what it was doing.
func (l *Lab) Start(ctx context.Context, argv []string) (*Process, error) {
	s := &Process{Cmd: l.Command(ctx, argv...), Ended: make(chan error, 1)}
	s.Cmd.Stdout, s.Cmd.Stderr = &s.Stdout, &s.Stderr
	kill := s.Cmd.Cancel
	s.Cmd.Cancel = func() error {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) { // it timed out
			fmt.Fprintf(&s.Stderr, "\n%s", l.Accounting.activity(s.Cmd.Process.Pid))
		}
		return kill()
	}
	if err := s.Cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s is not installed: vrdma doctor says what to do", commandTitle(argv))
		}
		return nil, err
	}
	l.Accounting.charge(s.Cmd.Process.Pid)
	go func() { s.Ended <- s.Cmd.Wait() }()
	return s, nil
}

// Wait waits for its end.
func (s *Process) Wait() error {
	s.once.Do(func() { s.err = <-s.Ended })
	return s.err
}

// interruptTimeout is how long an interrupted program may take to print its results.
const interruptTimeout = 2 * time.Second

// Stop waits for the grace period moment, ends the process and returns its output and processor time. With asked it first sends
// an interrupt.
func (s *Process) Stop(moment time.Duration, asked bool) (string, time.Duration) {
	s.once.Do(func() {
		if asked {
			syscall.Kill(-s.Cmd.Process.Pid, syscall.SIGINT) // it may have ended
			moment = interruptTimeout
		}
		select {
		case s.err = <-s.Ended:
		case <-time.After(moment):
			s.Cmd.Cancel() // it may have ended
			s.err = <-s.Ended
		}
	})
	return s.Stdout.String() + s.Stderr.String(), s.TotalCPUTime()
}

// CPUTime returns the processor time of its process group until now.
func (s *Process) CPUTime() (time.Duration, error) { return GroupCPUTime(s.Cmd.Process.Pid) }

// TotalCPUTime returns its processor time after its end.
func (s *Process) TotalCPUTime() time.Duration {
	return s.Cmd.ProcessState.UserTime() + s.Cmd.ProcessState.SystemTime()
}

// StartServer starts a server and waits until it is ready. wait waits for its end, stop ends it.
func (l *Lab) StartServer(ctx context.Context, ready func() bool, argv []string) (wait func() error, stop func(), err error) {
	var said bytes.Buffer
	s := l.Command(ctx, argv...)
	s.Stdout, s.Stderr = &said, &said
	if err := s.Start(); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	stop = sync.OnceFunc(func() {
		s.Cancel()
		<-ended
	})
	if err := Await(ctx, ready, ended); err != nil {
		stop()
		return nil, nil, Failure(ctx, argv, err, said.String())
	}
	wait = func() error {
		if err := <-ended; err != nil {
			return Failure(ctx, argv, err, said.String())
		}
		return nil
	}
	return wait, stop, nil
}
