package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPrograms(t *testing.T) {
	f := flags{socket: "/s", node: "n", kubelet: "/k", cdi: "/c", slots: 7}
	daemon, plugins := f.programs("/bin/vrdma-kube", true, []string{"--mode", "0666"})
	if line := strings.Join(daemon, " "); line != "/bin/vrdma daemon --socket /s --mode 0666" {
		t.Errorf("the daemon is %s", line)
	}
	want := []string{
		"/bin/vrdma-kube device-plugin --socket /s --node n --kubelet /k --cdi /c --slots 7",
		"/bin/vrdma-kube dra --socket /s --node n --kubelet /k --cdi /c --slots 7",
	}
	for i, argv := range plugins {
		if line := strings.Join(argv, " "); i >= len(want) || line != want[i] {
			t.Errorf("program %d: %s", i, line)
		}
	}
	if _, plugins := f.programs("/bin/vrdma-kube", false, nil); len(plugins) != 1 {
		t.Errorf("%d plugins without DRA", len(plugins))
	}
	// The commands know these flags.
	root := command()
	for _, argv := range plugins {
		c, rest, err := root.Find(argv[1:])
		if err != nil || c.Name() != argv[1] {
			t.Fatalf("%v: %v", argv, err)
		}
		if err := c.ParseFlags(rest); err != nil {
			t.Errorf("%v: %v", argv, err)
		}
	}
}

// A fakeHost is a directory with the state of a host: its daemons are shell scripts.
type fakeHost struct {
	t   *testing.T
	dir string
}

func (h *fakeHost) path(name string) string { return filepath.Join(h.dir, name) }

func (h *fakeHost) exists(name string) bool {
	_, err := os.Stat(h.path(name))
	return err == nil
}

func (h *fakeHost) write(name string) {
	h.t.Helper()
	if err := os.WriteFile(h.path(name), nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

func (h *fakeHost) remove(name string) {
	h.t.Helper()
	if err := os.Remove(h.path(name)); err != nil {
		h.t.Fatal(err)
	}
}

// has waits until a program has written a line into a file, n times at least.
func (h *fakeHost) has(file, line string, n int) {
	h.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(h.path(file)) // it does not exist yet
		if strings.Count(string(text), line+"\n") >= n {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("%s has not %d times %q:\n%s", file, n, line, text)
		}
	}
}

// start runs a node until the test ends. Its daemon and its plugin write what they do into the file log. A file "served" stands for a
// daemon that serves the socket, "own" for one of this node. The daemon writes both, and removes both when it ends, unless another
// daemon has taken over: then a file "other" exists. With --takeover it fails while a file "refused" exists.
func (h *fakeHost) start() (stop func()) {
	h.t.Helper()
	daemon := `
		cd "$1"
		echo "daemon $2" >>log
		[ -z "$2" ] || [ ! -e refused ] || exit 1
		trap 'echo "daemon ends" >>log; rm -f served own; exit' TERM
		rm -f other
		: >served; : >own
		while [ ! -e other ] && [ ! -e crash ]; do sleep 0.01; done
		rm own
		[ -e other ] || { rm served crash; exit 1; }`
	plugin := `
		cd "$1"
		trap 'echo "plugin ends" >>log; exit' TERM
		[ -e own ] && echo plugin >>log || echo "plugin without its daemon" >>log
		while :; do sleep 0.01; done`
	n := &node{
		log:    slog.New(slog.NewTextHandler(h.t.Output(), nil)),
		daemon: []string{"/bin/sh", "-c", daemon, "sh", h.dir}, plugins: [][]string{{"/bin/sh", "-c", plugin, "sh", h.dir}},
		served: func() bool { return h.exists("served") }, own: func() bool { return h.exists("own") },
		pause: time.Millisecond, grace: time.Minute,
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan bool)
	go func() {
		defer close(ended)
		n.run(ctx)
	}()
	stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			h.t.Error("the node does not end")
		}
	}
	h.t.Cleanup(stop)
	return stop
}

// TestNode: a daemon that ends is restarted with its plugin, and all programs end with the node.
func TestNode(t *testing.T) {
	h := &fakeHost{t, t.TempDir()}
	stop := h.start()
	h.has("log", "plugin", 1)
	h.write("crash")
	h.has("log", "plugin ends", 1)
	h.has("log", "plugin", 2)
	stop()
	text, err := os.ReadFile(h.path("log"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"daemon ", "plugin", "plugin ends", "daemon ", "plugin"}
	got := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	last := got[min(len(want), len(got)):]
	slices.Sort(last) // both end at the same time
	if !slices.Equal(got[:min(len(want), len(got))], want) || !slices.Equal(last, []string{"daemon ends", "plugin ends"}) {
		t.Errorf("the programs did %q, want %q and both ends", got, want)
	}
}

// TestNodeTakesOver: a node that finds a daemon takes over from it, and tries again until it is not refused. Plugins run only beside
// their own daemon. A node whose daemon has handed over waits, and serves again when no daemon does.
func TestNodeTakesOver(t *testing.T) {
	h := &fakeHost{t, t.TempDir()}
	h.write("served")
	h.write("refused")
	h.start()
	h.has("log", "daemon --takeover", 3)
	h.remove("refused")
	h.has("log", "plugin", 1)
	h.write("other") // the next container's daemon
	h.has("log", "plugin ends", 1)
	h.remove("other")
	h.remove("served") // that daemon ends
	h.has("log", "daemon ", 1)
	h.has("log", "plugin", 2)
	if text, err := os.ReadFile(h.path("log")); err != nil || strings.Contains(string(text), "without") {
		t.Errorf("a plugin ran without a daemon of its own: %v\n%s", err, text)
	}
}

// TestReady: the probe asks the daemon, and then its address for readiness.
func TestReady(t *testing.T) {
	status := http.StatusServiceUnavailable
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the store is not read yet", status)
	}))
	defer s.Close()
	if err := fetchReady(t.Context(), s.URL); err == nil || !strings.Contains(err.Error(), "not read yet") {
		t.Errorf("not ready: %v", err)
	}
	status = http.StatusOK
	if err := fetchReady(t.Context(), s.URL); err != nil {
		t.Error(err)
	}
	if err := own(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a daemon: %v", err)
	}
}
