package imports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPure checks the packages that make unit tests without the race detector: they start no goroutine and share
// nothing, so it could find nothing in them.
func TestPure(t *testing.T) {
	const root = "../../.."
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^PURE +:= (\S+)$`).FindSubmatch(makefile)
	if m == nil {
		t.Fatal("the Makefile has no PURE")
	}
	for _, dir := range strings.Split(string(m[1]), "|") {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: %d files, %v", dir, len(files), err)
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range file.Imports {
				if slices.Contains([]string{`"sync"`, `"sync/atomic"`, `"testing/synctest"`}, i.Path.Value) {
					t.Errorf("%s imports %s: remove %s from PURE in the Makefile", name, i.Path.Value, dir)
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				_, starts := n.(*ast.GoStmt)
				if call, ok := n.(*ast.SelectorExpr); ok {
					starts = call.Sel.Name == "Parallel"
				}
				if starts {
					t.Errorf("%s starts a goroutine: remove %s from PURE in the Makefile", name, dir)
				}
				return true
			})
		}
	}
}
