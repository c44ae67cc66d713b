package test

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// suiteDir is the directory of rdma-core's own tests in Debian, most of them gzipped. The newest Debian's lies below
// its own root.
const suiteDir = "/usr/share/doc/rdma-core/tests"

// rdma-core's own suite: no failure, no error, every skip listed with its reason
// in pyverbs/skips.txt, and no fewer passes than pyverbs/passes.txt says.
//
// VRDMA_TEST_PYVERBS=text runs only tests whose name contains the text, and then
// does not count.
func TestPyverbs(t *testing.T) {
	harness.Need(t, "/usr/bin/python3", suiteDir)
	d := harness.Device(t)
	top := unpackSuite(t, suiteDir)
	only := os.Getenv("VRDMA_TEST_PYVERBS")
	args := []string{"/usr/bin/python3", "pyverbs/run.py", top, "pyverbs/excluded.txt", "--dev", "rxe0"}
	args = append(args, strings.Fields(only)...)
	p := d.Launch(t, args...)
	p.Wait(t, 8*minute)
	got := parseSuite(p.Stdout())
	if !strings.Contains(p.Stdout(), "\nEND\n") {
		t.Fatalf("the suite did not come to its end:\n%s", harness.Tail(p.Output(), 80))
	}
	for _, what := range []string{"fail", "error"} {
		for id, reason := range got[what] {
			t.Errorf("%s: %s: %s", what, id, reason)
		}
	}
	if t.Failed() {
		t.Logf("the suite's output, last part:\n%s", harness.Tail(p.Output(), 200))
	}
	t.Logf("pyverbs: %d passed, %d skipped, %d failed, %d errors, %d excluded", len(got["ok"]), len(got["skip"]), len(got["fail"]), len(got["error"]), len(got["excluded"]))
	if only != "" {
		return
	}
	known := listed(t, "pyverbs/skips.txt")
	for id, reason := range got["skip"] {
		if known[id] == "" {
			t.Errorf("skip that pyverbs/skips.txt does not list: %s (%s)", id, reason)
		}
	}
	for id := range known {
		if _, ok := got["skip"][id]; !ok {
			t.Errorf("pyverbs/skips.txt lists %s, which does not skip: remove the line", id)
		}
	}
	text, err := os.ReadFile("pyverbs/passes.txt")
	if err != nil {
		t.Fatal(err)
	}
	least, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatalf("pyverbs/passes.txt: %v", err)
	}
	if n := len(got["ok"]); n < least {
		t.Errorf("%d tests passed, want at least %d", n, least)
	} else if n > least {
		t.Logf("%d tests passed: raise pyverbs/passes.txt from %d", n, least)
	}
}

// The newest rdma-core's suite: pyverbs/newest.txt lists the tests that do not pass, with reasons. Skips are not
// listed, because they change with every release.
func TestPyverbsNewest(t *testing.T) {
	d := harness.Device(t)
	root := harness.NewestRoot(t)
	top := unpackSuite(t, filepath.Join(root.Dir(), suiteDir))
	for _, name := range []string{"run.py", "excluded.txt"} {
		if err := unpack("pyverbs/"+name, filepath.Join(top, name)); err != nil {
			t.Fatal(err)
		}
	}
	p := root.Launch(t, d, nil, "/usr/bin/python3", top+"/run.py", top, top+"/excluded.txt", "--dev", "rxe0")
	p.Wait(t, 4*minute)
	got := parseSuite(p.Stdout())
	if !strings.Contains(p.Stdout(), "\nEND\n") {
		t.Fatalf("the suite did not come to its end:\n%s", harness.Tail(p.Output(), 80))
	}
	known := listed(t, "pyverbs/newest.txt")
	for _, what := range []string{"fail", "error"} {
		for id, reason := range got[what] {
			if known[id] == "" {
				t.Errorf("%s: %s: %s", what, id, reason)
			}
		}
	}
	for id := range known {
		if _, ok := got["ok"][id]; ok {
			t.Errorf("pyverbs/newest.txt lists %s, which passes: remove the line", id)
		}
	}
	t.Logf("pyverbs %s: %d passed, %d skipped, %d failed, %d errors", root.Version(t), len(got["ok"]), len(got["skip"]), len(got["fail"]), len(got["error"]))
	const least = 110 // of 120 with rdma-core 65
	if n := len(got["ok"]); n < least {
		t.Errorf("%d tests passed, want at least %d", n, least)
	}
}

// unpackSuite unpacks the suite as a package `tests` into a directory.
func unpackSuite(t *testing.T, suiteDir string) string {
	t.Helper()
	top := harness.Directory(t, nil)
	dir := filepath.Join(top, "tests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(suiteDir + "/*.py*")
	if err != nil || len(files) < 20 {
		t.Fatalf("%s holds %d files (%v), want rdma-core's tests", suiteDir, len(files), err)
	}
	for _, file := range files {
		if err := unpack(file, filepath.Join(dir, strings.TrimSuffix(filepath.Base(file), ".gz"))); err != nil {
			t.Fatalf("unpack %s: %v", file, err)
		}
	}
	return top
}

func unpack(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	var r io.Reader = in
	if strings.HasSuffix(from, ".gz") {
		if r, err = gzip.NewReader(in); err != nil {
			return err
		}
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = io.Copy(out, r)
	return err
}

// parseSuite sorts run.py's lines: outcome, test id, reason.
func parseSuite(out string) map[string]map[string]string {
	got := map[string]map[string]string{}
	for s := bufio.NewScanner(strings.NewReader(out)); s.Scan(); {
		f := strings.Split(s.Text(), "\t")
		if len(f) != 4 || f[0] != "RESULT" {
			continue
		}
		if got[f[1]] == nil {
			got[f[1]] = map[string]string{}
		}
		got[f[1]][f[2]] = f[3]
	}
	return got
}

// listed reads a list of tests: a reason in brackets, then its tests.
func listed(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	known, err := parseSkips(string(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return known
}

func parseSkips(text string) (map[string]string, error) {
	known, reason := map[string]string{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			reason = strings.Trim(line, "[]")
		case reason == "":
			return nil, fmt.Errorf("%q has no reason above it", line)
		case known[line] != "":
			return nil, fmt.Errorf("%q is listed twice", line)
		default:
			known[line] = reason
		}
	}
	return known, nil
}

func TestParseSuite(t *testing.T) {
	got := parseSuite("START\ta.b\nnoise\nRESULT\tok\ta.b\t\nRESULT\tskip\ta.c\tno such thing\nEND\n")
	if len(got["ok"]) != 1 || got["skip"]["a.c"] != "no such thing" {
		t.Errorf("got %v, want one ok and one skip with its reason", got)
	}
	known, err := parseSkips("# comment\n[why]\na.c\na.d\n")
	if err != nil || known["a.d"] != "why" {
		t.Errorf("got %v, %v, want a.d: why", known, err)
	}
	for _, bad := range []string{"a.c\n", "[why]\na.c\na.c\n"} {
		if _, err := parseSkips(bad); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}
