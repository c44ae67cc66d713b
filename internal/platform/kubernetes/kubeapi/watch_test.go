package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const soon = time.Minute

// A server imitates the API server for a list: it has versions, remembers a part of the past, reports changes since a
// version, and answers 410 for a forgotten version.
type server struct {
	t *testing.T
	*httptest.Server
	mu       sync.Mutex
	version  int // guarded by mu, as the others
	objects  map[string]string
	history  []line
	forgot   int           // versions up to this one
	changed  chan struct{} // closed with the next change
	broken   chan struct{} // closed when all connections break
	bookmark bool          // watches get an error at once
	mute     bool          // watches send nothing, not even an answer
	lists    int
	watches  []string // from which versions
}

type line struct {
	version int
	text    string
}

func startServer(t *testing.T) *server {
	s := &server{t: t, version: 100, objects: map[string]string{}, changed: make(chan struct{}), broken: make(chan struct{})}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() { s.sever(); s.Close() })
	return s
}

// object returns an object with a version.
func object(name, value string, version int) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":"%d"},"value":%q}`, name, version, value)
}

// set changes an object; "" deletes it.
func (s *server) set(name, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	kind := "ADDED"
	if _, found := s.objects[name]; found {
		kind = "MODIFIED"
	}
	if s.objects[name] = value; value == "" {
		kind = "DELETED"
		delete(s.objects, name)
	}
	s.tell(kind, object(name, value, s.version))
}

// tell writes a line of history. mu is held.
func (s *server) tell(kind, object string) {
	s.history = append(s.history, line{s.version, fmt.Sprintf(`{"type":%q,"object":%s}`, kind, object)})
	close(s.changed)
	s.changed = make(chan struct{})
}

// say sends a line that is no change.
func (s *server) say(kind, object string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(kind, object)
}

// forget makes a change that no watch reports, and forgets everything up to then.
func (s *server) forget(change func()) {
	s.mu.Lock()
	change()
	s.version++
	s.forgot = s.version
	s.history = nil
	s.mu.Unlock()
	s.sever()
}

