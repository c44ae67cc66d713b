package dra

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/platform/kubernetes/kubeapi"
)

// A shelf is an API server's ResourceSlices: it has versions, rejects an update of another version, and reports
// changes.
type shelf struct {
	mu      sync.Mutex
	version int
	slices  map[string]*slice
	history []change
	changed chan struct{} // closed with the next change
	writes  int
	ended   chan struct{}
}

// A change is a line of a watch.
type change struct {
	version int
	text    string
}

func startShelf(t *testing.T) (*shelf, *kubeapi.Client) {
	t.Helper()
	s := &shelf{version: 1, slices: map[string]*slice{}, changed: make(chan struct{}), ended: make(chan struct{})}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(s.ended) })
	client, err := kubeapi.At(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

// change changes an object and reports the result.
func (s *shelf) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := func(o *slice) string {
		text, _ := json.Marshal(o) // strings and numbers
		return string(text)
	}
	before := make(map[string]string)
	for name, one := range s.slices {
		before[name] = text(one)
	}
	f()
	tell := func(kind, object string) {
		s.history = append(s.history, change{s.version, fmt.Sprintf(`{"type":%q,"object":%s}`, kind, object)})
	}
	for name, one := range s.slices {
		if text(one) != before[name] {
			s.version++
			one.Metadata.Version = strconv.Itoa(s.version)
			tell("MODIFIED", text(one))
		}
	}
	for name, old := range before {
		if s.slices[name] == nil {
			s.version++
			gone := new(slice)
			json.Unmarshal([]byte(old), gone) // our own text
			gone.Metadata.Version = strconv.Itoa(s.version)
			tell("DELETED", text(gone))
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/api/v1/nodes/node1" {
		io.WriteString(w, `{"metadata":{"uid":"node-uid"}}`)
		return
	}
	name := strings.Trim(strings.TrimPrefix(r.URL.Path, slicesPath), "/")
	if r.Method == http.MethodGet {
		s.read(w, r)
		return
	}
	in := new(slice)
	if r.Method != http.MethodDelete {
		if err := json.NewDecoder(r.Body).Decode(in); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	code := http.StatusOK
	s.change(func() {
		is := s.slices[name]
		switch {
		case r.Method == http.MethodPost && s.slices[in.Metadata.Name] != nil, r.Method == http.MethodPut && (is == nil || is.Metadata.Version != in.Metadata.Version):
			code = http.StatusConflict
		case r.Method == http.MethodDelete:
			delete(s.slices, name)
		default:
			s.writes++
			in.Metadata.Version = ""
			s.slices[in.Metadata.Name] = in
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(in)
}

// read lists, or watches.
func (s *shelf) read(w http.ResponseWriter, r *http.Request) {
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for err == nil {
		s.mu.Lock()
		changed, history := s.changed, s.history
		s.mu.Unlock()
		for _, one := range history {
			if one.version > from {
				io.WriteString(w, one.text)
				from = one.version
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-s.ended:
			return
		case <-r.Context().Done():
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var items []*slice
	for _, one := range s.slices {
		items = append(items, one)
	}
	json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]string{"resourceVersion": strconv.Itoa(s.version)}, "items": items})
}

// becomes waits until the slices have these numbers of devices.
func (s *shelf) becomes(t *testing.T, want ...int) {
	t.Helper()
	var got []int
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		got = nil
		generations := map[int64]bool{}
		for _, one := range s.slices {
			got = append(got, len(one.Spec.Devices))
			generations[one.Spec.Pool.Generation] = true
			if one.Spec.Pool.Slices != int64(len(want)) || one.Spec.Driver != "vrdma.io" || one.Spec.NodeName != "node1" || one.Spec.Pool.Name != "node1" || one.Metadata.Owners[0].UID != "node-uid" {
				got = append(got, -1)
			}
		}
		s.mu.Unlock()
		slices.Sort(got)
		if slices.Equal(got, want) && len(generations) == 1 {
			return
		}
	}
	t.Fatalf("slices of %v devices, want %v", got, want)
}

func TestPublisher(t *testing.T) {
	s, client := startShelf(t)
	names := make([]string, 130)
	for i := range names {
		names[i] = slotName(i)
	}
	var down atomic.Bool
	run := func(names []string) (stop func()) {
		p := &Publisher{Client: client, Node: "node1", Slots: names, Works: func() bool { return !down.Load() }, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Every: time.Millisecond}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); p.Run(ctx) }()
		stop = func() { cancel(); <-ended }
		t.Cleanup(stop)
		return stop
	}
	stop := run(names)
	s.becomes(t, 2, 128)
	// The kubelet deletes the slices while the plugin is away.
	s.change(func() { clear(s.slices) })
	s.becomes(t, 2, 128)
	// Another client changes one slice and creates another.
	s.change(func() {
		for _, one := range s.slices {
			one.Spec.Devices = nil
		}
		s.slices["odd"] = &slice{Metadata: sliceMeta{Name: "odd", Version: "1"}, Spec: sliceSpec{Driver: Driver, NodeName: "node1", Pool: pool{"odd", 9, 1}}}
	})
	s.becomes(t, 2, 128)
	// The daemon is away for a while.
	down.Store(true)
	s.becomes(t, 0)
	down.Store(false)
	s.becomes(t, 2, 128)
	stop()
	written := func() int { s.mu.Lock(); defer s.mu.Unlock(); return s.writes }
	before := written()
	// A correct slice is not written again.
	stop = run(names)
	time.Sleep(50 * time.Millisecond)
	stop()
	if now := written(); now != before {
		t.Errorf("%d writes of what was there", now-before)
	}
	stop = run(names[:5])
	s.becomes(t, 5)
	stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slices["node1-vrdma.io-0"] == nil || len(s.slices) != 1 {
		t.Errorf("slices %v", s.slices)
	}
}
