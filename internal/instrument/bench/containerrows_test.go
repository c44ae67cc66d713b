package bench

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// TestContainersOfAnyUser: a user without root can connect the namespaces that stand for containers with a bridge, in a user namespace. The
// rows say that they are not containers.
func TestContainersOfAnyUser(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "vrdma-containers") // other users must be able to enter it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l := &testbed.Lab{Dir: dir}
	if os.Getuid() == 0 {
		const nobody = 65534
		l.User = &syscall.Credential{Uid: nobody, Gid: nobody}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bridge, err := l.NewNamespace(t.Context())
	if err != nil {
		t.Log(err)
		return // users may make no namespaces here
	}
	defer bridge.Close()
	b := &containerRows{Table: &Table{Lab: l}, environments: &testbed.Environments{Lab: l, Engine: testbed.NoEngine}}
	defer b.close()
	hosts, err := b.fill(t.Context(), &testbed.Host{Lab: l, Socket: filepath.Join(dir, "s")}, bridge, "10.98.0", "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	out, err := l.Run(t.Context(), hosts[1].At("ip", "-o", "address", "show", "dev", "eth0")...)
	if err != nil || !strings.Contains(out, "10.98.0.2/24") {
		t.Errorf("the second has %q, %v", out, err)
	}
	rows := []speedtable.Row{{What: "a"}}
	if b.note(rows); !strings.Contains(rows[0].Note, "instead of containers") {
		t.Errorf("the row says %q", rows[0].Note)
	}
}
