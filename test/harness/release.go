package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/cache"
)

// LibraryBefore builds the library of the commit before the last change of the protocol's number; empty: there is no
// such commit here.
func LibraryBefore(t testing.TB) string {
	t.Helper()
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", Root()}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	top, err := git("rev-parse", "--show-toplevel")
	if root, _ := filepath.EvalSymlinks(Root()); err != nil || top != root {
		return "" // no repository, or one around an exported tree
	}
	changed, err := git("log", "-1", "--no-merges", "--format=%H", "-G", "define VRDMA_PROTOCOL ", "--", "shim/protocol.h")
	if err != nil || changed == "" {
		return ""
	}
	before, err := git("rev-parse", "--verify", "--quiet", changed+"^")
	if err != nil {
		return "" // a shallow clone
	}
	dir := t.TempDir()
	script := fmt.Sprintf("git -C '%s' archive %s shim | tar -x -C '%s'", Root(), before, dir)
	if out, err := exec.Command("bash", "-o", "pipefail", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	t.Logf("libvrdma.so of %s, protocol %s", before[:12], ProtocolOf(t, dir))
	return MakeLibrary(t, dir)
}

// ProtocolNumber finds the protocol's number in shim/protocol.h.
var ProtocolNumber = regexp.MustCompile(`#define VRDMA_PROTOCOL (\d+)u`)

// ProtocolOf is the number in the tree at dir.
func ProtocolOf(t testing.TB, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "shim", "protocol.h"))
	found := ProtocolNumber.FindSubmatch(text)
	if err != nil || found == nil {
		t.Fatalf("no number of the protocol in shim/protocol.h: %v", err)
	}
	return string(found[1])
}

// MakeLibrary builds libvrdma.so of the tree at dir.
func MakeLibrary(t testing.TB, dir string) string {
	t.Helper()
	cmd := exec.Command("make", "-s", "-f", "shim/shim.mk", "CC=gcc", "bin/libvrdma.so")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make libvrdma.so: %v\n%s", err, out)
	}
	return filepath.Join(dir, "bin", "libvrdma.so")
}

// Release builds vrdma of a commit, once: the program and the shared objects beside it. The directory is empty if the
// commit is not in the history here.
func Release(t testing.TB, commit string) (dir string) {
	t.Helper()
	if err := exec.Command("git", "-C", Root(), "cat-file", "-e", commit+"^{commit}").Run(); err != nil {
		return ""
	}
	files := []string{"vrdma", "libvrdma.so", "libvrdma-sockets.so"}
	dir, err := cache.Fill("release-"+commit, func(dir string) error {
		missing := func(name string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err != nil
		}
		if !slices.ContainsFunc(files, missing) {
			return nil
		}
		script := fmt.Sprintf("git -C '%s' archive %s | tar -x && make -s build VERSION=%[2]s", Root(), commit)
		work := t.TempDir()
		make := exec.Command("bash", "-o", "pipefail", "-c", script)
		make.Dir = work
		if out, err := make.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", script, err, out)
		}
		for _, name := range files {
			program, err := os.ReadFile(filepath.Join(work, "bin", name))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), program, 0o755)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
