package main

import (
	"fmt"
	"os"

	"sigs.k8s.io/yaml"

	"vrdma/internal/nic"
)

// config is the daemon's file, --config. Flags win over it.
//
//	socket: /run/vrdma/vrdma.sock
//	addr: [192.0.2.10, 127.0.0.1]
//	limits:
//	  qps: 1000          # for each opened device
//	  memory: 1073741824 # registered bytes for each process
type config struct {
	Socket string       `json:"socket,omitempty"`
	Addr   []string     `json:"addr,omitempty"`
	Limits configLimits `json:"limits,omitempty"`
	// Underlay and Overlay are what --underlay and --overlay-port are.
	Underlay []string `json:"underlay,omitempty"`
	Overlay  struct {
		Port       int `json:"port,omitempty"`
		TunnelPort int `json:"tunnelPort,omitempty"`
	} `json:"overlay,omitzero"`
}

// configLimits are the limits that may be lowered; 0 leaves the default.
type configLimits struct {
	PDs      int    `json:"pds,omitempty"`
	CQs      int    `json:"cqs,omitempty"`
	QPs      int    `json:"qps,omitempty"`
	MRs      int    `json:"mrs,omitempty"`
	MWs      int    `json:"mws,omitempty"`
	SRQs     int    `json:"srqs,omitempty"`
	AHs      int    `json:"ahs,omitempty"`
	Channels int    `json:"channels,omitempty"`
	Memory   uint64 `json:"memory,omitempty"`
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
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	l := c.Limits.apply(nic.DefaultLimits)
	if err := l.Check(); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// apply changes the limits that the file names.
func (c *configLimits) apply(l nic.Limits) nic.Limits {
	for _, pair := range []struct {
		limit *int
		n     int
	}{
		{&l.PDs, c.PDs}, {&l.CQs, c.CQs}, {&l.QPs, c.QPs}, {&l.MRs, c.MRs},
		{&l.MWs, c.MWs}, {&l.SRQs, c.SRQs}, {&l.AHs, c.AHs}, {&l.Channels, c.Channels},
	} {
		if pair.n != 0 {
			*pair.limit = pair.n
		}
	}
	if c.Memory > 0 {
		l.Memory = c.Memory
	}
	return l
}
