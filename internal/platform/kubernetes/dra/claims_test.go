package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/platform/kubernetes/deviceplugin"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubetest"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

const (
	soon   = time.Minute
	prefix = "/apis/resource.k8s.io/v1/namespaces/"
)

// A cluster replaces everything around a Node: the API server's claims, the daemon, the pods.
type cluster struct {
	*kubetest.Daemon[deviceplugin.World]
	claims map[string]string // by path; guarded by the lock of Daemon, as are the others
	asked  int
	Pods   map[kubelet.Holder]*deviceplugin.Pod
	client *kubeapi.Client
	away   bool // the API server
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.Lock()
	defer c.Unlock()
	c.asked++
	text, found := c.claims[r.URL.Path]
	switch {
	case c.away:
		w.WriteHeader(http.StatusServiceUnavailable)
	case !found:
		w.WriteHeader(http.StatusNotFound)
	default:
		fmt.Fprint(w, text)
	}
}

func start(t *testing.T) (*cluster, *Node) {
	t.Helper()
	place, err := launch.At(filepath.Join(t.TempDir(), "vrdma.sock"))
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string, namespaces ...string) *tenant.Tenant {
		return &tenant.Tenant{Metadata: tenant.Metadata{Name: name}, Spec: tenant.TenantSpec{Namespaces: namespaces}}
	}
	db := tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: "db"}
	world := deviceplugin.World{
		Tenants:  []*tenant.Tenant{of("red", "web"), of("blue", "train")},
		Networks: []tenant.Key{{Kind: tenant.KindNetwork, Tenant: "red", Name: "front"}, {Kind: tenant.KindNetwork, Tenant: "blue", Name: "a"}, {Kind: tenant.KindNetwork, Tenant: "blue", Name: "b"}},
		NICs:     []tenant.Key{db},
	}
	c := &cluster{
		Daemon: &kubetest.Daemon[deviceplugin.World]{Declared: world, Made: map[tenant.Key]*tenant.NIC{}, Place: place},
		claims: map[string]string{}, Pods: map[kubelet.Holder]*deviceplugin.Pod{},
	}
	if err := c.Directory(db); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	if c.client, err = kubeapi.At(server.URL); err != nil {
		t.Fatal(err)
	}
	return c, c.node(t)
}

// node returns a new Node, which knows of the cluster only what a Node reads at its start.
func (c *cluster) node(t *testing.T) *Node {
	t.Helper()
	n := &Node{
		Name: "node1", Place: c.Place, Slots: 4, Daemon: c, Client: c.client, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Patience: soon,
		Lookup: func(_ context.Context, h kubelet.Holder) (*deviceplugin.Pod, error) {
			c.Lock()
			defer c.Unlock()
			if p := c.Pods[h]; p != nil {
				return p, nil
			}
			return nil, deviceplugin.ErrUnknown
		},
	}
	if err := n.Open(filepath.Join(filepath.Dir(c.Place.Socket), "cdi")); err != nil {
		t.Fatal(err)
	}
	return n
}

// parameters are those of a claim, or a class, in an allocation.
func parameters(source, fields string) string {
	return fmt.Sprintf(`{"source":%q,"requests":["nic"],"opaque":{"driver":"vrdma.io","parameters":{"apiVersion":"vrdma.io/v1","kind":"ClaimParameters"%s}}}`, source, fields)
}

// claim makes an allocated claim and its pod. The UID is the name and a 1.
func (c *cluster) claim(namespace, name, slot string, configs ...string) kubelet.Claim {
	c.Lock()
	defer c.Unlock()
	c.Pods[kubelet.Holder{Namespace: namespace, Name: name}] = &deviceplugin.Pod{Namespace: namespace, Name: name, UID: "pod-" + name, Labels: map[string]string{"role": name}}
	c.claims[prefix+namespace+"/resourceclaims/"+name] = fmt.Sprintf(`{"metadata":{"name":%q,"namespace":%q,"uid":"%[1]s-1"},"status":{
		"allocation":{"devices":{"results":[{"request":"nic","driver":"vrdma.io","pool":"node1","device":%[3]q}],"config":[%[4]s]}},
		"reservedFor":[{"resource":"pods","name":%[1]q,"uid":"pod-%[1]s"}]}}`, name, namespace, slot, strings.Join(configs, ","))
	return kubelet.Claim{Namespace: namespace, Name: name, UID: name + "-1"}
}

