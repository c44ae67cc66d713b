package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma/test/etcdtest"
	"vrdma/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// storeArgs are the arguments of a daemon whose store is in etcd, with its copy in a directory
// that outlives it.
func storeArgs(t *testing.T, c *etcdtest.Cluster, dir string) []string {
	t.Helper()
	text := "ca: " + c.CA + "\ncertificate: " + c.Certificate + "\nkey: " + c.Key + "\ncopy: " + filepath.Join(dir, "copy") + "\n"
	path := filepath.Join(dir, "store.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--store", c.URL(), "--store-config", path, "--network=false", "--usage", "none"}
}

func startDaemon(t *testing.T, c *etcdtest.Cluster, dir string) *harness.Daemon {
	t.Helper()
	return harness.Start(t, harness.Options{Args: storeArgs(t, c, dir)})
}

// vrdma runs a command that has to succeed.
func vrdma(t *testing.T, d *harness.Daemon, args ...string) string {
	t.Helper()
	out, err := d.Command(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("vrdma %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// eventually waits until a command says something.
func eventually(t *testing.T, d *harness.Daemon, want string, args ...string) {
	t.Helper()
	last := ""
	if !harness.Poll(time.Minute, func() bool {
		out, _ := d.Command(args...).CombinedOutput()
		last = string(out)
		return strings.Contains(last, want)
	}) {
		t.Fatalf("vrdma %s: want %q in\n%s", strings.Join(args, " "), want, last)
	}
}

func example(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
