package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A fake is a daemon in memory.
type fake struct {
	mu    sync.Mutex
	bound map[tenant.Key]control.Binding
	down  error
}

func (f *fake) Ready() error { return f.down }

func (f *fake) Bind(b control.Binding) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return f.down
	}
	if old, ok := f.bound[b.NIC]; ok && old.Cookie != b.Cookie {
		return fmt.Errorf("%v is bound to %s", b.NIC, old.Title())
	}
	f.bound[b.NIC] = b
	return nil
}

// Plug creates interfaces for all NICs but those that are called host.
func (f *fake) Plug(b control.Binding) (is control.Interface, err error) {
	b.Plug = true
	if err := f.Bind(b); err != nil || b.NIC.Name == "host" {
		return is, err
	}
	if b.NIC.Name == "rootless" {
		return control.Interface{Missing: "nobody may"}, nil
	}
	return control.Interface{Name: b.Interface, MAC: "02:56:0a:01:00:01", MTU: 1450, Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("fd00::1/64")}}, nil
}

func (f *fake) Unbind(list ...control.Binding) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down != nil {
		return f.down
	}
	for _, b := range list {
		for k, old := range f.bound {
			if b.Matches(&old) {
				delete(f.bound, k)
			}
		}
	}
	return nil
}

func (f *fake) Bindings() (out []control.Binding, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.bound {
		out = append(out, b)
	}
	return out, f.down
}

// An engine calls the plugin. Namespaces are /ns/COOKIE.
type engine struct{ daemon *fake }

func newEngine() *engine { return &engine{&fake{bound: make(map[tenant.Key]control.Binding)}} }

func (e *engine) call(config string, env ...string) (string, error) {
	set := make(map[string]string)
	for _, pair := range env {
		name, value, _ := strings.Cut(pair, "=")
		set["CNI_"+name] = value
	}
	p := Plugin{
		Getenv: func(name string) string { return set[name] },
		Daemon: func(string) (Daemon, error) { return e.daemon, nil },
		Interfaces: func(path string) (list []net.Interface, err error) {
			if path != "/ns/7" {
				return nil, nil
			}
			return []net.Interface{{Name: "eth0", Flags: net.FlagUp | net.FlagRunning}, {Name: "eth1"}}, nil
		},
		Cookie: func(path string) (cookie uint64, err error) {
			_, err = fmt.Sscanf(path, "/ns/%d", &cookie)
			return cookie, err
		},
	}
	var out bytes.Buffer
	err := p.Run(strings.NewReader(config), &out)
	return out.String(), err
}

// container is a call for one.
func (e *engine) container(command string, number int, config string) (string, error) {
	return e.call(config, "COMMAND="+command, fmt.Sprintf("CONTAINERID=c%d", number), fmt.Sprintf("NETNS=/ns/%d", number), "IFNAME=eth0",
		"ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=space;K8S_POD_NAME=pod")
}

const chained = `{"cniVersion": "1.1.0", "name": "net", "type": "vrdma-cni", "nic": "red.web", "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}], "dns": {}}}`

var web = tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: "web"}