// leads returns the NIC that a slot links to; "": none.
func leads(t *testing.T, n *Node, slot string) string {
	t.Helper()
	to, err := os.Readlink(n.link(slot))
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(filepath.Dir(to)) + "/" + filepath.Base(to)
}

func kept(t *testing.T, n *Node) int {
	t.Helper()
	all, err := n.records()
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestPrepare(t *testing.T) {
	c, n := start(t)
	shop := c.claim("web", "shop", "nic-2", parameters("FromClass", `,"rate":{"out":"1Gbit"}`), `{"source":"FromClaim","opaque":{"driver":"other.io","parameters":7}}`,
		parameters("FromClaim", `,"tenant":"red","network":"front","address":"10.1.0.9","limits":{"qps":8}`))
	for range 2 { // the kubelet may ask twice
		got, err := n.Prepare(t.Context(), shop)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].Request != "nic" || got[0].Pool != "node1" || got[0].Device != "nic-2" || !slices.Equal(got[0].Names, []string{"vrdma.io/claim=nic-2"}) {
			t.Errorf("prepared %+v", got)
		}
	}
	nic := c.Made[tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: "shop-shop1"}]
	if nic == nil {
		t.Fatalf("NICs %v", c.Names())
	}
	if nic.Spec.Network != "front" || nic.Spec.Address.String() != "10.1.0.9" || nic.Spec.Limits.QPs != 8 || nic.Spec.Rate.Out != 1e9 {
		t.Errorf("the NIC is %+v", nic.Spec)
	}
	for name, want := range map[string]string{"role": "shop", "vrdma.io/pod": "pod-shop", "vrdma.io/claim": "shop-1", "vrdma.io/claims-of": "node1"} {
		if got := nic.Metadata.Labels[name]; got != want {
			t.Errorf("label %s is %q, want %q", name, got, want)
		}
	}
	// The slot contains what the CDI file names.
	if _, err := os.Stat(filepath.Join(n.link("nic-2"), "nic", "vrdma.sock.d", "ld.so.preload")); err != nil {
		t.Error(err)
	}
	// Unprepared twice, after the claim was deleted.
	c.Set(func() { clear(c.claims) })
	for range 2 {
		if err := n.Unprepare(t.Context(), shop); err != nil {
			t.Error(err)
		}
	}
	if got := c.Names(); len(got) != 0 || leads(t, n, "nic-2") != "" || kept(t, n) != 0 {
		t.Errorf("left behind: NICs %v, slot to %q, %d records", got, leads(t, n, "nic-2"), kept(t, n))
	}
	if err := n.Unprepare(t.Context(), kubelet.Claim{Namespace: "web", Name: "x", UID: "../x"}); err != nil {
		t.Error(err)
	}
}

