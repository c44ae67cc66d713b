package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readYAML fills into, whose fields are named for JSON, and refuses what it has no field for.
func readYAML(text []byte, into any) error {
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return err
	}
	if v == nil {
		return nil // nothing is said
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

// writeYAML is v, whose fields are named for JSON, as YAML.
func writeYAML(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var plain any
	if err := yaml.Unmarshal(b, &plain); err != nil { // JSON is YAML
		return nil, err
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(plain); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}
