package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/tunnel"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// tunnelKey is this host's private key for encrypted networks, and the port of its tunnel.
type tunnelKey struct {
	port uint16
	path string
	// early: the key is made when the daemon starts, because other hosts look for the public key in a shared store.
	early bool
}

// tunnelKey is what the options say about it.
func (s *settings) tunnelKey() (k tunnelKey, err error) {
	port := s.TunnelPort
	if port < 1 || port > math.MaxUint16 {
		return k, exit.Usage("--tunnel-port %d: a UDP port is from 1 to 65535, WireGuard's is %d", port, overlay.DefaultTunnelPort)
	}
	k = tunnelKey{port: uint16(port), path: s.TunnelKey, early: s.TunnelKey != "" || strings.Contains(s.Store, "://")}
	if k.path == "" {
		k.path = strings.TrimSuffix(storePath("", s.place), ".db") + ".key"
	}
	return k, nil
}

// load reads the private key, or makes one.
func (k *tunnelKey) load() (tunnel.Key, error) {
	if err := os.MkdirAll(filepath.Dir(k.path), 0o700); err != nil {
		return tunnel.Key{}, err
	}
	return tunnel.LoadKey(k.path)
}

// public is the key by which other hosts know this one; zero: there is no key yet, or it cannot be used.
func (k *tunnelKey) public(log *slog.Logger) tenant.PublicKey {
	if _, err := os.Lstat(k.path); !k.early && errors.Is(err, fs.ErrNotExist) {
		return tenant.PublicKey{}
	}
	key, err := k.load()
	if err != nil {
		log.Error("this host has no members of encrypted networks: its private key cannot be used", "error", err)
		return tenant.PublicKey{}
	}
	return key.Public()
}

// keyTime is how often the daemon looks for another private key in the file.
const keyTime = time.Second

// followKey takes the key from the file whenever the file changes, until ctx ends. A key is not taken during a change of declared
// objects, so nobody waits for the end of this function.
func (d *daemon) followKey(ctx context.Context) {
	tick := time.NewTicker(keyTime)
	defer tick.Stop()
	var seen fs.FileInfo
	for logged := ""; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		info, err := os.Stat(d.between.key.path)
		if err != nil || seen != nil && os.SameFile(info, seen) && info.ModTime().Equal(seen.ModTime()) && info.Mode() == seen.Mode() {
			continue // a deleted key is made again when the daemon starts
		}
		if err := d.takeKey(); err == nil {
			seen, logged = info, ""
		} else if logged != err.Error() && d.serving.Load() { // it is tried again
			logged = err.Error()
			d.log.Error("this host keeps its old key: the new one cannot be used", "error", err)
		}
	}
}

// takeKey uses the key in the file from now on. It announces the public key first: hosts that do not know it yet drop packets of the
// new session, and the sender repeats them.
func (d *daemon) takeKey() error {
	k, err := d.between.key.load()
	if err != nil {
		return err
	}
	spec := d.plane.Self()
	if public := tenant.PublicKey(k.Public()); spec.PublicKey != public {
		old := spec.PublicKey
		spec.PublicKey = public
		if err := d.plane.Announce(spec); err != nil {
			return err
		}
		if old != (tenant.PublicKey{}) {
			d.log.Info("this host has another key", "public_key", public.String())
		}
	}
	return d.between.setKey(k)
}
