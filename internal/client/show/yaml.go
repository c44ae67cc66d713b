package show

import (
	"bytes"
	"encoding/json"

	"go.yaml.in/yaml/v3"
)

// writeYAML encodes a value with JSON field names as YAML.
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
