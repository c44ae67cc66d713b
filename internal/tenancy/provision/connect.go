package provision

import (
	"io"
	"sync"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/roce"
)

// An Overlay is how virtual networks get to other hosts, where they do.
type Overlay struct {
	*roce.Overlay
	// Wake are the descriptors that are readable when something has arrived.
	Wake []int
	// Window and Flight are how much a queue pair, and all of them, may have on their way.
	Window, Flight uint32
}

// connection is what Connect has made.
type connection struct {
	mu   sync.Mutex
	open *Overlay // nil: no network has needed it
	said string   // why it could not be opened

	sealed bool // it has a tunnel
}

// Connect says which of the networks are between hosts, and who is where: a new map whenever that
// has changed. NICs and maps may come in any order. The sockets are opened when the first network
// has a member elsewhere.
func (r *Provisioner) Connect(m *overlay.Map) error {
	c := &r.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.open == nil && m.Elsewhere() && r.cfg.Between != nil {
		err = r.openOverlay() // without it networks work on this host
	}
	if c.open != nil && !c.sealed && len(m.Encrypted()) > 0 {
		err = r.openTunnel() // without it the others work
	}
	if r.cfg.Switch != nil {
		r.cfg.Switch.SetMap(m)
	}
	if perr := r.onLoop(func() {
		r.cfg.NICs.SetMap(m)
		r.cfg.Engine.SetMap(m)
	}); perr != nil {
		err = perr
	}
	return err
}

// openOverlay opens the way to other hosts.
func (r *Provisioner) openOverlay() error {
	o, err := r.cfg.Between.OpenOverlay()
	if err == nil && r.cfg.Switch != nil {
		o.SetFrames(r.cfg.Switch)
	}
	if err == nil {
		err = r.add(o, func() error { return r.cfg.Engine.AddOverlay(o.Overlay, o.Wake, o.Window, o.Flight) })
	}
	if err == nil {
		r.connection.open = o
	}
	return r.opened(err, "virtual networks stay on this host: the overlay cannot be opened")
}

// openTunnel opens the tunnel that encrypted networks need.
func (r *Provisioner) openTunnel() error {
	t, err := r.cfg.Between.OpenTunnel()
	if err == nil {
		err = r.add(t, func() error { return r.cfg.Engine.AddTunnel(t) })
	}
	r.connection.sealed = err == nil
	return r.opened(err, "encrypted networks stay on this host: the tunnel cannot be opened")
}

// add gives the engine what was opened. What it does not take is closed.
func (r *Provisioner) add(c io.Closer, give func() error) (err error) {
	if perr := r.onLoop(func() { err = give() }); perr != nil {
		err = perr
	}
	if err != nil {
		c.Close()
	}
	return err
}

// opened says once why something could not be opened; it is tried again with the next map.
func (r *Provisioner) opened(err error, what string) error {
	c := &r.connection
	switch {
	case err == nil:
		c.said = ""
	case c.said != err.Error():
		c.said = err.Error()
		r.cfg.Log.Error(what, "error", err)
	}
	return err
}

// Disconnect closes what Connect has opened, after the loop has ended.
func (r *Provisioner) Disconnect() {
	r.connection.mu.Lock()
	defer r.connection.mu.Unlock()
	if r.connection.open != nil {
		r.connection.open.Close()
		r.connection.open = nil
	}
}
