package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var compiled struct {
	sync.Mutex
	dir  string
	done map[string]bool
}

// Compile builds test/testdata/NAME.c against the system's libibverbs and
// returns the program. Every program is built once a test binary.
func Compile(t testing.TB, name string) string {
	t.Helper()
	return CompileWith(t, name, "gcc", "-libverbs")
}

// CompileWith is Compile with another compiler and other libraries.
func CompileWith(t testing.TB, name, compiler string, libs ...string) string {
	t.Helper()
	return CompileFile(t, filepath.Join(Root(), "test", "testdata", name+".c"), compiler, libs...)
}

// CompileFile builds a C program from another path, once for each name and test binary.
func CompileFile(t testing.TB, src, compiler string, libs ...string) string {
	t.Helper()
	Need(t, compiler)
	compiled.Lock()
	defer compiled.Unlock()
	if compiled.dir == "" {
		dir, err := os.MkdirTemp("", "vrdma-test-bin")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil { // other users run these too
			t.Fatal(err)
		}
		compiled.dir, compiled.done = dir, map[string]bool{}
	}
	name := strings.TrimSuffix(filepath.Base(src), filepath.Ext(src))
	bin := filepath.Join(compiled.dir, name+"-"+filepath.Base(compiler))
	if compiled.done[bin] {
		return bin
	}
	standard := "-std=gnu11"
	if filepath.Ext(src) == ".cc" {
		standard = "-std=gnu++17"
	}
	args := append([]string{standard, "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", bin, src}, libs...)
	if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", compiler, args, err, out)
	}
	compiled.done[bin] = true
	return bin
}

// removeCompiled deletes what Compile made.
func removeCompiled() {
	compiled.Lock()
	defer compiled.Unlock()
	if compiled.dir != "" {
		os.RemoveAll(compiled.dir)
	}
}
