package main

import (
	"fmt"
	"os"

	"vrdma/internal/nic"
	"vrdma/internal/rack"
	"vrdma/internal/tenant"
)

// config is the daemon's file, --config. Flags win over it.
//
//	socket: /run/vrdma/vrdma.sock
//	addr: [192.0.2.10, 127.0.0.1]
//	limits:              # of NIC default
//	  qps: 1000          # for each opened device
//	  memory: 1073741824 # registered bytes for each process
type config struct {
	Socket string        `json:"socket,omitempty"`
	Addr   []string      `json:"addr,omitempty"`
	Limits tenant.Limits `json:"limits,omitzero"` // of NIC default
	// Underlay and Overlay are what --underlay and --overlay-port are.
	Underlay []string `json:"underlay,omitempty"`
	Overlay  struct {
		Port       int `json:"port,omitempty"`
		TunnelPort int `json:"tunnelPort,omitempty"`
	} `json:"overlay,omitzero"`
}

// readConfig reads a file strictly: a word that means nothing is an error.
func readConfig(path string) (config, error) {
	var c config
	if path == "" {
		return c, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	if err := readYAML(text, &c); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	l := rack.SetLimits(nic.DefaultLimits, c.Limits)
	if err := l.Check(); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}
