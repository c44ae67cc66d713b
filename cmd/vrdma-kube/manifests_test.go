package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"go.yaml.in/yaml/v3"

	"vrdma.dev/vrdma/internal/platform/kubernetes/dra"
)

// documents returns the documents of a manifest in contrib.
func documents(t *testing.T, file string) (all []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../contrib", file))
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var one map[string]any
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, one)
	}
}

// at returns a part of a document by names and list indices.
func at(t *testing.T, from any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := from.(map[string]any)
			from = m[p]
		case int:
			l, _ := from.([]any)
			if p >= len(l) {
				t.Fatalf("%v: no %d in %v", path, p, from)
			}
			from = l[p]
		}
	}
	return from
}

func words(v any) (out []string) {
	l, _ := v.([]any)
	for _, w := range l {
		s, _ := w.(string)
		out = append(out, s)
	}
	return out
}

// The DaemonSets call vrdma-kube with flags that it has. make test-kube shows that Kubernetes accepts them.
func TestManifests(t *testing.T) {
	set := documents(t, "kubernetes/daemonset.yaml")[0]
	spec := at(t, set, "spec", "template", "spec")
	if at(t, spec, "hostPID") != true || at(t, spec, "hostNetwork") != true {
		t.Error("the daemon has to see the host's processes and network")
	}
	dras := documents(t, "kubernetes-dra/daemonset.yaml")[0]
	args := words(at(t, spec, "containers", 0, "args"))
	for _, command0 := range [][]string{
		words(at(t, spec, "containers", 0, "command")),
		words(at(t, dras, "spec", "template", "spec", "containers", 0, "command")),
	} {
		line := append(command0, args...)
		if line[0] != "vrdma-kube" {
			t.Errorf("the container runs %v", line)
		}
		c, rest, err := command().Find(line[1:])
		if err != nil || c.Name() != "node" {
			t.Fatalf("%v: %v", line, err)
		}
		if err := c.ParseFlags(rest); err != nil {
			t.Errorf("%v: %v", line, err)
		}
	}
}

// The parameters of the example are valid.
func TestExampleClaim(t *testing.T) {
	template := documents(t, "kubernetes-dra/example.yaml")[0]
	text, err := json.Marshal(at(t, template, "spec", "spec", "devices", "config", 0, "opaque", "parameters"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := dra.ParseParameters(text)
	if err != nil || p.Tenant != "team-a" || p.Network != "train" || p.Limits.QPs != 64 || p.Rate.Out != 10e9 {
		t.Errorf("%+v, %v", p, err)
	}
}
