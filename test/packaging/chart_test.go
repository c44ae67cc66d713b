package packaging

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"vrdma.dev/vrdma/test/harness"
)

// chart is the directory of the Helm chart.
func chart() string { return filepath.Join(harness.Root(), "contrib/helm/vrdma") }

// helm runs Helm with a home of its own, and returns what it printed.
func helm(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := exec.Command(harness.Helm(t), args...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "KUBECONFIG=/nonexistent")
	var out, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &wrong
	if err := cmd.Run(); err != nil {
		return out.String(), errors.New(wrong.String() + out.String())
	}
	return out.String(), nil
}

// TestChart: helm lint accepts the chart, and helm template renders what testdata has. VRDMA_UPDATE_DOCS=1 writes it. The daemon
// has every flag that the chart gives it.
func TestChart(t *testing.T) {
	harness.Build(t)
	help, err := exec.Command(harness.Binary(), "daemon", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	cases, err := filepath.Glob("testdata/chart/*.values.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("testdata/chart has no values: %v", err)
	}
	for _, values := range cases {
		name := strings.TrimSuffix(filepath.Base(values), ".values.yaml")
		t.Run(name, func(t *testing.T) {
			if out, err := helm(t, "lint", "--strict", chart(), "--values", values); err != nil {
				t.Errorf("helm lint: %v\n%s", err, out)
			}
			got, err := helm(t, "template", "--kube-version", "1.34.0", "vrdma", chart(), "--namespace", "vrdma", "--values", values)
			if err != nil {
				t.Fatal(err)
			}
			golden := "testdata/chart/" + name + ".golden.yaml"
			if os.Getenv("VRDMA_UPDATE_DOCS") != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the chart renders otherwise than %s; VRDMA_UPDATE_DOCS=1 writes it. Got:\n%s", golden, got)
			}
			for _, flag := range daemonFlags(t, got) {
				if !strings.Contains(string(help), " "+flag+" ") {
					t.Errorf("vrdma daemon has no flag %s", flag)
				}
			}
		})
	}
}

// daemonFlags returns the flags after -- in the arguments of the DaemonSet's container.
func daemonFlags(t *testing.T, manifests string) (flags []string) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		var set struct {
			Kind string
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct{ Args []string }
					}
				}
			}
		}
		if err := d.Decode(&set); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if set.Kind != "DaemonSet" {
			continue
		}
		after := false
		for _, arg := range set.Spec.Template.Spec.Containers[0].Args {
			if after && strings.HasPrefix(arg, "--") {
				flags = append(flags, arg)
			}
			after = after || arg == "--"
		}
	}
	if len(flags) == 0 {
		t.Error("the DaemonSet starts the daemon without flags")
	}
	return flags
}

// TestChartRefuses: the chart does not render values with which nodes would not see each other's objects, nor unknown values.
func TestChartRefuses(t *testing.T) {
	for _, c := range []struct{ name, set, want string }{
		{"several nodes without a store", "slots=1", "store.endpoints is empty"},
		{"a password without a Secret", "store.endpoints={etcd:2379},store.user=vrdma", "store.user needs store.secret"},
		{"an unknown value", "singleNode=true,stroe.user=x", "stroe"},
		{"an endpoint with a scheme", "store.endpoints={https://etcd:2379}", "endpoints"},
		{"a monitor without metrics", "singleNode=true,metrics.enabled=false,metrics.serviceMonitor.enabled=true", "needs metrics.enabled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out, err := helm(t, "template", "--kube-version", "1.34.0", "vrdma", chart(), "--set", c.set); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q\n%s", err, c.want, out)
			}
		})
	}
}
