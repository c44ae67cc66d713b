package podmanhosts

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/exit"
)

func TestMajor(t *testing.T) {
	for text, want := range map[string]int{"Version: 4.2.1\n": 4, "Version: 3.17.1\nGitID: v3.17.1\n": 3, "": 0, "criu 4": 0} {
		if got := major(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// TestCachedRoots: the cache is used if the two directories together have all programs.
func TestCachedRoots(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	if got := cachedRoots(); got != nil {
		t.Errorf("an empty cache has %q", got)
	}
	put := func(path string) {
		t.Helper()
		path = filepath.Join(cache, "vrdma", path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"criu/root/usr/sbin/criu", "criu/root/usr/bin/tar", "image-host/root/usr/bin/podman", "image-host/root/usr/bin/crun"} {
		put(path)
	}
	if got := cachedRoots(); got != nil {
		t.Errorf("a cache without nft has %q", got)
	}
	put("image-host/root/usr/sbin/nft")
	want := []string{filepath.Join(cache, "vrdma/criu/root"), filepath.Join(cache, "vrdma/image-host/root")}
	if got := cachedRoots(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestLacks: where podman and CRIU are missing, the error says so and has the exit status for that.
func TestLacks(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	_, err := findRoots()
	var e *exit.Error
	if !errors.As(err, &e) || e.Status != exit.StatusLacks || !strings.Contains(err.Error(), "podman, crun, criu, nft, tar not found") {
		t.Errorf("without podman: %v", err)
	}
}
