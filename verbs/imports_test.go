package verbs_test

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// modulePath returns the path of this module.
func modulePath(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimPrefix(line, "module ")
}

// TestImports: these packages import the standard library, golang.org/x/sys and the packages that describe layouts, and nothing else.
func TestImports(t *testing.T) {
	module := modulePath(t) + "/"
	allowed := map[string]bool{"internal/abi": true, "internal/client/protocol": true}
	seen := map[string]bool{}
	var look func(pkg string)
	look = func(pkg string) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		dir := filepath.Join("..", pkg)
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", pkg, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range f.Imports {
				path, _ := strconv.Unquote(i.Path.Value)
				first, _, _ := strings.Cut(path, "/")
				ours, isOurs := strings.CutPrefix(path, module)
				switch {
				case path == "C":
					t.Errorf("%s uses cgo", name)
				case isOurs && (ours == "verbs" || strings.HasPrefix(ours, "verbs/") || allowed[ours]):
					look(ours)
				case strings.HasPrefix(path, "golang.org/x/sys/"):
				case isOurs || strings.Contains(first, "."):
					t.Errorf("%s imports %s", name, path)
				}
			}
		}
	}
	for _, pkg := range []string{"verbs", "verbs/cm", "verbs/stream"} {
		look(pkg)
	}
	if !seen["verbs/internal/ipc"] {
		t.Errorf("looked only at %v", seen)
	}
}