func TestChained(t *testing.T) {
	e := newEngine()
	for range 2 { // calls are repeated
		out, err := e.container("ADD", 1, chained)
		var result map[string]any
		if err != nil || json.Unmarshal([]byte(out), &result) != nil || result["cniVersion"] != "1.1.0" || !strings.Contains(out, "10.0.0.2/24") {
			t.Fatalf("ADD: %v, %s", err, out)
		}
		if b := e.daemon.bound[web]; b.Cookie != 1 || b.Name != "space/pod" || b.Network != "net" || b.Interface != "eth0" {
			t.Errorf("bound: %+v", b)
		}
	}
	if out, err := e.container("CHECK", 1, chained); err != nil || out != "" {
		t.Errorf("CHECK: %v, %s", err, out)
	}
	if out, err := e.container("CHECK", 2, chained); err == nil || !strings.Contains(out, "bound to container space/pod, and not to") {
		t.Errorf("CHECK of another container: %v, %s", err, out)
	}
	if out, err := e.container("ADD", 2, chained); err == nil || !strings.Contains(out, `"code":100`) || !strings.Contains(out, "bound to container space/pod") {
		t.Errorf("ADD of another container: %v, %s", err, out)
	}
	if out, err := e.container("DEL", 2, chained); err != nil || out != "" || len(e.daemon.bound) != 1 {
		t.Errorf("DEL of another container: %v, %s, %v", err, out, e.daemon.bound)
	}
	for range 2 {
		if out, err := e.container("DEL", 1, `{"cniVersion": "1.1.0", "name": "net", "type": "vrdma-cni"}`); err != nil || out != "" || len(e.daemon.bound) != 0 {
			t.Errorf("DEL, without prevResult and NIC: %v, %s, %v", err, out, e.daemon.bound)
		}
	}
	if out, err := e.container("CHECK", 1, chained); err == nil || !strings.Contains(out, "is bound to nothing") {
		t.Errorf("CHECK after DEL: %v, %s", err, out)
	}
	if out, err := e.call(chained, "COMMAND=DEL", "CONTAINERID=c1", "IFNAME=eth0"); err != nil {
		t.Errorf("DEL without a namespace: %v, %s", err, out)
	}
}

// Without another plugin it creates the interface and reports it.
func TestAlone(t *testing.T) {
	e := newEngine()
	for version, want := range map[string]string{
		"0.4.0": `{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","mac":"02:56:0a:01:00:01","sandbox":"/ns/7"}],"ips":[{"version":"4","interface":0,"address":"10.1.0.1/24"},{"version":"6","interface":0,"address":"fd00::1/64"}],"dns":{}}`,
		"1.1.0": `{"cniVersion":"1.1.0","interfaces":[{"mac":"02:56:0a:01:00:01","mtu":1450,"name":"eth0","sandbox":"/ns/7"}],"ips":[{"address":"10.1.0.1/24","interface":0},{"address":"fd00::1/64","interface":0}]}`,
	} {
		config := func(nic, previous string) string {
			if previous != "" {
				previous = `, "prevResult": ` + previous
			}
			return fmt.Sprintf(`{"cniVersion": %q, "name": "net", "type": "vrdma-cni", "nic": %q%s}`, version, nic, previous)
		}
		for range 2 {
			if out, err := e.container("ADD", 7, config("red.web", "")); err != nil || out != want {
				t.Errorf("ADD: %v\n%s, want\n%s", err, out, want)
			}
		}
		if out, err := e.container("CHECK", 7, config("red.web", want)); err != nil {
			t.Errorf("CHECK: %v, %s", err, out)
		}
		if out, err := e.container("DEL", 7, config("red.web", want)); err != nil || len(e.daemon.bound) != 0 {
			t.Errorf("DEL: %v, %s, %v", err, out, e.daemon.bound)
		}
		if out, err := e.container("ADD", 8, config("red.web", "")); err != nil {
			t.Errorf("ADD: %v, %s", err, out)
		}
		if out, err := e.container("CHECK", 8, config("red.web", want)); err == nil || !strings.Contains(out, "no interface eth0 any more") {
			t.Errorf("CHECK of an interface that is gone: %v, %s", err, out)
		}
		e.container("DEL", 8, config("red.web", want))
		for nic, why := range map[string]string{"red.host": "only one with way vxlan has", "red.rootless": "nobody may"} {
			if out, err := e.container("ADD", 7, config(nic, "")); err == nil || !strings.Contains(out, `"code":101`) || !strings.Contains(out, why) || len(e.daemon.bound) != 0 {
				t.Errorf("ADD of %s: %v, %s, %v", nic, err, out, e.daemon.bound)
			}
		}
	}
}

