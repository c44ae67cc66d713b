package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Objects prints objects. With one, JSON output is a single object instead of a list.
func Objects(w io.Writer, items []control.Item, output string, one bool) error {
	switch output {
	case "yaml":
		for i, it := range items {
			text, err := itemYAML(it)
			if err != nil {
				return err
			}
			if i > 0 {
				fmt.Fprintln(w, "---")
			}
			w.Write(text)
		}
		return nil
	case "json":
		return printJSON(w, items, one)
	case "name":
		for _, it := range items {
			fmt.Fprintln(w, Key(it.Key))
		}
		return nil
	}
	return printTables(w, items, output == "wide")
}

// withStatus returns the object with its status, which apply ignores.
func withStatus(it control.Item) (json.RawMessage, error) {
	if it.Status == nil {
		return it.Object, nil
	}
	status, err := json.Marshal(it.Status)
	if err != nil {
		return nil, err
	}
	object := bytes.TrimSuffix(bytes.TrimSpace(it.Object), []byte("}"))
	return fmt.Appendf(nil, `%s,"status":%s}`, object, status), nil
}

func itemYAML(it control.Item) ([]byte, error) {
	o, err := tenant.Unmarshal(it.Object)
	if err != nil {
		return nil, err
	}
	text, err := tenant.YAML(o)
	if err != nil || it.Status == nil {
		return text, err
	}
	status, err := writeYAML(map[string]any{"status": it.Status})
	return append(text, status...), err
}

func printJSON(w io.Writer, items []control.Item, one bool) error {
	list := make([]json.RawMessage, len(items))
	for i, it := range items {
		var err error
		if list[i], err = withStatus(it); err != nil {
			return err
		}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if one {
		return e.Encode(list[0])
	}
	return e.Encode(struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Items      []json.RawMessage `json:"items"`
	}{tenant.APIVersion, "List", list})
}

// Changes prints objects as they change, in an output format of Objects.
type Changes struct {
	rows   rowPrinter
	output string
}

// NewChanges returns a printer of changes.
func NewChanges(w io.Writer, output string) *Changes {
	return &Changes{rowPrinter{w: w, wide: output == "wide"}, output}
}

// Print prints objects that have changed. The first call determines the columns' widths.
func (c *Changes) Print(items []control.Item) error {
	if c.output == "" || c.output == "wide" {
		return c.rows.print(items)
	}
	for _, it := range items {
		switch {
		case it.Deleted && c.output == "name":
			fmt.Fprintln(c.rows.w, Key(it.Key), "deleted")
			continue
		case it.Deleted:
			continue // the object was deleted
		case c.output == "yaml":
			fmt.Fprintln(c.rows.w, "---")
		}
		if err := Objects(c.rows.w, []control.Item{it}, c.output, true); err != nil {
			return err
		}
	}
	return nil
}

// Key formats a key: nic/red/web, tenant/red.
func Key(k tenant.Key) string { return strings.ToLower(string(k.Kind)) + "/" + k.Path() }
