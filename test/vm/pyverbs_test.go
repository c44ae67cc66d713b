package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// TestPyverbs runs rdma-core's own suite in a machine, in pieces. What does not pass there, and does on a host, is
// listed with its reason in testdata/pyverbs.txt; what skips there skips on a host, too.
//
// VRDMA_TEST_PYVERBS=text runs only tests whose name contains the text, and then does not count.
func TestPyverbs(t *testing.T) {
	if !harness.All() {
		t.Skip("the whole suite, emulated: long form")
	}
	d := start(t, libvirtWorld)
	m := bootWith(t, d, guest.Ours(t, func(root string) { addPython(t, root) }), "red/a", "10.1.0.1", 900)
	// The Ethernet card has the NIC's address, because rdma_cm's tests look for it.
	m.Run(t, limit, "/usr/sbin/ip", "link", "set", "eth1", "up")
	m.Run(t, limit, "/usr/sbin/ip", "address", "add", m.ip+"/24", "dev", "eth1")
	pieces := [][]string{{"test_device.", "test_pd.", "test_mr.", "test_cq.", "test_cqex.", "test_cq_events."}, {"test_qp.", "test_qpex.", "test_srq"}, nil}
	only := os.Getenv("VRDMA_TEST_PYVERBS")
	if only != "" {
		pieces = [][]string{strings.Fields(only)}
	}
	got := map[string]string{} // test: outcome
	for i, list := range pieces {
		name := strings.Trim(strings.Join(list, ","), ".")
		if list == nil {
			name = "rest"
			for _, other := range pieces[:i] {
				for _, text := range other {
					list = append(list, "!"+text)
				}
			}
		}
		t.Run(name, func(t *testing.T) { pyverbs(t, d, m, list, got) })
	}
	count := map[string]int{}
	for _, what := range got {
		count[what]++
	}
	t.Logf("pyverbs: %v", count)
	if only != "" || t.Failed() {
		return
	}
	least, err := os.ReadFile("../pyverbs/passes.txt") // of the host
	if err != nil {
		t.Fatal(err)
	}
	if n := fmt.Sprint(count["ok"] + len(lines(t, "testdata/pyverbs.txt"))); n != strings.TrimSpace(string(least)) {
		t.Errorf("%d tests passed here, %s do on a host, and testdata/pyverbs.txt tells of %d", count["ok"], strings.TrimSpace(string(least)), len(lines(t, "testdata/pyverbs.txt")))
	}
}

// pyverbs runs the tests of the suite whose names contain one of the texts and none of the texts after a !, and records
// the results.
func pyverbs(t *testing.T, d *harness.Daemon, m *machine, texts []string, got map[string]string) {
	argv := []string{"env", "SECONDS_A_TEST=180", "VRDMA_SOCKET=" + m.socket, home + "/vrdma", "run", "-q", "--",
		"/usr/bin/python3.11", "/suite/run.py", "/suite", "/suite/excluded.txt", "--dev", "rxe0"}
	p := m.Launch(t, append(argv, texts...)...)
	if !p.Ended(limit) || !strings.Contains(p.Output(), "\nEND\n") {
		t.Fatalf("the suite did not come to its end: %s\n%s", p.Fate(), harness.Tail(p.Output(), 80))
	}
	known, skips := lines(t, "testdata/pyverbs.txt"), lines(t, "../pyverbs/skips.txt")
	for l := range strings.Lines(p.Output()) {
		f := strings.Split(strings.TrimSpace(l), "\t")
		if len(f) < 3 || f[0] != "RESULT" || f[1] == "excluded" {
			continue
		}
		got[f[2]] = f[1]
		switch {
		case (f[1] == "fail" || f[1] == "error") && !known[f[2]], f[1] == "skip" && !known[f[2]] && !skips[f[2]]:
			t.Errorf("%s", strings.Join(f[1:], " "))
		case f[1] == "ok" && known[f[2]]:
			t.Errorf("testdata/pyverbs.txt lists %s, which passes: remove the line", f[2])
		}
	}
	if t.Failed() {
		t.Logf("the suite's output, last part:\n%s\nthe agent's:\n%s\nthe daemon's warnings:", harness.Tail(p.Output(), 100), harness.Tail(m.agent.Output(), 10))
		for l := range strings.Lines(d.Process.Output()) {
			if strings.Contains(l, "level=WARN") {
				t.Log(l)
			}
		}
	}
}

// lines are the tests that a list names.
func lines(t *testing.T, file string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for l := range strings.Lines(string(text)) {
		if l = strings.TrimSpace(l); strings.HasPrefix(l, "tests.") {
			out[l] = true
		}
	}
	return out
}

// addPython puts Python, pyverbs and the suite into a root.
func addPython(t *testing.T, root string) {
	t.Helper()
	harness.Need(t, "/usr/bin/python3.11", "/usr/share/doc/rdma-core/tests")
	const script = `set -e
		cd "$1"; root=$(pwd); mkdir -p suite/tests
		for f in /usr/share/doc/rdma-core/tests/*.py*; do
			case $f in *.gz) gzip -dc $f >suite/tests/$(basename $f .gz) ;; *) cp $f suite/tests/ ;; esac
		done
		cp "$2"/run.py "$2"/excluded.txt suite/
		printf 'tests.test_%s*\n' mlx5 efa >>suite/excluded.txt # other devices: they skip on a host, too
		mkdir -p usr/bin && cp -L /usr/bin/python3.11 /usr/bin/ls usr/bin/ # the suite asks ls for the device's interfaces: busybox is static, and sees the kernel's
		(cd / && find usr/lib/python3.11 usr/lib/python3/dist-packages/pyverbs \( -name '*.py' -o -name '*.so' \) \
			! -path '*/test/*' ! -path '*/idlelib/*' ! -path '*/lib2to3/*' ! -path '*/ensurepip/*' ! -path '*/tkinter/*' | cpio --quiet -pdmL "$root")
		for lib in $(find usr -name '*.so' -o -name python3.11 -type f -o -name ls -type f | xargs ldd 2>/dev/null | grep -oE ' /[^ ]+' | sort -u); do
			to=.$(echo $lib | sed 's,^/lib,/usr/lib,'); mkdir -p $(dirname $to); cp -L $lib $to
		done`
	if out, err := exec.Command("sh", "-c", script, "sh", root, filepath.Join(harness.Root(), "test/pyverbs")).CombinedOutput(); err != nil {
		t.Fatalf("add Python: %v\n%s", err, out)
	}
}
