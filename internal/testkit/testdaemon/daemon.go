// Package testdaemon is a daemon inside of a test: one NIC at loopback addresses, behind a socket. It
// has what a program needs that brings its own library, and no shared object for others.
//
// It is for tests only.
package testdaemon

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/engine"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/routes"
)

// Start starts a daemon that ends with the test, and returns its socket.
func Start(t testing.TB) string {
	socket, stop := Run(t)
	t.Cleanup(stop)
	return socket
}

// Run starts a daemon that ends with stop, or with the test.
func Run(t testing.TB) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "vrdma.sock")
	n := nic.New(nic.Config{
		Name: "rxe0", NodeGUID: 0x0200_00ff_fe00_0001,
		GIDs: []nic.GIDEntry{{GID: ib.GIDOf(netip.MustParseAddr("127.0.0.1")), NetDev: "lo"}, {GID: ib.GIDOf(netip.MustParseAddr("::1")), NetDev: "lo"}},
	})
	nics := registry.NewTable()
	var s *server.Server
	e, err := engine.New(engine.Options{Resolver: nics, Evict: func(d *nic.Session) { s.Evict(d) }})
	if err != nil {
		t.Fatal(err)
	}
	v := &registry.NIC{Name: registry.Default, Network: registry.HostNetwork, Device: n, Manager: rdmacm.New(n, e.MADs(n)), Routes: routes.Kernel{}}
	if err := nics.Add(v); err != nil {
		t.Fatal(err)
	}
	if err := e.Add(n, v.Manager); err != nil {
		t.Fatal(err)
	}
	e.Start()
	s, err = server.Listen(server.Config{Listeners: []server.Listener{{Socket: socket, NIC: v}}, Engine: e, Version: "test"})
	if err != nil {
		e.Stop()
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	stopped := false
	return socket, func() {
		if stopped {
			return
		}
		stopped = true
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("closing the daemon: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("the daemon: %v", err)
		}
		e.Stop()
	}
}
