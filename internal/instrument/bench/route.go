package bench

import (
	"context"
	"errors"
	"fmt"
)

// A Route is the hosts of a server and of its client, which may be one.
type Route struct{ Server, Client *Host }

// loop is a route that stays on a host.
func (h *Host) loop() Route { return Route{h, h} }

// pair runs a server and its client.
func (r Route) pair(ctx context.Context, w way, port int, server, client []string) (string, error) {
	if r.Client.far != nil {
		return r.farPair(ctx, w, port, server, client)
	}
	return r.Server.lab.Pair(ctx, w.ready(r.Server, port), w.side(r.Server, server...), w.side(r.Client, client...))
}

// farPair is pair with a client in a guest.
func (r Route) farPair(ctx context.Context, w way, port int, server, client []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout, tooLong(guestTimeout))
	defer cancel()
	s, err := r.Server.serve(ctx, w, port, server)
	if err != nil {
		return "", err
	}
	defer s.end(0, false)
	got, err := r.Client.far.ask(ctx, question{Run: [][]string{client}, Way: w.name, Limit: toolTimeout})
	if err != nil {
		return "", err
	}
	if len(got.Finished) != 1 {
		return "", errors.New("the guest ran no client")
	}
	if one := got.Finished[0]; one.Error != "" {
		said, _ := s.end(0, false)
		return "", fmt.Errorf("%s\nits server said:\n%s", one.Error, lastLines(said, 3))
	}
	return got.Finished[0].Output, nil
}

// vxlan makes a tunnel of the kernel's between the hosts, and is the route through it.
func (r Route) vxlan(ctx context.Context) (Route, error) {
	over := Route{}
	for i, side := range []struct {
		at, other *Host
		to        **Host
	}{{r.Client, r.Server, &over.Client}, {r.Server, r.Client, &over.Server}} {
		if side.at.far != nil || side.at.pid == 0 {
			return over, errors.New("an overlay is made between namespaces only")
		}
		h := *side.at
		h.IP, h.eth = fmt.Sprintf("10.97.0.%d", i+1), "vxlan0"
		for _, argv := range [][]string{
			{"ip", "link", "add", h.eth, "type", "vxlan", "id", "42", "dstport", "4789", "local", side.at.IP, "remote", side.other.IP, "dev", "eth0"},
			{"ip", "address", "add", h.IP + "/24", "dev", h.eth},
			{"ip", "link", "set", h.eth, "up"},
		} {
			if _, err := h.lab.Run(ctx, side.at.At(argv...)...); err != nil {
				return over, fmt.Errorf("no overlay: %w; this kernel may have no vxlan", err)
			}
		}
		*side.to = &h
	}
	return over, nil
}
