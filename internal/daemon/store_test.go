package daemon

import (
	"os"
	"path/filepath"
	"testing"
)

// A path that cannot be read, such as another user's home, is ignored.
func TestFirstReachable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	below, absent, last := filepath.Join(file, "state.db"), filepath.Join(dir, "a/b.db"), filepath.Join(dir, "last.db")
	for _, c := range []struct {
		want  string
		paths []string
	}{
		{absent, []string{below, absent, last}},
		{file, []string{file, absent, last}},
		{last, []string{below, last}},
		{below, []string{below}},
	} {
		if got := firstReachable(c.paths); got != c.want {
			t.Errorf("of %q it takes %q, want %q", c.paths, got, c.want)
		}
	}
}

// Plain etcd on another machine is warned about.
func TestElsewhere(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"127.0.0.1:2379": false, "[::1]:2379": false, "localhost:2379": false,
		"10.0.0.1:2379": true, "[fd00::1]:2379": true, "etcd-1:2379": true,
	} {
		if got := elsewhere(endpoint); got != want {
			t.Errorf("%s: %v, want %v", endpoint, got, want)
		}
	}
}