// The next garbage collection of the same network removes what a lost DEL left.
func TestGC(t *testing.T) {
	e := newEngine()
	config := func(nic string) string { return strings.Replace(chained, "red.web", nic, 1) }
	for i := range 3 {
		if out, err := e.container("ADD", i+1, config(fmt.Sprintf("red.n%d", i))); err != nil {
			t.Fatal(out)
		}
	}
	if out, err := e.container("ADD", 4, strings.Replace(config("red.other"), `"net"`, `"another"`, 1)); err != nil {
		t.Fatal(out)
	}
	gc := `{"cniVersion": "1.1.0", "name": "net", "type": "vrdma-cni", "nic": "red.web", "cni.dev/valid-attachments": [{"containerID": "c2", "ifname": "eth0"}, {"containerID": "c1", "ifname": "eth1"}]}`
	if out, err := e.call(gc, "COMMAND=GC"); err != nil || out != "" {
		t.Errorf("GC: %v, %s", err, out)
	}
	var left []string
	for k := range e.daemon.bound {
		left = append(left, k.Name)
	}
	if len(left) != 2 || e.daemon.bound[tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: "n1"}].Container != "c2" {
		t.Errorf("left: %v, want n1 and other", left)
	}
}

// Without a daemon containers can end, but not start.
func TestNoDaemon(t *testing.T) {
	e := newEngine()
	for _, down := range []error{&fs.PathError{Op: "dial", Path: "/s", Err: syscall.ENOENT}, fmt.Errorf("dial: %w", syscall.ECONNREFUSED)} {
		e.daemon.down = down
		for command, want := range map[string]string{"ADD": `"code":11`, "CHECK": `"code":11`, "STATUS": `"code":50`, "DEL": "", "GC": ""} {
			out, err := e.container(command, 1, chained)
			if (err != nil) != (want != "") || !strings.Contains(out, want) {
				t.Errorf("%s: %v, %s, want %q", command, err, out, want)
			}
		}
	}
}

func TestVersions(t *testing.T) {
	e := newEngine()
	out, err := e.call(`{"cniVersion": "1.1.0"}`, "COMMAND=VERSION")
	if err != nil || !strings.Contains(out, `"supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]`) {
		t.Errorf("VERSION: %v, %s", err, out)
	}
	for _, version := range append(Versions, "", "0.2.0", "9.0.0") {
		config := strings.Replace(chained, "1.1.0", version, 1)
		for command, first := range map[string]string{"ADD": "0.3.0", "CHECK": "0.4.0", "DEL": "0.3.0", "GC": "1.1.0", "STATUS": "1.1.0"} {
			want := version >= first && version < "2"
			if out, err := e.container(command, 1, config); (err == nil) != want || !want && !strings.Contains(out, `"code":1,`) {
				t.Errorf("%s in %q: %v, %s, want it to work: %v", command, version, err, out, want)
			}
			if command == "DEL" && want {
				e.container("ADD", 1, config)
			}
		}
	}
}

func TestWishes(t *testing.T) {
	e := newEngine()
	of := func(more string) string {
		return `{"cniVersion": "1.0.0", "name": "net", "type": "vrdma-cni", "prevResult": {"ips": []}` + more + `}`
	}
	const wish = `, "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"vrdma.io/nic": "%s"}}`
	for _, c := range []struct{ config, want, problem string }{
		{of(`, "nic": "red/web"`), "red/web", ""},
		{of(`, "nic": "web", "tenant": "red"`), "red/web", ""},
		{of(`, "tenant": "red"` + fmt.Sprintf(wish, "db")), "red/db", ""},
		{of(`, "tenant": "red"` + fmt.Sprintf(wish, "red.db")), "red/db", ""},
		{of(`, "tenant": "red", "args": {"cni": {"vrdma.io/nic": "db"}}`), "red/db", ""},
		{of(`, "tenant": "red", "nic": "web"` + fmt.Sprintf(wish, "db")), "red/web", ""},
		{of(`, "tenant": "red"`), "", ""},
		{of(``), "", ""},
		{of(fmt.Sprintf(wish, "db")), "", "does not say of which tenant"},
		{of(`, "tenant": "red"` + fmt.Sprintf(wish, "blue.db")), "", "is not of tenant red"},
		{of(`, "tenant": "red"` + fmt.Sprintf(wish, "../db")), "", "there is no NIC"},
		{of(`, "nic": "default"`), "", "there is no NIC"},
		{of(`, "tenant": "red", "args": {"cni": {"vrdma.io/nic": 7}}`), "", "is not a text"},
		{`{"cniVersion": "1.0.0", "name": "net", "type": "vrdma-cni", "tenant": "red"}`, "", "chain it after another plugin"},
		{`{"cniVersion": "1.0.0", "name": "net", "type": "vrdma-cni", "nic": "red.web"}`, "red/web", ""},
		{of(`, "nic": "red.web"`)[1:], "", "is not what CNI says"},
	} {
		e.daemon.bound = make(map[tenant.Key]control.Binding)
		out, err := e.container("ADD", 1, c.config)
		got := ""
		for k := range e.daemon.bound {
			got = k.Path()
		}
		if (err != nil) != (c.problem != "") || !strings.Contains(out, c.problem) || got != c.want {
			t.Errorf("%s: bound %q: %v, %s; want %q, %q", c.config, got, err, out, c.want, c.problem)
		}
	}
}

