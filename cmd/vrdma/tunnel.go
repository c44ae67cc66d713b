package main

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

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
	public := k.Public()
	d.log.Info("tunnel", "addresses", d.under.addrs, "port", d.tunnel.port, "public_key", tunnel.FormatPublic(public), "address_inside", overlay.TunnelAddr(public))
	return t, nil
}
