package main

import (
	"os"

	"sigs.k8s.io/yaml"

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
	cfg.Endpoints, cfg.Copy, cfg.Log = endpoints, path, d.log
	if f.ephemeral {
		return usage("--ephemeral: a daemon that ends with its programs has no store in etcd")
	}
	s, err := etcd.Open(cfg)
	if err != nil {
		return lacks("%w", err)
	}
	d.store = s
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
	if err := yaml.UnmarshalStrict(text, &cfg); err != nil {
		return cfg, usage("--store-config %s: %w; it has ca, certificate, key, serverName, user, passwordFile and prefix", path, err)
	}
	return cfg, nil
}