// sever breaks the connections of all watches. Newer ones stay: a client may reconnect at once, and a broken list would
// count as a second list.
func (s *server) sever() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.broken)
	s.broken = make(chan struct{})
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("fieldSelector") != "spec.nodeName=node1" {
		s.t.Errorf("asked for %s", r.URL)
	}
	if r.URL.Query().Get("watch") != "" {
		s.watch(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	var items []string
	for name, value := range s.objects {
		items = append(items, object(name, value, s.version))
	}
	fmt.Fprintf(w, `{"kind":"PodList","metadata":{"resourceVersion":"%d"},"items":[%s]}`, s.version, strings.Join(items, ","))
}

func (s *server) watch(w http.ResponseWriter, r *http.Request) {
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil || r.URL.Query().Get("allowWatchBookmarks") != "true" {
		s.t.Errorf("watched as %s", r.URL)
	}
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	end := time.After(time.Duration(seconds) * time.Second)
	s.mu.Lock()
	s.watches = append(s.watches, strconv.Itoa(from))
	sent, broken, mute := 0, s.broken, s.mute
	if from < s.forgot {
		s.mu.Unlock()
		w.WriteHeader(http.StatusGone)
		fmt.Fprint(w, `{"kind":"Status","code":410,"message":"too old resource version"}`)
		return
	}
	for ; sent < len(s.history) && s.history[sent].version <= from; sent++ {
	}
	if s.bookmark {
		fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}`, s.version)
	}
	s.mu.Unlock()
	if mute {
		select {
		case <-broken:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
		}
		return
	}
	w.(http.Flusher).Flush()
	for {
		s.mu.Lock()
		changed, history := s.changed, s.history
		s.mu.Unlock()
		for ; sent < len(history); sent++ {
			fmt.Fprintln(w, history[sent].text)
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-broken:
			panic(http.ErrAbortHandler)
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// A mirror is a listener that keeps what it received.
type mirror struct {
	mu      sync.Mutex
	objects map[string]string
	refuse  error
}

type thing struct {
	Metadata struct{ Name string }
	Value    string
}

func (m *mirror) Replace(objects []json.RawMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects = make(map[string]string)
	for _, o := range objects {
		var one thing
		if err := json.Unmarshal(o, &one); err != nil {
			return err
		}
		m.objects[one.Metadata.Name] = one.Value
	}
	return nil
}

func (m *mirror) Put(o json.RawMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.refuse; err != nil {
		m.refuse = nil
		return err
	}
	var one thing
	if err := json.Unmarshal(o, &one); err != nil {
		return err
	}
	m.objects[one.Metadata.Name] = one.Value
	return nil
}

func (m *mirror) Delete(o json.RawMessage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var one thing
	if err := json.Unmarshal(o, &one); err != nil {
		return err
	}
	delete(m.objects, one.Metadata.Name)
	return nil
}

// follow mirrors a server until the test ends.
func follow(t *testing.T, s *server, adjust func(*Client)) *mirror {
	t.Helper()
	c, err := At(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.pause = 5 * time.Millisecond
	if adjust != nil {
		adjust(c)
	}
	m := new(mirror)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Follow(ctx, "/api/v1/pods", url.Values{"fieldSelector": {"spec.nodeName=node1"}}, m, func(err error) { t.Logf("said: %v", err) })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return m
}

// becomes waits until the mirror has these objects, as NAME=VALUE.
func (m *mirror) becomes(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		m.mu.Lock()
		got = nil
		for name, value := range m.objects {
			got = append(got, name+"="+value)
		}
		m.mu.Unlock()
		slices.Sort(got)
		if slices.Equal(got, want) {
			return
		}
	}
	t.Fatalf("has %v, want %v", got, want)
}

// watching waits until there were n watches, and returns the start version of the last one.
func (s *server) watching(n int) string {
	s.t.Helper()
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		watches := s.watches
		s.mu.Unlock()
		if len(watches) >= n {
			return watches[len(watches)-1]
		}
	}
	s.t.Fatalf("there are no %d watches", n)
	return ""
}

func (s *server) listed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists
}

func TestFollow(t *testing.T) {
	s := startServer(t)
	s.set("a", "1")
	m := follow(t, s, nil)
	m.becomes(t, "a=1")
	s.set("b", "2")
	m.becomes(t, "a=1", "b=2")
	s.set("a", "3")
	m.becomes(t, "a=3", "b=2")
	s.set("b", "")
	m.becomes(t, "a=3")
	if n := s.listed(); n != 1 {
		t.Errorf("%d lists, want one: the rest are changes", n)
	}
}

// A broken connection loses nothing, and does not cause a new list.
func TestFollowBroken(t *testing.T) {
	s := startServer(t)
	m := follow(t, s, nil)
	s.watching(1)
	s.set("a", "1")
	m.becomes(t, "a=1")
	s.sever()
	s.set("a", "2")
	s.set("b", "1")
	m.becomes(t, "a=2", "b=1")
	if n := s.listed(); n != 1 {
		t.Errorf("%d lists, want one", n)
	}
	if from := s.watching(2); from != "101" {
		t.Errorf("the second watch is from %s, want 101", from)
	}
}

// After a forgotten version the client lists everything, and drops deleted objects.
func TestFollowGone(t *testing.T) {
	s := startServer(t)
	s.set("a", "1")
	m := follow(t, s, nil)
	m.becomes(t, "a=1")
	s.watching(1)
	s.forget(func() { delete(s.objects, "a"); s.objects["b"] = "1" })
	m.becomes(t, "b=1")
	if n := s.listed(); n != 2 {
		t.Errorf("%d lists, want two", n)
	}
	// The same, as an event of a working watch.
	s.set("c", "1")
	m.becomes(t, "b=1", "c=1")
	s.say("ERROR", `{"kind":"Status","code":410,"message":"too old"}`)
	for end := time.Now().Add(soon); s.listed() == 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no list after 410 in a watch")
		}
	}
}

// With bookmarks a watch continues from a recent version, although nothing has changed.
func TestFollowBookmarks(t *testing.T) {
	s := startServer(t)
	s.bookmark = true
	m := follow(t, s, nil)
	s.set("a", "1")
	m.becomes(t, "a=1")
	s.mu.Lock()
	s.version = 500 // others have changed
	s.mu.Unlock()
	for end := time.Now().Add(soon); s.watching(1) != "500"; time.Sleep(10 * time.Millisecond) {
		s.sever() // the next watch gets a bookmark
		if time.Now().After(end) {
			t.Fatalf("the last watch is from %s, want 500", s.watching(1))
		}
	}
	s.mu.Lock()
	s.forgot = 499
	s.mu.Unlock()
	s.sever()
	s.set("b", "1")
	m.becomes(t, "a=1", "b=1")
	if n := s.listed(); n != 1 {
		t.Errorf("%d lists, want one", n)
	}
}

// The client retries after a server ended a watch, or sent nothing.
func TestFollowSlow(t *testing.T) {
	s := startServer(t)
	s.mute = true
	m := follow(t, s, func(c *Client) { c.Watch = time.Second })
	s.watching(1)
	s.mu.Lock()
	s.mute = false
	s.mu.Unlock()
	s.set("a", "1") // which the silent one does not report
	m.becomes(t, "a=1")
	s.watching(3) // the second has ended after its second
	s.set("a", "2")
	m.becomes(t, "a=2")
	if n := s.listed(); n != 1 {
		t.Errorf("%d lists, want one", n)
	}
}

// After a malformed or rejected line the client asks again.
func TestFollowWrong(t *testing.T) {
	s := startServer(t)
	m := follow(t, s, nil)
	for i, wrong := range []string{`"MODIFIED","object":7`, `"MODIFIED","object":{}`, `"DANCED","object":{"metadata":{"resourceVersion":"1"}}`, `"ERROR","object":{"code":500}`, `{`} {
		s.watching(1)
		n := s.listed()
		s.mu.Lock()
		s.version++
		s.objects["a"] = strconv.Itoa(i) // a change that is lost in the malformed line
		s.history = append(s.history, line{s.version, `{"type":` + wrong + `}`})
		close(s.changed)
		s.changed = make(chan struct{})
		s.mu.Unlock()
		if i < 4 {
			m.becomes(t, "a="+strconv.Itoa(i))
			if s.listed() == n {
				t.Errorf("%s: no list", wrong)
			}
			continue
		}
		s.forget(func() {}) // half a line: the connection has broken
		m.becomes(t, "a="+strconv.Itoa(i))
	}
	m.mu.Lock()
	m.refuse = errors.New("not now")
	m.mu.Unlock()
	s.set("b", "1")
	m.becomes(t, "a=4", "b=1")
}

func FuzzTell(f *testing.F) {
	f.Add("ADDED", []byte(`{"metadata":{"name":"a","resourceVersion":"1"}}`))
	f.Add("ERROR", []byte(`{"code":410}`))
	f.Add("BOOKMARK", []byte(`{}`))
	f.Fuzz(func(t *testing.T, kind string, text []byte) {
		m := &mirror{objects: map[string]string{}}
		version, err := tell(&event{kind, text}, m)
		if err == nil && version == "" {
			t.Errorf("%s %q: no version and no error", kind, text)
		}
	})
}
