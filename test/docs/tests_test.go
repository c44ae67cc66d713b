package docs

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestList writes docs/reference/tests.md: the integration tests, with what each shows. Without VRDMA_UPDATE_DOCS it
// does not compare, so that a new or renamed test needs no new page.
func TestList(t *testing.T) {
	if os.Getenv(update) == "" {
		return
	}
	rows := map[string][]string{}
	files := token.NewFileSet()
	err := filepath.WalkDir(filepath.Join(Root(), "test"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		dir, _ := filepath.Rel(Root(), filepath.Dir(path))
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") || f.Name.Name == "TestMain" {
				continue
			}
			text := new(doc.Package).Synopsis(f.Doc.Text())
			text = strings.TrimLeft(strings.TrimPrefix(text, f.Name.Name), ": ")
			text = strings.NewReplacer("|", "\\|", "<", "&lt;").Replace(text)
			rows[dir] = append(rows[dir], fmt.Sprintf("| %s | %s |\n", f.Name.Name, text))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Integration tests\n\nGenerated from the comments of the tests by `make docs`: do not edit. [testing.md](testing.md) says how to run them.\n")
	for _, dir := range slices.Sorted(maps.Keys(rows)) {
		slices.Sort(rows[dir])
		fmt.Fprintf(&b, "\n## %s\n\n| test | shows |\n|---|---|\n%s", dir, strings.Join(rows[dir], ""))
	}
	Check(t, "docs/reference/tests.md", b.String())
}
