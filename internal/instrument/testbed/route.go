package testbed

import (
	"context"
	"errors"
	"fmt"
)

// A Route is the hosts of a server and its client, which may be the same.
type Route struct{ Server, Client *Host }

// Loopback returns the route from the host to itself.
func (h *Host) Loopback() Route { return Route{h, h} }

// Pair runs a server and its client and returns the client's output.
func (r Route) Pair(ctx context.Context, w Launcher, port int, server, client []string) (string, error) {
	if r.Client.Agent != nil {
		return r.guestPair(ctx, w, port, server, client)
	}
	return r.Server.Lab.Pair(ctx, w.Ready(r.Server, port), w.Command(r.Server, server...), w.Command(r.Client, client...))
}

// guestPair is Pair with a client in a guest.
func (r Route) guestPair(ctx context.Context, w Launcher, port int, server, client []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, GuestTimeout, Timeout(GuestTimeout))
	defer cancel()
	s, err := r.Server.StartServer(ctx, w, port, server)
	if err != nil {
		return "", err
	}
	defer s.Stop(0, false)
	got, err := r.Client.Agent.ask(ctx, request{Run: [][]string{client}, Way: w.Name, Limit: ToolTimeout})
	if err != nil {
		return "", err
	}
	if len(got.Finished) != 1 {
		return "", errors.New("the guest ran no client")
	}
	if one := got.Finished[0]; one.Error != "" {
		said, _ := s.Stop(0, false)
		return "", fmt.Errorf("%s\nits server said:\n%s", one.Error, LastLines(said, 3))
	}
	return got.Finished[0].Output, nil
}

// overVXLAN makes a VXLAN tunnel of the kernel between the hosts and returns the route through it.
func (r Route) overVXLAN(ctx context.Context) (Route, error) {
	over := Route{}
	for i, side := range []struct {
		at, other *Host
		to        **Host
	}{{r.Client, r.Server, &over.Client}, {r.Server, r.Client, &over.Server}} {
		if side.at.Agent != nil || side.at.PID == 0 {
			return over, errors.New("an overlay is made between namespaces only")
		}
		h := *side.at
		h.IP, h.Interface = fmt.Sprintf("10.97.0.%d", i+1), "vxlan0"
		for _, argv := range [][]string{
			{"ip", "link", "add", h.Interface, "type", "vxlan", "id", "42", "dstport", "4789", "local", side.at.IP, "remote", side.other.IP, "dev", "eth0"},
			{"ip", "address", "add", h.IP + "/24", "dev", h.Interface},
			{"ip", "link", "set", h.Interface, "up"},
		} {
			if _, err := h.Lab.Run(ctx, side.at.At(argv...)...); err != nil {
				return over, fmt.Errorf("no overlay: %w; this kernel may have no vxlan", err)
			}
		}
		*side.to = &h
	}
	return over, nil
}
