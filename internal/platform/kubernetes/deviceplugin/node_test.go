package deviceplugin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubelet"
	"vrdma.dev/vrdma/internal/platform/kubernetes/kubetest"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A cluster replaces everything around a Node.
type cluster struct {
	*kubetest.Daemon[World]
	holders map[string]kubelet.Holder // guarded by the lock of Daemon, as is Pods
	Pods    map[kubelet.Holder]*Pod
}

func start(t *testing.T) (*cluster, *Node) {
	t.Helper()
	place, err := launch.At(filepath.Join(t.TempDir(), "vrdma.sock"))
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		Daemon:  &kubetest.Daemon[World]{Declared: example(), Made: map[tenant.Key]*tenant.NIC{}, Place: place},
		holders: map[string]kubelet.Holder{}, Pods: map[kubelet.Holder]*Pod{},
	}
	n := &Node{
		Name: "node1", Place: place, Slots: 3, Daemon: c, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Every: 4 * time.Millisecond,
		Holders: func(context.Context) (map[string]kubelet.Holder, error) {
			c.Lock()
			defer c.Unlock()
			return maps.Clone(c.holders), nil
		},
		Lookup: func(_ context.Context, h kubelet.Holder) (*Pod, error) {
			c.Lock()
			defer c.Unlock()
			if p := c.Pods[h]; p != nil {
				return p, nil
			}
			return nil, ErrUnknown
		},
	}
	if err := n.Open(filepath.Join(t.TempDir(), "cdi")); err != nil {
		t.Fatal(err)
	}
	return c, n
}

