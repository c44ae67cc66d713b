package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"
)

// A couple is a server and its client that have run.
type couple struct {
	output         string        // of the client
	client, server time.Duration // processor time
	commands       [][]string
}

// couples runs n servers, waits until all are ready, and then runs their clients at the same time.
// Processor time is what the kernel charged each process with when it ended.
func (r Route) couples(ctx context.Context, w way, n int, argv func(port int) (server, client []string)) ([]couple, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, toolTimeout, tooLong(toolTimeout))
	defer cancel()
	list := make([]couple, n)
	servers := make([]*started, n)
	clients := make([]*started, n)
	defer func() {
		for _, s := range append(servers, clients...) {
			if s != nil {
				s.end(0)
			}
		}
	}()
	l := r.Server.lab
	for i := range list {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		server, client := argv(port)
		list[i].commands = [][]string{server, client}
		if servers[i], err = l.start(ctx, w.side(r.Server, server...)); err != nil {
			return nil, err
		}
		if err := await(ctx, w.ready(r.Server, port), servers[i].ended); err != nil {
			servers[i].end(0)
			return nil, failure(ctx, server, err, servers[i].said.String())
		}
	}
	for i := range list {
		var err error
		if clients[i], err = l.start(ctx, w.side(r.Client, list[i].commands[1]...)); err != nil {
			return nil, err
		}
	}
	for i, c := range clients {
		err := c.wait()
		if err != nil {
			servers[i].end(0)
			err = failure(ctx, list[i].commands[1], err, c.out.String()+c.said.String())
			if text := lastLines(servers[i].said.String(), 3); text != "" {
				err = fmt.Errorf("%w\nits server said:\n%s", err, text)
			}
			return nil, err
		}
		list[i].output, list[i].client = c.out.String(), c.used()
	}
	for i, s := range servers {
		s.end(200 * time.Millisecond) // a moment to leave by itself
		list[i].server = s.used()
	}
	return list, nil
}

// started is a process that is watched.
type started struct {
	cmd       *exec.Cmd
	out, said bytes.Buffer // said has both of a server's
	ended     chan error
	once      sync.Once
	err       error
}

func (l *Lab) start(ctx context.Context, argv []string) (*started, error) {
	s := &started{cmd: l.command(ctx, argv...), ended: make(chan error, 1)}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.said
	if err := s.cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%s is not installed: vrdma doctor says what to do", title(argv))
		}
		return nil, err
	}
	go func() { s.ended <- s.cmd.Wait() }()
	return s, nil
}

// wait waits for its end.
func (s *started) wait() error {
	s.once.Do(func() { s.err = <-s.ended })
	return s.err
}

// end ends it, after a moment in which it may do so by itself.
func (s *started) end(moment time.Duration) {
	s.once.Do(func() {
		select {
		case s.err = <-s.ended:
		case <-time.After(moment):
			s.cmd.Cancel() // it may have ended meanwhile
			s.err = <-s.ended
		}
	})
}

// used is its processor time, after its end.
func (s *started) used() time.Duration {
	return s.cmd.ProcessState.UserTime() + s.cmd.ProcessState.SystemTime()
}
