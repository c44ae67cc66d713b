package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// runGuestPairs is couples where both sides run in guests: the clients are one question.
func runGuestPairs(ctx context.Context, r Route, w way, d driver, jobs []*job) ([]couple, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout, tooLong(guestTimeout))
	defer cancel()
	list := make([]couple, len(jobs))
	servers := make([]server, len(jobs))
	defer func() {
		for _, s := range servers {
			if s != nil {
				s.end(0, false)
			}
		}
	}()
	commands := make(map[*agent][][]string) // of each guest with clients
	var guests []*agent
	for i, j := range jobs {
		argv, client := d.commands(j)
		at := j.route.Client.far
		if commands[at] == nil {
			guests = append(guests, at)
		}
		commands[at] = append(commands[at], client)
		if list[i].commands = [][]string{client}; argv == nil {
			continue
		}
		list[i].commands = [][]string{argv, client}
		var err error
		if servers[i], err = j.route.Server.serve(ctx, w, j.port, argv); err != nil {
			return nil, err
		}
	}
	done, err := runClients(ctx, w, guests, commands)
	if err != nil {
		return nil, err
	}
	for i, j := range jobs {
		at := j.route.Client.far
		one := done[at][0]
		done[at] = done[at][1:]
		if one.Error != "" {
			err := errors.New(one.Error)
			if servers[i] != nil {
				if text, _ := servers[i].end(0, false); lastLines(text, 3) != "" {
					err = fmt.Errorf("%w\nits server said:\n%s", err, lastLines(text, 3))
				}
			}
			return nil, err
		}
		list[i].output, list[i].client = one.Output, time.Duration(one.Seconds*float64(time.Second))
	}
	for i, s := range servers {
		if s != nil {
			list[i].said, list[i].server = s.end(200*time.Millisecond, d.asked)
		}
	}
	return list, nil
}
