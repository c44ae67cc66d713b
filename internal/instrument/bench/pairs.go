package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// A couple is a server and its client that have run.
type couple struct {
	output, said   string        // of client and server
	client, server time.Duration // processor time
	commands       [][]string
	rows           []stampedLine // of the client, inside of the window
}

// A frame is the common window of several pairs: all have begun to report before it opens, and none ends
// before it closes.
type frame struct {
	length        time.Duration
	open, close   func() error
	opened, ended time.Time
}

// A server is the other side of a tool, here or on another machine.
type server interface {
	// used is its processor time so far.
	used() (time.Duration, error)
	// end ends it, after a moment in which it may do so by itself, and returns what it said. Asked, it
	// is interrupted first, as by Ctrl-C.
	end(moment time.Duration, asked bool) (said string, used time.Duration)
}

// couples runs the servers of jobs, waits until all are ready, and then runs their clients at the same
// time: to their end, or within a frame. Processor time is what the kernel charged each process with when
// it ended, or within the frame.
func (r Route) couples(ctx context.Context, w way, d driver, jobs []*job, f *frame) ([]couple, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, toolTimeout, tooLong(toolTimeout))
	defer cancel()
	list := make([]couple, len(jobs))
	servers := make([]server, len(jobs))
	clients := make([]*started, len(jobs))
	if argv, _ := d.commands(jobs[0]); argv == nil && jobs[0].cell.Share != 0 {
		return nil, fmt.Errorf("%s has no server of its own whose processor could be slowed down: leave share out, or choose another tool", jobs[0].cell.Tool)
	}
	slowed, err := slow(jobs[0].cell.Share, len(jobs))
	if err != nil {
		return nil, err
	}
	sw := slowed.way(w)
	defer func() {
		for i := range jobs {
			if servers[i] != nil {
				servers[i].end(0, false)
			}
			if clients[i] != nil {
				clients[i].end(0, false)
			}
		}
		slowed.done() // a group that cannot be removed now is removed by whoever makes it again
	}()
	accounts := r.Client.lab.accounts
	if slowed != nil {
		accounts = nil // a program is in one group
	}
	defer accounts.is("")
	accounts.is("server")
	for i, j := range jobs {
		argv, client := d.commands(j)
		if f != nil { // or perftest would keep its lines to itself
			client = append([]string{"stdbuf", "-oL"}, client...)
		}
		list[i].commands = [][]string{client}
		if argv == nil {
			continue
		}
		list[i].commands = [][]string{argv, client}
		var err error
		if servers[i], err = j.route.Server.serve(ctx, sw, j.port, argv); err != nil {
			return nil, err
		}
	}
	accounts.is("client")
	for i := range list {
		var err error
		if clients[i], err = r.Client.lab.start(ctx, w.side(jobs[i].route.Client, list[i].commands[len(list[i].commands)-1]...)); err != nil {
			return nil, err
		}
	}
	if f != nil {
		return list, f.watch(ctx, list, clients, servers)
	}
	for i, c := range clients {
		err := c.wait()
		list[i].output, list[i].client = c.out.String(), c.spent()
		if err != nil {
			err = failure(ctx, list[i].commands[len(list[i].commands)-1], err, c.out.String()+c.said.String())
			if servers[i] != nil {
				if text, _ := servers[i].end(0, false); lastLines(text, 3) != "" {
					err = fmt.Errorf("%w\nits server said:\n%s", err, lastLines(text, 3))
				}
			}
			return nil, err
		}
		if list[i].output == "" {
			list[i].output = c.said.String()
		}
	}
	for i, s := range servers {
		if s != nil {
			list[i].said, list[i].server = s.end(200*time.Millisecond, d.asked)
		}
	}
	return list, nil
}

// watch opens the frame when every client has reported, closes it, and takes what they reported inside. On a
// busy machine lines come late: it stays open until every client has said something of the time inside.
func (f *frame) watch(ctx context.Context, list []couple, clients []*started, servers []server) error {
	for i, c := range clients {
		if err := await(ctx, func() bool { return len(c.out.between(time.Time{}, time.Now())) > 0 }, c.ended); err != nil {
			return failure(ctx, list[i].commands[1], err, c.out.String()+c.said.String())
		}
	}
	spent := func(sign time.Duration) error {
		for i := range list {
			c := clients[i]
			client, err := groupTime(c.cmd.Process.Pid)
			if err != nil {
				return failure(ctx, list[i].commands[1], err, c.out.String()+c.said.String())
			}
			server, err := servers[i].used()
			if err != nil {
				return failure(ctx, list[i].commands[0], err, "")
			}
			list[i].client += sign * client
			list[i].server += sign * server
		}
		return nil
	}
	if err := errors.Join(f.open(), spent(-1)); err != nil {
		return err
	}
	f.opened = time.Now()
	if err := wait(ctx, f.length); err != nil {
		return failure(ctx, list[0].commands[1], err, "")
	}
	// A line is about the second before it.
	from := f.opened.Add(time.Second)
	for i, c := range clients {
		if err := await(ctx, func() bool { return len(c.out.between(from, time.Now())) > 0 }, c.ended); err != nil {
			return failure(ctx, list[i].commands[1], err, c.out.String()+c.said.String())
		}
	}
	f.ended = time.Now()
	if err := errors.Join(spent(1), f.close()); err != nil {
		return err
	}
	for i, c := range clients {
		select {
		case err := <-c.ended:
			c.ended <- err
			return failure(ctx, list[i].commands[1], errEnded, c.out.String()+c.said.String())
		default:
		}
		list[i].output = c.out.String()
		list[i].rows = c.out.between(from, f.ended)
	}
	return nil
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