func TestRefused(t *testing.T) {
	c, n := start(t)
	instead := func(old, now string) func(string) string {
		return func(text string) string {
			if !strings.Contains(text, old) {
				t.Errorf("%s is not in %s", old, text)
			}
			return strings.Replace(text, old, now, 1)
		}
	}
	for name, test := range map[string]struct {
		namespace, slot string
		config          []string
		change          func(string) string
		want            string
	}{
		"a foreign tenant":        {"web", "nic-0", []string{parameters("FromClaim", `,"tenant":"blue"`)}, nil, `may not use tenant "blue"`},
		"a tenant of nobody's":    {"web", "nic-0", []string{parameters("FromClaim", `,"tenant":"none"`)}, nil, `may not use tenant "none"`},
		"a namespace of nobody's": {"kube-system", "nic-0", nil, nil, "belongs to no tenant"},
		"which network":           {"train", "nic-0", nil, nil, "has networks a, b: choose one"},
		"a foreign network":       {"web", "nic-0", []string{parameters("FromClaim", `,"network":"a"`)}, nil, `red has no network "a"`},
		"a foreign NIC":           {"train", "nic-0", []string{parameters("FromClaim", `,"nic":"db"`)}, nil, `blue has no NIC "db"`},
		"NIC and address":         {"web", "nic-0", []string{parameters("FromClaim", `,"nic":"db","address":"10.1.0.1"`)}, nil, "leave out address"},
		"an unknown field":        {"web", "nic-0", []string{parameters("FromClaim", `,"adress":"10.1.0.1"`)}, nil, `unknown field "adress"`},
		"not an address":          {"web", "nic-0", []string{parameters("FromClaim", `,"address":"10.1"`)}, nil, "10.1"},
		"not a rate":              {"web", "nic-0", []string{parameters("FromClaim", `,"rate":{"out":"fast"}`)}, nil, "fast"},
		"another kind":            {"web", "nic-0", []string{strings.Replace(parameters("FromClaim", ""), "ClaimParameters", "NIC", 1)}, nil, "write apiVersion: vrdma.io/v1, kind: ClaimParameters"},
		"the class has said it":   {"web", "nic-0", []string{parameters("FromClass", `,"rate":{"out":"1Gbit"}`), parameters("FromClaim", `,"rate":{"out":"9Gbit"}`)}, nil, "the device class sets the rate already"},
		"two configs":             {"web", "nic-0", []string{parameters("FromClaim", `,"network":"front"`), parameters("FromClaim", `,"address":"10.1.0.1"`)}, nil, "more than one config"},
		"no such slot":            {"web", "nic-4", nil, nil, `no slot "nic-4"`},
		"a path for a slot":       {"web", "../nic-0", nil, nil, "no slot"},
		"of another host":         {"web", "nic-0", nil, instead(`"pool":"node1"`, `"pool":"node2"`), "no NIC of this host"},
		"of another driver":       {"web", "nic-0", nil, instead(`"driver":"vrdma.io"`, `"driver":"other.io"`), "no NIC of this host"},
		"two NICs":                {"web", "nic-0", nil, instead(`"results":[`, `"results":[{"request":"b","driver":"vrdma.io","pool":"node1","device":"nic-1"},`), "a pod has one NIC"},
		"an administrator's":      {"web", "nic-0", nil, instead(`"pool":"node1"`, `"pool":"node1","adminAccess":true`), "no adminAccess"},
		"two pods":                {"web", "nic-0", nil, instead(`"reservedFor":[`, `"reservedFor":[{"resource":"pods","name":"b","uid":"2"},`), "ResourceClaimTemplate"},
		"no pod":                  {"web", "nic-0", nil, instead(`"resource":"pods"`, `"resource":"robots","apiGroup":"x"`), "not a pod"},
		"another UID":             {"web", "nic-0", nil, instead(`"uid":"w-1"`, `"uid":"w-2"`), "no such object"},
		"a pod that was before":   {"web", "nic-0", nil, instead(`"uid":"pod-w"`, `"uid":"pod-v"`), "not known yet"},
		"not allocated":           {"web", "nic-0", nil, instead(`"allocation"`, `"b"`), "not allocated"},
	} {
		claim := c.claim(test.namespace, "w", test.slot, test.config...)
		if test.change != nil {
			c.Set(func() {
				path := prefix + test.namespace + "/resourceclaims/w"
				c.claims[path] = test.change(c.claims[path])
			})
		}
		n.Patience = soon
		if name == "a pod that was before" {
			n.Patience = time.Second // it does not come
		}
		got, err := n.Prepare(t.Context(), claim)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, %v, want %q", name, got, err, test.want)
		}
		if strings.Contains(fmt.Sprint(err), "blue") && test.namespace == "web" && name != "a foreign tenant" {
			t.Errorf("%s: says something of another tenant: %v", name, err)
		}
		if len(c.Names()) != 0 || kept(t, n) != 0 || leads(t, n, "nic-0") != "" {
			t.Fatalf("%s: left behind %v, %d records", name, c.Names(), kept(t, n))
		}
	}
}

