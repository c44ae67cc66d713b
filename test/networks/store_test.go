package networks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// says waits until a command of a host prints a text.
func (h *host) says(t testing.TB, want string, args ...string) {
	t.Helper()
	last := ""
	if !harness.Poll(minute, func() bool {
		last, _ = h.vrdma(args...)
		return strings.Contains(last, want)
	}) {
		t.Fatalf("vrdma %s on host %s: want %q in\n%s", strings.Join(args, " "), h.name, want, last)
	}
}

// declared returns what a host exports, without the first line, which names the store.
func (h *host) declared(t testing.TB) string {
	t.Helper()
	_, rest, _ := strings.Cut(h.must(t, "store", "export"), "\n")
	return rest
}

// load imports the export of another host.
func (h *host) load(t testing.TB, text string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "export.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.must(t, "store", "import", path)
}

// copied waits until a host has saved its copy of the store for the next daemon.
func (h *host) copied(t testing.TB, w *lab) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "store.yaml")
	text := "ca: " + w.etcd.CA + "\ncertificate: " + w.etcd.Certificate + "\nkey: " + w.etcd.Key + "\ncopy: " + filepath.Join(dir, "copy") + "\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.args = append(h.args, "--store-config", path)
}

// TestStoreWiped: an etcd that lost its data removes nothing from any host, not even from a daemon that starts while
// etcd is away and then finds it empty. The objects are exported to a file and imported into the new etcd.
func TestStoreWiped(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	w.b.Stop(t)
	w.b.copied(t, w)
	w.b.restart(t)
	w.a.declare(t, twoTenants())
	w.a.ready(t, "red/web")
	w.b.says(t, "red/db", "get", "nics", "-o", "name")
	want := w.a.declared(t)

	w.etcd.Members[0].Kill()
	w.b.says(t, "away: last heard of", "status")
	w.b.Stop(t)
	w.b.restart(t)
	w.b.says(t, "away: last heard of", "status")
	if got := w.b.declared(t); got != want {
		t.Errorf("started without the store a daemon has\n%s\nand had\n%s", got, want)
	}

	w.etcd.Members[0].Wipe()
	w.etcd.Members[0].Start()
	w.etcd.Ready()
	for _, h := range []*host{w.a, w.b} {
		h.says(t, "the store has lost its contents", "status")
		if got := h.declared(t); got != want {
			t.Errorf("of a wiped store host %s has\n%s\nand had\n%s", h.name, got, want)
		}
		if out, err := h.apply(t, object("Tenant", "name: green", "weight: 1")); err == nil || !strings.Contains(out, "not the one that it was") {
			t.Errorf("host %s has changed a wiped store: %v\n%s", h.name, err, out)
		}
	}
	w.a.ready(t, "red/web", "blue/web")

	// To a file, and from there to the new etcd.
	alone := &host{name: "alone", Daemon: harness.Start(t, harness.Options{Args: []string{"--store", filepath.Join(t.TempDir(), "store"), "--network=false"}})}
	alone.load(t, want)
	if got := alone.declared(t); got != want {
		t.Errorf("imported into a file it is\n%s\nand was\n%s", got, want)
	}
	w.a.Stop(t) // its copy is deleted with its directory
	w.a.start(t)
	if got := w.a.declared(t); strings.Contains(got, "red") {
		t.Errorf("a new daemon has of the new store\n%s", got)
	}
	w.a.load(t, alone.declared(t))
	if got := w.a.declared(t); got != want {
		t.Errorf("imported into the new etcd it is\n%s\nand was\n%s", got, want)
	}
}
