package main

import (
	"fmt"
	"os"
	"time"

	"vrdma/internal/protocol"
	"vrdma/internal/store"
	"vrdma/internal/store/etcd"
)

// openEtcd opens a store that other hosts use too. path is for a copy of what it last was.
func (d *daemon) openEtcd(f *daemonFlags, path string) error {
	endpoints, err := etcd.Endpoints(f.store)
	if err != nil {
		return usage("--store: %w", err)
	}
	cfg, err := readStoreConfig(f.storeConfig)
	if err != nil {
		return err
	}
	if cfg.Copy == "" {
		cfg.Copy = path
	}
	cfg.Endpoints, cfg.Log = endpoints, d.log
	if f.ephemeral {
		return usage("--ephemeral: a daemon that ends with its programs has no store in etcd")
	}
	s, err := etcd.Open(cfg)
	if err != nil {
		return lacks("%w", err)
	}
	d.store, d.storeName = s, f.store
	return nil
}

// readStoreConfig reads the file of --store-config strictly.
func readStoreConfig(path string) (cfg etcd.Config, err error) {
	if path == "" {
		return cfg, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return cfg, lacks("--store-config: %w", err)
	}
	if err := readYAML(text, &cfg); err != nil {
		return cfg, usage("--store-config %s: %w; it has ca, certificate, key, serverName, user, passwordFile, prefix and copy", path, err)
	}
	return cfg, nil
}

// storeStatus is how it stands with a store that other hosts share.
func (d *daemon) storeStatus() *protocol.StoreStatus {
	remote, shared := d.store.(store.Remote)
	if !shared {
		return nil
	}
	h := remote.Health()
	st := &protocol.StoreStatus{Name: d.storeName, State: string(h.State), Heard: h.Heard, Problems: h.Problems}
	if h.Why != nil {
		st.Why = h.Why.Error()
	}
	if plane := d.plane.Load(); plane != nil {
		st.Generation = plane.Generation()
	}
	return st
}

// storeText is the state of a store for people.
func storeText(s *protocol.StoreStatus, now time.Time) string {
	text := fmt.Sprintf("%s, %s", s.Name, s.State)
	if s.State != string(store.InStep) {
		since := "never heard of"
		if !s.Heard.IsZero() {
			since = fmt.Sprintf("last heard of %s ago, %s", age(now, s.Heard), s.Heard.Format(time.RFC3339))
		}
		text += ": " + since
	}
	if s.Why != "" {
		text += ": " + plain(s.Why)
	}
	if n := len(s.Problems); n > 0 {
		text += fmt.Sprintf("; %d entries are left out, the first: %s", n, plain(s.Problems[0]))
	}
	return text
}
