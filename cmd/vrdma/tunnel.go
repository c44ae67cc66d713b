package main

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vrdma/internal/launch"
	"vrdma/internal/link"
	"vrdma/internal/overlay"
	"vrdma/internal/tenant"
	"vrdma/internal/tunnel"
)

// tunnelSpec is this host's end of the tunnels that encrypted networks leave through.
type tunnelSpec struct {
	port uint16
	key  string // the file of the private key
	// early: the public key is made at once, since other hosts will look for it in the store.
	early bool
}

// tunnel is what the flags say.
func (f *daemonFlags) tunnel(c config, place launch.Place) (t tunnelSpec, err error) {
	if c.Overlay.TunnelPort != 0 && f.tunnelPort == overlay.DefaultTunnelPort {
		f.tunnelPort = c.Overlay.TunnelPort
	}
	if f.tunnelPort < 1 || f.tunnelPort > math.MaxUint16 {
		return t, usage("--tunnel-port %d: a UDP port is from 1 to 65535, WireGuard's is %d", f.tunnelPort, overlay.DefaultTunnelPort)
	}
	t = tunnelSpec{port: uint16(f.tunnelPort), key: f.tunnelKey, early: f.tunnelKey != "" || strings.Contains(f.store, "://")}
	if t.key == "" {
		t.key = strings.TrimSuffix(storePath("", place), ".db") + ".key"
	}
	return t, nil
}

// loadKey reads this host's private key, or makes one.
func (d *daemon) loadKey() (tunnel.Key, error) {
	if err := os.MkdirAll(filepath.Dir(d.tunnel.key), 0o700); err != nil {
		return tunnel.Key{}, err
	}
	return tunnel.LoadKey(d.tunnel.key)
}

// publicKey is what other hosts know this one by; zero: it has no key yet, or none that can be used.
func (d *daemon) publicKey() tenant.PublicKey {
	if _, err := os.Lstat(d.tunnel.key); !d.tunnel.early && errors.Is(err, fs.ErrNotExist) {
		return tenant.PublicKey{}
	}
	k, err := d.loadKey()
	if err != nil {
		d.log.Error("this host has no members of encrypted networks: its private key cannot be used", "error", err)
		return tenant.PublicKey{}
	}
	return k.Public()
}

// openTunnel opens the tunnel, when the first encrypted network is between hosts.
func (d *daemon) openTunnel() (link.Tunnel, error) {
	k, err := d.loadKey()
	if err != nil {
		return nil, err
	}
	t, err := tunnel.Open(tunnel.Options{Key: k, Addrs: d.under.addrs, Port: d.tunnel.port, Log: d.log})
	if err != nil {
		return nil, err
	}
	d.tunnelled.Store(t)
	public := k.Public()
	d.log.Info("tunnel", "addresses", d.under.addrs, "port", d.tunnel.port, "public_key", tunnel.FormatPublic(public), "address_inside", overlay.TunnelAddr(public))
	return t, nil
}

// keyTime is how often it is looked whether the file of the private key is another one.
const keyTime = time.Second

// watchKey has this host take another key, when there is another one in its file. The function ends
// that, and does not wait for it: a key is not taken while a change is made, which may wait for doors.
func (d *daemon) watchKey() (stop func()) {
	end := make(chan struct{})
	go func() {
		tick := time.NewTicker(keyTime)
		defer tick.Stop()
		var seen fs.FileInfo
		for said := ""; ; {
			select {
			case <-tick.C:
			case <-end:
				return
			}
			info, err := os.Stat(d.tunnel.key)
			if err != nil || seen != nil && os.SameFile(info, seen) && info.ModTime().Equal(seen.ModTime()) && info.Mode() == seen.Mode() {
				continue // one that is deleted is made again when the daemon starts
			}
			if err := d.takeKey(); err == nil {
				seen, said = info, ""
			} else if said != err.Error() && d.serving.Load() { // it is tried again
				said = err.Error()
				d.log.Error("this host keeps its old key: the new one cannot be used", "error", err)
			}
		}
	}()
	return func() { close(end) }
}

// takeKey makes the key in the file this host's. The others are told first: who does not know it yet
// drops what comes with it, and what is sent meanwhile is sent again.
func (d *daemon) takeKey() error {
	k, err := d.loadKey()
	if err != nil {
		return err
	}
	plane := d.plane.Load()
	spec := plane.Self()
	if public := tenant.PublicKey(k.Public()); spec.PublicKey != public {
		old := spec.PublicKey
		spec.PublicKey = public
		if err := plane.Announce(spec); err != nil {
			return err
		}
		if old != (tenant.PublicKey{}) {
			d.log.Info("this host has another key", "public_key", public.String())
		}
	}
	if t := d.tunnelled.Load(); t != nil && t.Addr() != overlay.TunnelAddr(k.Public()) {
		return t.SetKey(k)
	}
	return nil
}
