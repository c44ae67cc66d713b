package deviceplugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// podText returns a pod with labels, as the API server has it in a version.
func podText(uid, version, role string) json.RawMessage {
	return json.RawMessage(fmt.Sprintf(`{"metadata":{"name":"shop","namespace":"web","uid":%q,"resourceVersion":%q,"labels":{"role":%q,"vrdma.io/node":"evil"}},"spec":{"nodeName":"node1"}}`, uid, version, role))
}

// role waits until a NIC has this label.
func (c *cluster) role(t *testing.T, k tenant.Key, want string) {
	t.Helper()
	got := ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		c.Lock()
		got = c.Made[k].Metadata.Labels["role"]
		ours := c.Made[k].Metadata.Labels[labelNode]
		c.Unlock()
		if ours != "node1" {
			t.Fatalf("a pod has changed our own label to %q", ours)
		}
		if got == want {
			return
		}
	}
	t.Fatalf("role %q, want %q", got, want)
}

// The labels of a NIC follow those of its pod, through a watch.
func TestLabeler(t *testing.T) {
	c, n := start(t)
	events := make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/pods" || r.URL.Query().Get("fieldSelector") != "spec.nodeName=node1" {
			t.Errorf("asked for %s", r.URL)
		}
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"10"},"items":[%s]}`, podText("77", "9", "db"))
			return
		}
		w.(http.Flusher).Flush()
		for {
			select {
			case text := <-events:
				io.WriteString(w, text)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer server.Close()
	client, err := kubeapi.At(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, uid, role string) tenant.Key {
		nic := &tenant.NIC{Metadata: tenant.Metadata{Name: name, Tenant: "red", Labels: map[string]string{"role": role, labelNode: "node1", labelPod: uid}}}
		if err := c.Put(nic); err != nil {
			t.Fatal(err)
		}
		return nic.Key()
	}
	shop, other := put("shop-77", "77", "old"), put("other-88", "88", "kept")
	l := n.Labeler(client)
	l.Every = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); l.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	c.role(t, shop, "db") // what the list says
	modified := func(version, role string) string {
		return fmt.Sprintf(`{"type":"MODIFIED","object":%s}`, podText("77", version, role))
	}
	events <- modified("11", "cache")
	c.role(t, shop, "cache")
	// While the daemon is away, the update is repeated.
	c.Set(func() { c.Down = errors.New("down") })
	events <- modified("12", "front")
	time.Sleep(5 * time.Millisecond)
	c.Set(func() { c.Down = nil })
	c.role(t, shop, "front")
	// An answer of the API server is newer than the late watch: older versions are ignored.
	l.Made(&Pod{UID: "77", version: 20, Labels: map[string]string{"role": "newest"}})
	c.role(t, shop, "newest")
	events <- modified("15", "late")
	events <- fmt.Sprintf(`{"type":"ADDED","object":%s}`, podText("88", "16", "now"))
	c.role(t, other, "now")
	c.role(t, shop, "newest")
	events <- modified("21", "last")
	c.role(t, shop, "last")
	events <- fmt.Sprintf(`{"type":"DELETED","object":%s}`, podText("77", "22", "gone"))
	events <- fmt.Sprintf(`{"type":"MODIFIED","object":%s}`, podText("88", "23", "then"))
	c.role(t, other, "then")
	c.role(t, shop, "last")
}

// A NIC that fails does not keep others from their labels, and a NIC with a warning gets them.
func TestLabelsFail(t *testing.T) {
	c, n := start(t)
	names := []string{"a", "b", "c"}
	key := func(name string) tenant.Key { return tenant.Key{Kind: tenant.KindNIC, Tenant: "red", Name: name} }
	l := n.Labeler(nil)
	for _, name := range names {
		if err := c.Put(&tenant.NIC{Metadata: tenant.Metadata{Name: name, Tenant: "red", Labels: map[string]string{"role": "old", labelNode: "node1", labelPod: name}}}); err != nil {
			t.Fatal(err)
		}
		l.Made(&Pod{UID: name, version: 1, Labels: map[string]string{"role": "new"}})
	}
	puts := 0
	c.Answer = func(name string) (bool, error) {
		puts++
		switch name {
		case "b":
			return true, Warning("no directory yet")
		case "c":
			return true, nil
		}
		return false, errors.New("quota")
	}
	if err := l.apply(); err == nil || !strings.Contains(err.Error(), "NIC red/a: quota") || strings.Contains(err.Error(), "red/b") || puts != 3 {
		t.Errorf("%d were put: %v", puts, err)
	}
	c.role(t, key("a"), "old")
	c.role(t, key("b"), "new")
	c.role(t, key("c"), "new")
	if err := l.apply(); err == nil || puts != 4 {
		t.Errorf("%d were put: %v", puts, err)
	}
}

// A daemon that did not answer in time may execute the request later. Its labels, old by then, do not stay.
func TestLabelsLate(t *testing.T) {
	c, n := start(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprintf(w, `{"metadata":{"resourceVersion":"10"},"items":[%s]}`, podText("77", "9", "first"))
			return
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	client, err := kubeapi.At(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	nic := &tenant.NIC{Metadata: tenant.Metadata{Name: "shop", Tenant: "red", Labels: map[string]string{"role": "old", labelNode: "node1", labelPod: "77"}}}
	if err := c.Put(nic); err != nil {
		t.Fatal(err)
	}
	ended, asked := make(chan struct{}), make(chan struct{})
	first := true
	c.Answer = func(string) (bool, error) {
		if first {
			first = false
			close(asked)
			return false, fmt.Errorf("put: %w", &Unanswered{time.Second, ended})
		}
		return true, nil
	}
	l := n.Labeler(client)
	l.Every = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); l.Run(ctx) }()
	defer func() { cancel(); <-over }()
	<-asked
	l.Made(&Pod{UID: "77", version: 20, Labels: map[string]string{"role": "second"}})
	c.role(t, nic.Key(), "second")
	time.Sleep(5 * time.Millisecond) // passes that find nothing to do
	c.Set(func() { c.Made[nic.Key()].Metadata.Labels["role"] = "first" })
	close(ended)
	c.role(t, nic.Key(), "second")
	for end := time.Now().Add(time.Minute); l.waits(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it waits for what has ended")
		}
	}
}
