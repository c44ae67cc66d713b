package packaging

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"vrdma.dev/vrdma/test/etcdtest"
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
			args, _ := rendered(t, got)
			for _, flag := range args {
				if strings.HasPrefix(flag, "--") && !strings.Contains(string(help), " "+flag+" ") {
					t.Errorf("vrdma daemon has no flag %s", flag)
				}
			}
		})
	}
}

// rendered are the daemon's arguments and the file for its store, as the chart renders them.
func rendered(t *testing.T, manifests string) (args []string, store string) {
	t.Helper()
	for d := yaml.NewDecoder(strings.NewReader(manifests)); ; {
		var set struct {
			Kind string
			Data map[string]string
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
		switch set.Kind {
		case "ConfigMap":
			store = set.Data["store.yaml"]
		case "DaemonSet":
			all := set.Spec.Template.Spec.Containers[0].Args
			args = all[slices.Index(all, "--")+1:]
		}
	}
	if len(args) == 0 {
		t.Error("the DaemonSet starts the daemon without flags")
	}
	return args, store
}

// TestChartNodes: two daemons with the chart's settings share what is declared.
func TestChartNodes(t *testing.T) {
	etcd := etcdtest.Start(t, 1)
	text, err := helm(t, "template", "--kube-version", "1.34.0", "vrdma", chart(), "--set", "store.endpoints={"+strings.Join(etcd.Endpoints(), ",")+"}",
		"--set", "store.secret=vrdma-etcd", "--set", "metrics.enabled=false")
	if err != nil {
		t.Fatal(err)
	}
	args, store := rendered(t, text)
	// The volumes of the pod are files here.
	store = strings.NewReplacer("/etc/vrdma-credentials/ca.crt", etcd.CA, "/etc/vrdma-credentials/tls.crt", etcd.Certificate,
		"/etc/vrdma-credentials/tls.key", etcd.Key).Replace(store)
	config := filepath.Join(harness.Directory(t, nil), "store.yaml")
	if err := os.WriteFile(config, []byte(store), 0o600); err != nil {
		t.Fatal(err)
	}
	var nodes []*harness.Daemon
	for i, name := range []string{"node-a", "node-b"} {
		own := slices.Clone(args)
		for j, arg := range own {
			switch arg {
			case "/etc/vrdma/store.yaml":
				own[j] = config
			case "127.0.0.1:9479":
				own[j] = fmt.Sprintf("127.0.0.1:%d", harness.FreePort(t))
			}
		}
		// Hosts tell each other an address. Here no packet goes to it.
		own = append(own, "--host-name", name, "--underlay", fmt.Sprintf("192.0.2.%d", i+1))
		nodes = append(nodes, harness.Start(t, harness.Options{Addr: "127.0.0.1", Args: own}))
	}
	apply := nodes[0].Command("apply", "-f", "-")
	apply.Stdin = strings.NewReader("{apiVersion: vrdma.io/v1, kind: Tenant, metadata: {name: team-a}, spec: {}}\n")
	harness.Spawn(t, apply).OK(t, minute)
	said := ""
	if !harness.Poll(minute, func() bool {
		p := harness.Spawn(t, nodes[1].Command("get", "tenants", "-o", "name"))
		p.Wait(t, minute)
		said = p.Output()
		return strings.Contains(said, "team-a")
	}) {
		t.Errorf("the second node does not have what the first was told: %s", said)
	}
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
