package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A pairResult is the result of a server and its client.
type pairResult struct {
	output, serverOutput string        // of client and server
	client, server       time.Duration // processor time
	commands             [][]string
	rows                 []testbed.TimedLine // of the client, inside of the window
}

// A window is the common window of several pairs. It opens when every client has printed a line, and closes before any of them ends.
type window struct {
	length        time.Duration
	open, close   func() error
	opened, ended time.Time
}

// runPairs starts the servers of all jobs, waits until they are ready, and runs the clients at the same time: to their end, or within
// a window. Processor time is what the kernel charged each process until its end, or within the window.
func runPairs(ctx context.Context, r testbed.Route, w testbed.Launcher, d drivers.Driver, jobs []*drivers.Job, f *window) ([]pairResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, testbed.ToolTimeout, testbed.Timeout(testbed.ToolTimeout))
	defer cancel()
	list := make([]pairResult, len(jobs))
	servers := make([]testbed.Server, len(jobs))
	clients := make([]*testbed.Process, len(jobs))
	if argv, _ := d.Commands(jobs[0]); argv == nil && jobs[0].Cell.Share != 0 {
		return nil, fmt.Errorf("%s has no server of its own whose processor could be slowed down: leave share out, or choose another tool", jobs[0].Cell.Tool)
	}
	slowed, err := testbed.LimitServers(jobs[0].Cell.Share, len(jobs))
	if err != nil {
		return nil, err
	}
	sw := slowed.Launcher(w)
	defer func() {
		for i := range jobs {
			if servers[i] != nil {
				servers[i].Stop(0, false)
			}
			if clients[i] != nil {
				clients[i].Stop(0, false)
			}
		}
		slowed.Close() // a group that cannot be removed is reused
	}()
	accounts := r.Client.Lab.Accounting
	if slowed != nil {
		accounts = nil // a process is in one group only
	}
	defer accounts.SetRole("")
	accounts.SetRole("server")
	for i, j := range jobs {
		argv, client := d.Commands(j)
		if f != nil { // else perftest buffers its lines
			client = append([]string{"stdbuf", "-oL"}, client...)
		}
		list[i].commands = [][]string{client}
		if argv == nil {
			continue
		}
		list[i].commands = [][]string{argv, client}
		var err error
		if servers[i], err = j.Route.Server.StartServer(ctx, sw, j.Port, argv); err != nil {
			return nil, err
		}
	}
	accounts.SetRole("client")
	for i := range list {
		var err error
		if clients[i], err = r.Client.Lab.Start(ctx, w.Command(jobs[i].Route.Client, list[i].commands[len(list[i].commands)-1]...)); err != nil {
			return nil, err
		}
	}
	if f != nil {
		return list, f.watch(ctx, list, clients, servers)
	}
	for i, c := range clients {
		err := c.Wait()
		list[i].output, list[i].client = c.Stdout.String(), c.TotalCPUTime()
		if err != nil {
			err = testbed.Failure(ctx, list[i].commands[len(list[i].commands)-1], err, c.Stdout.String()+c.Stderr.String())
			if servers[i] != nil {
				if text, _ := servers[i].Stop(0, false); testbed.LastLines(text, 3) != "" {
					err = fmt.Errorf("%w\nits server said:\n%s", err, testbed.LastLines(text, 3))
				}
			}
			return nil, err
		}
		if list[i].output == "" {
			list[i].output = c.Stderr.String()
		}
	}
	for i, s := range servers {
		if s != nil {
			list[i].serverOutput, list[i].server = s.Stop(200*time.Millisecond, d.Interrupt)
		}
	}
	return list, nil
}

// watch opens the window when every client has printed a line, closes it, and collects the lines inside. Lines are late on a busy
// machine: the window stays open until every client has printed one inside.
func (f *window) watch(ctx context.Context, list []pairResult, clients []*testbed.Process, servers []testbed.Server) error {
	for i, c := range clients {
		if err := testbed.Await(ctx, func() bool { return len(c.Stdout.Between(time.Time{}, time.Now())) > 0 }, c.Ended); err != nil {
			return testbed.Failure(ctx, list[i].commands[1], err, c.Stdout.String()+c.Stderr.String())
		}
	}
	spent := func(sign time.Duration) error {
		for i := range list {
			c := clients[i]
			client, err := testbed.GroupCPUTime(c.Cmd.Process.Pid)
			if err != nil {
				return testbed.Failure(ctx, list[i].commands[1], err, c.Stdout.String()+c.Stderr.String())
			}
			server, err := servers[i].CPUTime()
			if err != nil {
				return testbed.Failure(ctx, list[i].commands[0], err, "")
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
	if err := testbed.Sleep(ctx, f.length); err != nil {
		return testbed.Failure(ctx, list[0].commands[1], err, "")
	}
	// A line is about the second before it.
	from := f.opened.Add(time.Second)
	for i, c := range clients {
		if err := testbed.Await(ctx, func() bool { return len(c.Stdout.Between(from, time.Now())) > 0 }, c.Ended); err != nil {
			return testbed.Failure(ctx, list[i].commands[1], err, c.Stdout.String()+c.Stderr.String())
		}
	}
	f.ended = time.Now()
	if err := errors.Join(spent(1), f.close()); err != nil {
		return err
	}
	for i, c := range clients {
		select {
		case err := <-c.Ended:
			c.Ended <- err
			return testbed.Failure(ctx, list[i].commands[1], testbed.ErrEnded, c.Stdout.String()+c.Stderr.String())
		default:
		}
		list[i].output = c.Stdout.String()
		list[i].rows = c.Stdout.Between(from, f.ended)
	}
	return nil
}
