package preflight

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTooFewFiles(t *testing.T) {
	for limit, bad := range map[uint64]bool{0: true, 20: true, fewestFiles - 1: true, fewestFiles: false, 1 << 20: false} {
		if got := tooFewFiles(limit, 1<<20) != nil; got != bad {
			t.Errorf("limit %d: finding %v, want %v", limit, got, bad)
		}
	}
	// A new daemon gets the hard limit and needs more descriptors than a program.
	for limit, bad := range map[uint64]bool{64: true, fewestHard - 1: true, fewestHard: false} {
		f := tooFewFiles(64, limit)
		if got := f != nil; got != bad {
			t.Errorf("hard limit %d: finding %v, want %v", limit, f, bad)
		}
		if f != nil && (f.Fatal || !strings.Contains(f.String(), "at least 128")) {
			t.Errorf("hard limit %d: %v, want a warning that says how many", limit, f)
		}
	}
}

func TestProvider(t *testing.T) {
	const (
		library = "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"
		config  = "etc/libibverbs.d/rxe.driver"
	)
	tests := []struct {
		name  string
		files []string
		want  string
	}{
		{"complete", []string{library, config}, ""},
		{"newer", []string{"usr/lib64/libibverbs/librxe-rdmav59.so", config}, ""},
		{"nothing", nil, "not installed"},
		{"only the configuration", []string{config}, "not installed"},
		{"only the library", []string{library}, "not told about"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for _, name := range test.files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			dir, err := os.Open(root)
			if err != nil {
				t.Fatal(err)
			}
			defer dir.Close()
			found := provider(dir)
			if (found == nil) != (test.want == "") || found != nil && !strings.Contains(found.What, test.want) {
				t.Errorf("found %v, want %q", found, test.want)
			}
			if found != nil && found.Fatal {
				t.Error("fatal, although rdma-core may be elsewhere")
			}
		})
	}
}

func TestFindingsSayWhatToDo(t *testing.T) {
	for _, f := range Machine(t.TempDir()) {
		if f.What == "" || f.Do == "" || strings.Contains(f.String(), "\n") {
			t.Errorf("finding %q is not one line of what and what to do", f)
		}
	}
}
