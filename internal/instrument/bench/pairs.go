package bench

import (
	"context"
	"errors"
	"fmt"
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

// runPairs runs the servers of jobs, waits until all are ready, and then runs their clients at the same
// time: to their end, or within a frame. Processor time is what the kernel charged each process with when
// it ended, or within the frame.
func runPairs(ctx context.Context, r Route, w way, d driver, jobs []*job, f *frame) ([]couple, error) {
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
