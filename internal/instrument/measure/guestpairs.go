package measure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// runGuestPairs is runPairs with both sides in guests: the clients of a guest are one request.
func runGuestPairs(ctx context.Context, r testbed.Route, w testbed.Launcher, d drivers.Driver, jobs []*drivers.Job) ([]pairResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, testbed.GuestTimeout, testbed.Timeout(testbed.GuestTimeout))
	defer cancel()
	list := make([]pairResult, len(jobs))
	servers := make([]testbed.Server, len(jobs))
	defer func() {
		for _, s := range servers {
			if s != nil {
				s.Stop(0, false)
			}
		}
	}()
	commands := make(map[*testbed.Agent][][]string) // of each guest with clients
	var guests []*testbed.Agent
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
	done, err := testbed.RunClients(ctx, w, guests, commands)
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
				if text, _ := servers[i].Stop(0, false); testbed.LastLines(text, 3) != "" {
					err = fmt.Errorf("%w\nits server said:\n%s", err, testbed.LastLines(text, 3))
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
