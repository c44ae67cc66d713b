package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/tenancy/provision"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// config is the file of --config.
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
	// Underlay and Overlay correspond to --underlay, --overlay-port and --tunnel-port.
	Underlay []string `json:"underlay,omitempty"`
	Overlay  struct {
		Port       int `json:"port,omitempty"`
		TunnelPort int `json:"tunnelPort,omitempty"`
	} `json:"overlay,omitzero"`
}

// readConfig reads the file. A name that it does not know is an error.
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
	l := provision.SetLimits(nic.DefaultLimits, c.Limits)
	if err := l.Check(); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// readYAML decodes YAML into a value whose fields are named for JSON. A name without a field is an error.
func readYAML(text []byte, into any) error {
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return err
	}
	if v == nil {
		return nil // the file is empty
	}
	b, err := json.Marshal(v)
	if err != nil {
		return errors.New("want names with values")
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}
