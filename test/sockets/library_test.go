package sockets

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// A library runs programs over one version of rdma-core.
type library struct {
	name  string
	alone bool            // the stock preload library, without ours before it
	root  *harness.Debian // nil: the machine's own
}

// rspreload is where Debian puts the stock preload library.
func rspreload(t *testing.T, root string) string {
	t.Helper()
	found, _ := filepath.Glob(root + "/usr/lib/*/rsocket/librspreload.so")
	if len(found) != 1 {
		t.Fatalf("librspreload.so below %q: found %v, want one", root, found)
	}
	return strings.TrimPrefix(found[0], root)
}

// launch starts a program with its TCP over RDMA.
func (l library) launch(t *testing.T, d *harness.Daemon, argv ...string) *harness.Process {
	t.Helper()
	flags := []string{"--quiet", "--sockets"}
	if l.alone {
		root := ""
		if l.root != nil {
			root = l.root.Dir()
		}
		flags = flags[:1]
		argv = append([]string{"env", "LD_PRELOAD=" + rspreload(t, root) + ":" + d.Socket + ".d/libvrdma.so"}, argv...)
	}
	if l.root != nil {
		return l.root.Launch(t, d, flags, argv...)
	}
	return d.LaunchWith(t, flags, argv...)
}

// machine is the library that is installed on this machine.
var machine = library{name: "rdma-core 44"}

// libraries are those that the documentation names.
func libraries(t *testing.T) []library {
	t.Helper()
	return []library{machine, {name: "newest", root: harness.NewestRoot(t)}}
}

// link puts servers into dir whose packages are not installed, because installation would start them. nginx is
// unpacked; redis-server is another name of a program in redis-tools.
func (l library) link(t *testing.T, dir string) {
	t.Helper()
	nginx := "/usr/sbin/nginx"
	if l.root == nil {
		nginx = harness.Unpacked(t, "nginx") + nginx
	}
	for name, to := range map[string]string{"nginx": nginx, "redis-server": "/usr/bin/redis-check-rdb"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}
