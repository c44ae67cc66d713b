package bench

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

// A server is the other side of a tool, here or on another machine.
type server interface {
	// used is its processor time so far.
	used() (time.Duration, error)
	// end ends it, after a moment in which it may do so by itself, and returns what it said. Asked, it
	// is interrupted first, as by Ctrl-C.
	end(moment time.Duration, asked bool) (said string, used time.Duration)
}

// serve starts a server on the host and waits until it is ready.
func (h *Host) serve(ctx context.Context, w way, port int, argv []string) (server, error) {
	if h.far != nil {
		if h.seen != nil {
			w = w.inGuest()
		}
		return h.far.serve(ctx, w, port, argv)
	}
	s, err := h.lab.start(ctx, w.side(h, argv...))
	if err != nil {
		return nil, err
	}
	// In a guest ctx has no end: who asked would end the guest before he knew why. The server itself may stay longer.
	waiting, cancel := context.WithTimeoutCause(ctx, toolTimeout, tooLong(toolTimeout))
	defer cancel()
	if err := await(waiting, w.ready(h, port), s.ended); err != nil {
		said, _ := s.end(0, false)
		return nil, failure(waiting, argv, err, said)
	}
	return s, nil
}

// started is a process that is watched.
type started struct {
	cmd       *exec.Cmd
	out, said transcript
	ended     chan error
	once      sync.Once
	err       error
}

func (l *Lab) start(ctx context.Context, argv []string) (*started, error) {
	s := &started{cmd: l.command(ctx, argv...), ended: make(chan error, 1)}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.said
	kill := s.cmd.Cancel
	s.cmd.Cancel = func() error {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) { // its time is over
			fmt.Fprintf(&s.said, "\n%s", l.accounts.doing(s.cmd.Process.Pid))
		}
		return kill()
	}
	if err := s.cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s is not installed: vrdma doctor says what to do", title(argv))
		}
		return nil, err
	}
	l.accounts.charge(s.cmd.Process.Pid)
	go func() { s.ended <- s.cmd.Wait() }()
	return s, nil
}

// wait waits for its end.
func (s *started) wait() error {
	s.once.Do(func() { s.err = <-s.ended })
	return s.err
}

// interruption is how long a program may take to print what it counted.
const interruption = 2 * time.Second

func (s *started) end(moment time.Duration, asked bool) (string, time.Duration) {
	s.once.Do(func() {
		if asked {
			syscall.Kill(-s.cmd.Process.Pid, syscall.SIGINT) // it may have ended meanwhile
			moment = interruption
		}
		select {
		case s.err = <-s.ended:
		case <-time.After(moment):
			s.cmd.Cancel() // it may have ended meanwhile
			s.err = <-s.ended
		}
	})
	return s.out.String() + s.said.String(), s.spent()
}

func (s *started) used() (time.Duration, error) { return groupTime(s.cmd.Process.Pid) }

// spent is its processor time, after its end.
func (s *started) spent() time.Duration {
	return s.cmd.ProcessState.UserTime() + s.cmd.ProcessState.SystemTime()
}

// standing starts a program that serves and waits until it is ready. wait waits for its end, stop ends it.
func (l *Lab) standing(ctx context.Context, ready func() bool, argv []string) (wait func() error, stop func(), err error) {
	var said bytes.Buffer
	s := l.command(ctx, argv...)
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
	if err := await(ctx, ready, ended); err != nil {
		stop()
		return nil, nil, failure(ctx, argv, err, said.String())
	}
	wait = func() error {
		if err := <-ended; err != nil {
			return failure(ctx, argv, err, said.String())
		}
		return nil
	}
	return wait, stop, nil
}
