package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma/test/guest"
	"vrdma/test/harness"
)

// TestPyverbs runs rdma-core's own suite in a machine. What does not pass there, and does on a host, is
// listed with its reason in testdata/pyverbs.txt.
func TestPyverbs(t *testing.T) {
	if !harness.All() {
		t.Skip("the whole suite, emulated: long form")
	}
	d := start(t, world)
	m := bootWith(t, d, guest.Ours(t, func(root string) { addPython(t, root) }), "red/a", "10.1.0.1", 900)
	args := strings.Fields(os.Getenv("VRDMA_TEST_PYVERBS"))
	p := m.Launch(t, append([]string{"env", "SECONDS_A_TEST=180", "VRDMA_SOCKET=" + m.socket, home + "/vrdma", "run", "-q", "--", "/usr/bin/python3.11", "/suite/run.py", "/suite", "/suite/excluded.txt", "--dev", "rxe0"}, args...)...)
	go func() {
		var was int
		for !p.Ended(time.Second) {
			o := p.Output()
			fmt.Fprint(os.Stderr, time.Now().Format("15:04:05 "), o[was:])
			was = len(o)
		}
	}()
	if !p.Ended(4*limit) || !strings.Contains(p.Output(), "\nEND\n") {
		t.Fatalf("the suite did not come to its end: %s\n%s", p.Fate(), harness.Tail(p.Output(), 80))
	}
	text, err := os.ReadFile("testdata/pyverbs.txt")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for l := range strings.Lines(p.Output()) {
		f := strings.Split(strings.TrimSpace(l), "\t")
		if len(f) < 3 || f[0] != "RESULT" {
			continue
		}
		count[f[1]]++
		if known := strings.Contains(string(text), "\n"+f[2]+"\n"); (f[1] == "fail" || f[1] == "error") && !known {
			t.Errorf("%s", strings.Join(f[1:], " "))
		} else if f[1] == "ok" && known {
			t.Errorf("testdata/pyverbs.txt lists %s, which passes: remove the line", f[2])
		}
	}
	if t.Failed() {
		t.Logf("the suite's output, last part:\n%s", harness.Tail(p.Output(), 200))
	}
	t.Logf("pyverbs: %v", count)
	const least = 100
	if count["ok"] < least {
		t.Errorf("%d tests passed, want at least %d", count["ok"], least)
	}
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
		mkdir -p usr/bin && cp -L /usr/bin/python3.11 usr/bin/
		(cd / && find usr/lib/python3.11 usr/lib/python3/dist-packages/pyverbs \( -name '*.py' -o -name '*.so' \) \
			! -path '*/test/*' ! -path '*/idlelib/*' ! -path '*/lib2to3/*' ! -path '*/ensurepip/*' ! -path '*/tkinter/*' | cpio --quiet -pdmL "$root")
		for lib in $(find usr -name '*.so' -o -name python3.11 -type f | xargs ldd 2>/dev/null | grep -oE ' /[^ ]+' | sort -u); do
			to=.$(echo $lib | sed 's,^/lib,/usr/lib,'); mkdir -p $(dirname $to); cp -L $lib $to
		done`
	if out, err := exec.Command("sh", "-c", script, "sh", root, filepath.Join(harness.Root(), "test/pyverbs")).CombinedOutput(); err != nil {
		t.Fatalf("add Python: %v\n%s", err, out)
	}
}