// A claim whose pod's labels are unknown waits.
func TestPrepareWaits(t *testing.T) {
	c, n := start(t)
	shop := c.claim("web", "shop", "nic-0")
	holder := kubelet.Holder{Namespace: "web", Name: "shop"}
	pod := c.Pods[holder]
	c.Set(func() { delete(c.Pods, holder) })
	done := make(chan error, 1)
	go func() { _, err := n.Prepare(t.Context(), shop); done <- err }()
	time.Sleep(20 * time.Millisecond) // without waiting for the labels it would continue here
	if got := c.Names(); len(got) != 0 {
		t.Errorf("NICs %v of a pod of which nothing is known", got)
	}
	c.Set(func() { c.Pods[holder] = pod })
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A declared NIC belongs to one claim at a time, and stays afterwards.
func TestDeclared(t *testing.T) {
	c, n := start(t)
	first := c.claim("web", "first", "nic-0", parameters("FromClaim", `,"nic":"db"`))
	second := c.claim("web", "second", "nic-1", parameters("FromClaim", `,"nic":"db"`))
	if _, err := n.Prepare(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Prepare(t.Context(), second); err == nil || !strings.Contains(err.Error(), "NIC red/db belongs to claim web/first") {
		t.Errorf("a second claim: %v", err)
	}
	if err := n.Unprepare(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Prepare(t.Context(), second); err != nil {
		t.Error(err)
	}
	if leads(t, n, "nic-0") != "" || leads(t, n, "nic-1") != "red/db" || len(c.Made) != 0 {
		t.Errorf("slots lead to %q, %q", leads(t, n, "nic-0"), leads(t, n, "nic-1"))
	}
}

// The plugin, the kubelet and the daemon restart in the middle of everything.
func TestRestarts(t *testing.T) {
	c, n := start(t)
	shop := c.claim("web", "shop", "nic-0")
	c.Set(func() { c.Down = errors.New("down") })
	if _, err := n.Prepare(t.Context(), shop); err == nil || !strings.Contains(err.Error(), "down") {
		t.Errorf("without a daemon: %v", err)
	}
	c.Set(func() { c.Down = nil })
	if _, err := n.Prepare(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	// A restarted plugin has the claims that its predecessor prepared, without asking the API server.
	n = c.node(t)
	c.Set(func() { c.away, c.Down = true, errors.New("down") })
	if got, err := n.Prepare(t.Context(), shop); err != nil || got[0].Device != "nic-0" {
		t.Errorf("after a restart, with everybody away: %v, %v", got, err)
	}
	// The claim is deleted while the daemon is away: the pod does not wait.
	if err := n.Unprepare(t.Context(), shop); err != nil {
		t.Errorf("taken back without a daemon: %v", err)
	}
	if leads(t, n, "nic-0") != "" || len(c.Names()) != 1 {
		t.Errorf("slot leads to %q, NICs %v", leads(t, n, "nic-0"), c.Names())
	}
	n = c.node(t) // and we restart
	if err := n.sweep(t.Context()); err == nil {
		t.Error("swept without a daemon")
	}
	c.Set(func() { c.away, c.Down = false, nil })
	if err := n.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if got := c.Names(); len(got) != 0 || kept(t, n) != 0 {
		t.Errorf("left behind: NICs %v, %d records", got, kept(t, n))
	}
	// The NIC was not removed in time, and is requested again: it is there again, and stays.
	if _, err := n.Prepare(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	c.Set(func() { c.Down = errors.New("down") })
	if err := n.Unprepare(t.Context(), shop); err != nil {
		t.Error(err)
	}
	c.Set(func() { c.Down = nil })
	if _, err := n.Prepare(t.Context(), shop); err != nil {
		t.Fatal(err)
	}
	if err := n.sweep(t.Context()); err != nil || len(c.Names()) != 1 || leads(t, n, "nic-0") != "red/shop-shop1" {
		t.Errorf("after it came again: %v, NICs %v, slot to %q", err, c.Names(), leads(t, n, "nic-0"))
	}
}

// A claim that is never unprepared is removed, but not because another component does not answer.
func TestSweep(t *testing.T) {
	c, n := start(t)
	shop, other := c.claim("web", "shop", "nic-0"), c.claim("web", "other", "nic-1")
	for _, claim := range []kubelet.Claim{shop, other} {
		if _, err := n.Prepare(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	stray := &tenant.NIC{Metadata: tenant.Metadata{Name: "stray", Tenant: "red", Labels: map[string]string{labelNode: "node1", labelClaim: "lost"}}}
	far := &tenant.NIC{Metadata: tenant.Metadata{Name: "far", Tenant: "red", Labels: map[string]string{labelNode: "node2"}}}
	c.Set(func() { c.Made[stray.Key()], c.Made[far.Key()] = stray, far })
	sweep := func(times int) {
		t.Helper()
		for range times {
			if err := n.sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.Set(func() { delete(c.claims, prefix+"web/resourceclaims/shop") })
	sweep(misses - 1)
	c.Set(func() { c.away = true })
	for range 2 * misses {
		if n.sweep(t.Context()) == nil {
			t.Error("swept without an API server")
		}
	}
	c.Set(func() { c.away = false })
	if got := len(c.Names()); got != 4 {
		t.Errorf("NICs %v, want all four: not yet", c.Names())
	}
	sweep(1)
	if got, want := c.Names(), []string{"red/far", "red/other-other1"}; !slices.Equal(got, want) {
		t.Errorf("NICs %v, want %v", got, want)
	}
	if leads(t, n, "nic-0") != "" || leads(t, n, "nic-1") == "" || kept(t, n) != 1 {
		t.Errorf("slots lead to %q, %q, %d records", leads(t, n, "nic-0"), leads(t, n, "nic-1"), kept(t, n))
	}
	// The scheduler gave the slot to another claim: the previous claim is gone, whatever the kubelet says.
	next := c.claim("web", "next", "nic-1")
	if _, err := n.Prepare(t.Context(), next); err != nil {
		t.Fatal(err)
	}
	sweep(1)
	if got, want := c.Names(), []string{"red/far", "red/next-next1"}; !slices.Equal(got, want) || leads(t, n, "nic-1") != "red/next-next1" {
		t.Errorf("NICs %v, want %v; slot to %q", got, want, leads(t, n, "nic-1"))
	}
	// Late requests for the previous claim do no harm.
	if err := n.Unprepare(t.Context(), other); err != nil || leads(t, n, "nic-1") != "red/next-next1" {
		t.Errorf("%v, slot to %q", err, leads(t, n, "nic-1"))
	}
}

func FuzzParseParameters(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"vrdma.io/v1","kind":"ClaimParameters","tenant":"red","address":"10.0.0.1","rate":{"out":"1Gbit"},"limits":{"qps":3,"memory":"1Gi"}}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParseParameters(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := ParseParameters(again)
		if err != nil || !slices.Equal(p.said(), q.said()) {
			t.Errorf("%s became %s: %v", text, again, err)
		}
	})
}

// A record that a power loss damaged counts as missing, and keeps no other claim from a NIC.
func TestDamaged(t *testing.T) {
	c, n := start(t)
	shop, other, third := c.claim("web", "shop", "nic-0"), c.claim("web", "other", "nic-1"), c.claim("web", "third", "nic-2")
	prepare := func(claim kubelet.Claim) {
		t.Helper()
		if _, err := n.Prepare(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	damage := func(text string) {
		t.Helper()
		if err := os.WriteFile(n.recordFile(shop.UID), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	prepare(shop)
	damage("")
	prepare(other)
	if _, err := os.Stat(n.recordFile(shop.UID) + damagedEnd); err != nil || kept(t, n) != 1 {
		t.Errorf("%d records, and the damaged one: %v", kept(t, n), err)
	}
	// The kubelet asks again: the record is complete again, and nothing is removed.
	prepare(shop)
	for range misses {
		if err := n.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := c.Names(), []string{"red/other-other1", "red/shop-shop1"}; !slices.Equal(got, want) || kept(t, n) != 2 {
		t.Errorf("NICs %v, want %v", got, want)
	}
	// The kubelet unprepares the claim: the NIC becomes free.
	damage(`{"claim":{},"slot":"nic-0"}`)
	if err := n.Unprepare(t.Context(), shop); err != nil {
		t.Error(err)
	}
	prepare(third)
	for range misses {
		if err := n.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := c.Names(), []string{"red/other-other1", "red/third-third1"}; !slices.Equal(got, want) {
		t.Errorf("NICs %v, want %v", got, want)
	}
	// An unreadable record may be good, so nothing is removed.
	if err := os.Mkdir(n.recordFile(shop.UID), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := n.sweep(t.Context()); err == nil {
		t.Error("swept, though a record cannot be read")
	}
}
