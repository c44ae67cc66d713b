package memory

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

func itoa(n uint64) string { return strconv.FormatUint(n, 10) }

// Programs with their own allocators register memory from these, in several threads.
func TestAllocators(t *testing.T) {
	d := device(t)
	bin := compile(t, "heap")
	for _, c := range []struct{ name, library string }{
		{"glibc", ""}, {"jemalloc", "libjemalloc.so.2"}, {"tcmalloc", "libtcmalloc_minimal.so.4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			argv := []string{bin}
			if c.library != "" {
				path := filepath.Join("/usr/lib/x86_64-linux-gnu", c.library)
				harness.Need(t, path)
				// The program gets the allocator in LD_PRELOAD beside the interposer.
				argv = []string{"sh", "-c", `LD_PRELOAD="$LD_PRELOAD:` + path + `" exec "$0" "$@"`, bin}
			}
			out := user.launch(t, d, nil, argv...).OK(t, 2*minute)
			if !strings.Contains(out, "ok heap") {
				t.Errorf("got no \"ok\":\n%s", out)
			}
			if c.library != "" && !strings.Contains(out, c.library) {
				t.Errorf("the program does not use %s:\n%s", c.library, out)
			}
		})
	}
	t.Run("valgrind", func(t *testing.T) {
		harness.Need(t, "valgrind")
		out := user.launch(t, d, []string{"HEAP_ROUNDS=3"}, "valgrind", "-q", "--error-exitcode=3", "--undef-value-errors=no", bin).OK(t, 4*minute)
		if !strings.Contains(out, "ok heap") {
			t.Errorf("got no \"ok\":\n%s", out)
		}
	})
}

// A Go program registers its own heap, as an ordinary user with and without userfaultfd.
func TestGoHeap(t *testing.T) {
	d := device(t)
	dir := t.TempDir()
	for _, p := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "goheap")
	build := exec.Command("go", "build", "-o", bin, "../testdata/goheap")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, w := range []way{user, container, untraced} {
		t.Run(w.name, func(t *testing.T) {
			if out := w.launch(t, d, nil, bin).OK(t, 2*minute); !strings.Contains(out, "ok") {
				t.Errorf("got no \"ok\":\n%s", out)
			}
		})
	}
}

// A Python program registers buffers of its own, with threads, through pyverbs.
func TestPython(t *testing.T) {
	d := device(t)
	script := filepath.Join(harness.Root(), "test", "memory", "testdata", "buffers.py")
	for _, w := range []way{user, container} {
		t.Run(w.name, func(t *testing.T) {
			if out := w.launch(t, d, nil, "/usr/bin/python3", script).OK(t, 2*minute); !strings.Contains(out, "ok buffers") {
				t.Errorf("got no \"ok\":\n%s", out)
			}
		})
	}
}
