package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// runGuestPairs is couples where both sides run in guests: the clients are one question.
func runGuestPairs(ctx context.Context, r Route, w Launcher, d Driver, jobs []*Job) ([]pairResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, GuestTimeout, Timeout(GuestTimeout))
	defer cancel()
	list := make([]pairResult, len(jobs))
	servers := make([]Server, len(jobs))
	defer func() {
		for _, s := range servers {
			if s != nil {
				s.Stop(0, false)
			}
		}
	}()
	commands := make(map[*Agent][][]string) // of each guest with clients
	var guests []*Agent
	for i, j := range jobs {
		argv, client := d.Commands(j)
		at := j.Route.Client.Agent
		if commands[at] == nil {
			guests = append(guests, at)
		}
		commands[at] = append(commands[at], client)
		if list[i].commands = [][]string{client}; argv == nil {
			continue
		}
		list[i].commands = [][]string{argv, client}
		var err error
		if servers[i], err = j.Route.Server.StartServer(ctx, w, j.Port, argv); err != nil {
			return nil, err
		}
	}
	done, err := RunClients(ctx, w, guests, commands)
	if err != nil {
		return nil, err
	}
	for i, j := range jobs {
		at := j.Route.Client.Agent
		one := done[at][0]
		done[at] = done[at][1:]
		if one.Error != "" {
			err := errors.New(one.Error)
			if servers[i] != nil {
				if text, _ := servers[i].Stop(0, false); LastLines(text, 3) != "" {
					err = fmt.Errorf("%w\nits server said:\n%s", err, LastLines(text, 3))
				}
			}
			return nil, err
		}
		list[i].output, list[i].client = one.Output, time.Duration(one.Seconds*float64(time.Second))
	}
	for i, s := range servers {
		if s != nil {
			list[i].serverOutput, list[i].server = s.Stop(200*time.Millisecond, d.Interrupt)
		}
	}
	return list, nil
}