func TestSlots(t *testing.T) {
	c, n := start(t)
	shop := kubelet.Holder{Namespace: "web", Name: "shop"}
	c.holders["1"], c.holders["2"] = shop, shop
	c.Pods[shop] = &Pod{Namespace: "web", Name: "shop", UID: "77"}
	for _, slot := range []string{"1", "2"} { // two containers of a pod have one NIC
		if err := n.Prepare(t.Context(), []string{slot}); err != nil {
			t.Fatal(err)
		}
		at, _ := n.Place.NIC("red", "shop-77")
		if to, err := os.Readlink(n.link(slot)); err != nil || to != at.Gate() {
			t.Errorf("slot %s leads to %s (%v), want %s", slot, to, err, at.Gate())
		}
		// The slot contains what the CDI file names.
		if _, err := os.Stat(filepath.Join(n.link(slot), "nic", "vrdma.sock.d", "ld.so.preload")); err != nil {
			t.Error(err)
		}
	}
	if got, want := c.Names(), []string{"red/shop-77"}; !slices.Equal(got, want) {
		t.Errorf("NICs %v, want %v", got, want)
	}
	// Another host's NIC stays, whatever pods are here.
	other := &tenant.NIC{Metadata: tenant.Metadata{Name: "far", Tenant: "red", Labels: map[string]string{labelNode: "node2"}}}
	c.Made[other.Key()] = other
	sweep := func(times int) {
		t.Helper()
		for range times {
			if err := n.sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	there := func(slot string) bool { _, err := os.Lstat(n.link(slot)); return err == nil }
	delete(c.holders, "1")
	sweep(sweeps - 1)
	c.holders["1"] = shop // the kubelet lists it again
	sweep(1)
	delete(c.holders, "1")
	sweep(sweeps - 1)
	if !there("1") {
		t.Error("a slot that had a holder a moment ago is free")
	}
	sweep(1)
	if there("1") {
		t.Error("a slot that nobody has still leads somewhere")
	}
	if got, want := c.Names(), []string{"red/far", "red/shop-77"}; !slices.Equal(got, want) {
		t.Errorf("NICs %v, want %v: the other container is there", got, want)
	}
	// A kubelet that has just started may list no pod yet.
	since := time.Now()
	n.Since = func() time.Time { return since }
	delete(c.holders, "2")
	sweep(2 * sweeps)
	if got, want := c.Names(), []string{"red/far", "red/shop-77"}; !slices.Equal(got, want) || !there("2") {
		t.Errorf("NICs %v, want %v: the kubelet has just started", got, want)
	}
	since = since.Add(-fresh)
	sweep(sweeps - 1)
	if got, want := c.Names(), []string{"red/far", "red/shop-77"}; !slices.Equal(got, want) || !there("2") {
		t.Errorf("NICs %v, want %v: not yet", got, want)
	}
	sweep(1)
	if got, want := c.Names(), []string{"red/far"}; !slices.Equal(got, want) {
		t.Errorf("NICs %v, want %v", got, want)
	}
}

// A pod waits until its NIC is known, and fails if there is none for it.
func TestPrepareWaits(t *testing.T) {
	c, n := start(t)
	shop := kubelet.Holder{Namespace: "web", Name: "shop"}
	done := make(chan error, 1)
	go func() { done <- n.Prepare(t.Context(), []string{"0"}) }()
	c.Set(func() { c.holders["0"] = shop })
	time.Sleep(20 * time.Millisecond) // without waiting for the labels it would continue here
	if _, err := os.Lstat(n.link("0")); err == nil {
		t.Error("a pod of which nothing is known has a NIC")
	}
	c.Set(func() { c.Pods[shop] = &Pod{Namespace: "web", Name: "shop", UID: "1"} })
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.Prepare(ctx, []string{"2"}); !errors.Is(err, ErrUnknown) {
		t.Errorf("a slot of nobody's: %v", err)
	}
	for _, id := range []string{"3", "-1", "01", "../0", ""} {
		if err := n.Prepare(t.Context(), []string{id}); err == nil {
			t.Errorf("slot %q was prepared", id)
		}
	}
	stranger := kubelet.Holder{Namespace: "kube-system", Name: "x"}
	c.holders["1"], c.Pods[stranger] = stranger, &Pod{Namespace: "kube-system", Name: "x", UID: "2"}
	if err := n.Prepare(t.Context(), []string{"1"}); err == nil || !strings.Contains(err.Error(), "no tenant") {
		t.Errorf("a pod of no tenant's: %v", err)
	}
}

func TestAllocate(t *testing.T) {
	_, n := start(t)
	if names, err := n.Allocate(t.Context(), []string{"2"}); err != nil || !slices.Equal(names, []string{"vrdma.io/pod=2"}) {
		t.Errorf("%v, %v", names, err)
	}
	for _, ids := range [][]string{{"3"}, {"0", "1"}, {}} {
		if names, err := n.Allocate(t.Context(), ids); err == nil {
			t.Errorf("%v became %v", ids, names)
		}
	}
}

// The slots are healthy as long as the daemon works.
func TestWatch(t *testing.T) {
	c, n := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan []kubelet.Device)
	ended := make(chan error, 1)
	go func() {
		ended <- n.Watch(ctx, func(d []kubelet.Device) error {
			select {
			case told <- d:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	for _, down := range []error{nil, errors.New("down"), nil} {
		c.Set(func() { c.Down = down })
		if got := <-told; len(got) != 3 || got[0].ID != "0" || got[2].ID != "2" || got[1].Healthy != (down == nil) {
			t.Errorf("daemon %v: devices %v", down, got)
		}
	}
	cancel()
	<-ended
}

func TestAPI(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var shop metadata
	shop.Metadata.Name, shop.Metadata.Namespace, shop.Metadata.UID = "shop", "web", "77"
	shop.Spec.NodeName = "node1"
	shop.Metadata.Labels = map[string]string{"role": "db"}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/pods":
			json.NewEncoder(w).Encode(map[string]any{"items": []metadata{{}, shop}})
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusForbidden)
		case r.URL.Path == "/api/v1/namespaces/web/pods/shop":
			json.NewEncoder(w).Encode(shop)
		case strings.HasSuffix(r.URL.Path, "/garbage"):
			w.Write([]byte("{"))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	client, err := kubeapi.At(server.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	a := &API{Client: client}
	if _, err := a.Pod(t.Context(), kubelet.Holder{Namespace: "web", Name: "shop"}); err == nil || !strings.Contains(err.Error(), "lacks a right") {
		t.Errorf("without a token: %v", err)
	}
	if p, err := a.OnHost(t.Context(), kubelet.Holder{Namespace: "web", Name: "shop"}); err != nil || p.UID != "77" {
		t.Errorf("from a list: %v, %v", p, err)
	}
	if _, err := a.OnHost(t.Context(), kubelet.Holder{Namespace: "web", Name: "other"}); !errors.Is(err, ErrUnknown) {
		t.Errorf("not in the list: %v", err)
	}
	a.Token = token
	if p, err := a.Pod(t.Context(), kubelet.Holder{Namespace: "web", Name: "shop"}); err != nil || p.UID != "77" || p.Labels["role"] != "db" {
		t.Errorf("%v, %v", p, err)
	}
	a.Node = "node2"
	if _, err := a.Pod(t.Context(), kubelet.Holder{Namespace: "web", Name: "shop"}); !errors.Is(err, ErrUnknown) {
		t.Errorf("a pod on another host: %v", err)
	}
	a.Node = "node1"
	if p, err := a.Pod(t.Context(), kubelet.Holder{Namespace: "web", Name: "shop"}); err != nil || p.UID != "77" {
		t.Errorf("a pod on this host: %v, %v", p, err)
	}
	if _, err := a.Pod(t.Context(), kubelet.Holder{Namespace: "web", Name: "other"}); !errors.Is(err, ErrUnknown) {
		t.Errorf("a pod that is not there: %v", err)
	}
	if _, err := a.Pod(t.Context(), kubelet.Holder{Namespace: "web", Name: "garbage"}); err == nil {
		t.Error("garbage is a pod")
	}
}
