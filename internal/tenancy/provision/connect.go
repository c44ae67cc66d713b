package provision

import (
	"io"
	"sync"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/roce"
)

// An Overlay carries virtual networks to other hosts.
type Overlay struct {
	*roce.Overlay
	// Wake are descriptors that become readable when packets arrive.
	Wake []int
	// Window bounds the bytes in flight of one queue pair, Flight those of all queue pairs.
	Window, Flight uint32
}

// A connection is how the virtual networks of this host reach other hosts.
type connection struct {
	host *host

	mu     sync.Mutex // guards the fields below
	open   *Overlay   // nil: no network has needed it
	said   string     // the logged error of the last attempt to open a socket
	sealed bool       // the overlay has a tunnel
}

// Connect sets the map of the networks that several hosts share. The control plane calls it whenever the map has
// changed, also while another method runs.
func (r *Provisioner) Connect(m *overlay.Map) error { return r.connection.update(m) }

// Disconnect closes the sockets to other hosts, after the loop has ended.
func (r *Provisioner) Disconnect() { r.connection.close() }

// update sets the map. NICs and maps may come in any order. The first network with a member on another host opens the
// sockets.
func (c *connection) update(m *overlay.Map) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.open == nil && m.Elsewhere() && c.host.cfg.Between != nil {
		err = c.openOverlay() // after a failure networks still work on this host
	}
	if c.open != nil && !c.sealed && len(m.Encrypted()) > 0 {
		err = c.openTunnel() // after a failure the other networks still work
	}
	if c.host.cfg.Switch != nil {
		c.host.cfg.Switch.SetMap(m)
	}
	if perr := c.host.onLoop(func() {
		c.host.cfg.NICs.SetMap(m)
		c.host.cfg.Engine.SetMap(m)
	}); perr != nil {
		err = perr
	}
	return err
}

// openOverlay opens the VXLAN sockets.
func (c *connection) openOverlay() error {
	o, err := c.host.cfg.Between.OpenOverlay()
	if err == nil && c.host.cfg.Switch != nil {
		o.SetFrames(c.host.cfg.Switch)
	}
	if err == nil {
		err = c.add(o, func() error { return c.host.cfg.Engine.AddOverlay(o.Overlay, o.Wake, o.Window, o.Flight) })
	}
	if err == nil {
		c.open = o
	}
	return c.opened(err, "virtual networks stay on this host: the overlay cannot be opened")
}

// openTunnel opens the tunnel that encrypted networks need.
func (c *connection) openTunnel() error {
	t, err := c.host.cfg.Between.OpenTunnel()
	if err == nil {
		err = c.add(t, func() error { return c.host.cfg.Engine.AddTunnel(t) })
	}
	c.sealed = err == nil
	return c.opened(err, "encrypted networks stay on this host: the tunnel cannot be opened")
}

// add passes a socket to the engine. It closes the socket if the engine rejects it.
func (c *connection) add(opened io.Closer, give func() error) (err error) {
	if perr := c.host.onLoop(func() { err = give() }); perr != nil {
		err = perr
	}
	if err != nil {
		opened.Close()
	}
	return err
}

// opened logs an error once. The next map tries again.
func (c *connection) opened(err error, what string) error {
	switch {
	case err == nil:
		c.said = ""
	case c.said != err.Error():
		c.said = err.Error()
		c.host.cfg.Log.Error(what, "error", err)
	}
	return err
}

// close closes the sockets.
func (c *connection) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open != nil {
		c.open.Close()
		c.open = nil
	}
}
