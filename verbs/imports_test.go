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

// TestImports: who uses these packages gets nothing along but the standard library, golang.org/x/sys and
// the rooms that describe layouts.
func TestImports(t *testing.T) {
	const module = "vrdma/"
	allowed := map[string]bool{"vrdma/internal/abi": true, "vrdma/internal/protocol": true}
	seen := map[string]bool{}
	var look func(pkg string)
	look = func(pkg string) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		dir := filepath.Join("..", strings.TrimPrefix(pkg, module))
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
				switch {
				case path == "C":
					t.Errorf("%s uses cgo", name)
				case strings.HasPrefix(path, "vrdma/verbs/"), path == "vrdma/verbs", allowed[path]:
					look(path)
				case strings.HasPrefix(path, "golang.org/x/sys/"):
				case first == "vrdma" || strings.Contains(first, "."):
					t.Errorf("%s imports %s", name, path)
				}
			}
		}
	}
	for _, pkg := range []string{"vrdma/verbs", "vrdma/verbs/cm", "vrdma/verbs/stream"} {
		look(pkg)
	}
	if _, err := os.Stat("internal/door"); err != nil || !seen["vrdma/verbs/internal/door"] {
		t.Errorf("looked only at %v", seen)
	}
}
