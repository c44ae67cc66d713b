package transport_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPure checks that the package has no socket, clock, goroutine, channel or lock, and imports nothing that provides one.
func TestPure(t *testing.T) {
	allowed := []string{"bytes", "encoding/binary", "errors", "fmt", "math", "math/bits", "slices", "vrdma.dev/vrdma/internal/abi", "vrdma.dev/vrdma/internal/ib", "vrdma.dev/vrdma/internal/device/memory"}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		files++
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); !slices.Contains(allowed, path) {
				t.Errorf("%v: imports %s", set.Position(i.Pos()), path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.GoStmt, *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
				t.Errorf("%v: %T", set.Position(n.Pos()), n)
			}
			return true
		})
	}
	if files < 10 {
		t.Errorf("%d files looked at, want all of the package", files)
	}
}