func TestBadCalls(t *testing.T) {
	e := newEngine()
	for _, env := range [][]string{
		{}, {"COMMAND=ADD"}, {"COMMAND=ORDER"}, {"COMMAND=ADD", "CONTAINERID=../x", "NETNS=/ns/1", "IFNAME=eth0"},
		{"COMMAND=ADD", "CONTAINERID=c", "NETNS=/ns/1", "IFNAME=averyveryverylongname"}, {"COMMAND=ADD", "CONTAINERID=c", "IFNAME=eth0"},
	} {
		out, err := e.call(chained, env...)
		var told Error
		if !errors.As(err, new(*Error)) || json.Unmarshal([]byte(out), &told) != nil || told.Code != codeEnvironment {
			t.Errorf("%v: %v, %s", env, err, out)
		}
	}
}

// Containers start and end concurrently for one NIC: one has it at a time, and in the end none.
func TestAtOnce(t *testing.T) {
	e := newEngine()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for range 20 {
				e.container("ADD", i+1, chained)
				e.container("DEL", i+1, chained)
				e.call(strings.Replace(chained, `"nic"`, `"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}], "nic"`, 1), "COMMAND=GC")
			}
		})
	}
	wg.Wait()
	if len(e.daemon.bound) > 0 {
		t.Errorf("left: %v", e.daemon.bound)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add(chained, "ADD", "1;K8S_POD_NAME=a")
	f.Add(`{"cniVersion":"1.1.0","name":"n","prevResult":null,"cni.dev/valid-attachments":[{}]}`, "GC", "")
	f.Add(`{"cniVersion":"0.4.0","name":"n","prevResult":{},"tenant":"t","args":{"cni":{"vrdma.io/nic":"x"}}}`, "CHECK", "=;=")
	f.Fuzz(func(t *testing.T, config, command, args string) {
		e := newEngine()
		out, err := e.call(config, "COMMAND="+command, "CONTAINERID=c", "NETNS=/ns/1", "IFNAME=e", "ARGS="+args)
		if (err != nil || out != "") && !json.Valid([]byte(out)) {
			t.Errorf("the answer is not JSON: %q", out)
		}
	})
}

// The configuration in the example for Multus is valid.
func TestMultusExample(t *testing.T) {
	text, err := os.ReadFile("../../../contrib/kubernetes/multus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var definition struct {
		Spec struct{ Config string }
	}
	if err := yaml.Unmarshal(text, &definition); err != nil { // the first document
		t.Fatal(err)
	}
	var list struct {
		Version string           `json:"cniVersion"`
		Name    string           `json:"name"`
		Plugins []map[string]any `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(definition.Spec.Config), &list); err != nil || len(list.Plugins) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	one := list.Plugins[0]
	one["cniVersion"], one["name"] = list.Version, list.Name // as an engine does it
	given, err := json.Marshal(one)
	if err != nil {
		t.Fatal(err)
	}
	c, err := readConfig(bytes.NewReader(given))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"ADD", "DEL", "CHECK"} {
		if err := c.check(command); err != nil {
			t.Errorf("%s: %v", command, err)
		}
	}
	if c.NIC != "team-a.db" {
		t.Errorf("NIC %q", c.NIC)
	}
}
