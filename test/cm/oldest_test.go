package cm

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// Stock programs of Debian 11 work. Their glibc resolves the oldest version of a function where ours resolves the
// newest.
func TestOldest(t *testing.T) {
	d, _ := device(t)
	m := newest{d, harness.OldestRoot(t)}
	old := workload.Host{Machine: m, IP: "127.0.0.1"}
	t.Run("ibv_devinfo", func(t *testing.T) {
		p := m.root.Launch(t, d, nil, "ibv_devinfo", "-v")
		if out := p.OK(t, minute); !strings.Contains(out, "PORT_ACTIVE") {
			t.Errorf("printed\n%s", out)
		}
	})
	// Paths, through the old functions of the stat family and the newer realpath.
	t.Run("ls", func(t *testing.T) {
		p := m.root.Launch(t, d, nil, "sh", "-c", "realpath /sys/class/infiniband; ls /dev/infiniband")
		if out := p.OK(t, minute); !strings.Contains(out, "uverbs0") {
			t.Errorf("printed\n%s", out)
		}
	})
	for _, w := range []workload.Workload{
		workload.Pingpong("rc", 4096, 200, "-c"),
		workload.Perf("write_bw", "-n 200 -s 65536"),
		workload.Perf("send_lat", "-n 200 -e"),
	} {
		t.Run(w.Name, func(t *testing.T) { w.Run(t, old, old, minute) })
	}
	t.Run("rping", func(t *testing.T) { ping(t, old, old) })
}

// A function with several versions is looked up by its version. The table of real.c has every such function that we
// wrap, with the version that a program linked today gets.
func TestLookedUpVersions(t *testing.T) {
	harness.Need(t, "objdump")
	harness.Build(t)
	source, err := os.ReadFile(filepath.Join(harness.Root(), "shim/real.c"))
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]string{}
	for _, m := range regexp.MustCompile(`\{"(\w+)", "([\w.]+)"\}`).FindAllStringSubmatch(string(source), -1) {
		table[m[1]] = m[2]
	}
	lookedUp := map[string]bool{"ibv_modify_qp": true} // by shim/sockets/library.c
	for _, library := range []string{harness.Library(), harness.SocketsLibrary()} {
		for _, s := range symbols(t, library) {
			lookedUp[s.name] = true
		}
	}
	seen := map[string]bool{}
	for _, library := range []string{"libc.so.6", "libpthread.so.0", "libibverbs.so.1", "librdmacm.so.1"} {
		for _, root := range []string{"/", harness.OldestRoot(t).Dir()} {
			for name, versions := range sorted(symbols(t, find(t, root, library))) {
				if !lookedUp[name] || len(versions.addresses) < 2 {
					continue
				}
				seen[name] = true
				if table[name] != versions.current {
					t.Errorf("%s has %s in several versions, the current one %s; real.c asks for %q", library, name, versions.current, table[name])
				}
			}
		}
	}
	if len(seen) != len(table) {
		t.Errorf("real.c's table is %v; the libraries have several versions of %v", table, seen)
	}
}

type symbol struct {
	name, version, address string
	current                bool
}

// symbols returns the symbols that a library defines.
func symbols(t *testing.T, library string) (out []symbol) {
	t.Helper()
	text, err := exec.Command("objdump", "-T", library).Output()
	if err != nil {
		t.Fatalf("objdump -T %s: %v", library, err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 6 || strings.Contains(line, "*UND*") {
			continue
		}
		version, name := f[len(f)-2], f[len(f)-1]
		out = append(out, symbol{name: name, version: strings.Trim(version, "()"), address: f[0], current: version[0] != '('})
	}
	if len(out) < 10 {
		t.Fatalf("objdump -T %s shows %d symbols", library, len(out))
	}
	return out
}

// versions returns the versions of one function. Versions with the same address count as one.
type versions struct {
	addresses map[string]bool
	current   string
}

func sorted(list []symbol) map[string]versions {
	out := map[string]versions{}
	for _, s := range list {
		v := out[s.name]
		if v.addresses == nil {
			v.addresses = map[string]bool{}
		}
		v.addresses[s.address] = true
		if s.current {
			v.current = s.version
		}
		out[s.name] = v
	}
	return out
}

func find(t *testing.T, root, library string) string {
	t.Helper()
	for _, dir := range []string{"lib/*-linux-gnu", "usr/lib/*-linux-gnu"} {
		if found, _ := filepath.Glob(filepath.Join(root, dir, library)); len(found) > 0 {
			return found[0]
		}
	}
	t.Fatalf("no %s below %s", library, root)
	return ""
}
