package transport_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// whole lists, for each type, the types that its methods must neither take nor use.
var whole = map[string][]string{
	"requester": {"QP", "responder", "Env", "responderEnv", "respCall"},
	"responder": {"QP", "requester", "Env", "requesterEnv", "reqCall"},
	"reqCall":   {"QP", "requester", "responder", "Env"},
	"respCall":  {"QP", "requester", "responder", "Env"},
}

// part is the same list for all types other than QP and its halves.
var part = []string{"QP", "requester", "responder", "Env", "requesterEnv", "responderEnv", "reqCall", "respCall"}

// TestParts checks that the halves of a queue pair do not know each other, that their parts do not know the halves, and that
// neither knows the QP.
func TestParts(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	methods := map[string]int{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			typ := fn.Recv.List[0].Type
			if p, ok := typ.(*ast.StarExpr); ok {
				typ = p.X
			}
			name := typ.(*ast.Ident).Name
			methods[name]++
			if name == "QP" {
				continue
			}
			not, ok := whole[name]
			if !ok {
				not = part
			}
			ast.Inspect(fn.Type, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && slices.Contains(not, id.Name) {
					t.Errorf("%v: %s.%s takes a %s", set.Position(id.Pos()), name, fn.Name.Name, id.Name)
				}
				return true
			})
			ast.Inspect(fn.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok && slices.Contains(not, id.Name) {
					t.Errorf("%v: %s.%s uses %s", set.Position(id.Pos()), name, fn.Name.Name, id.Name)
				}
				return true
			})
		}
	}
	if methods["requester"] == 0 || methods["responder"] == 0 {
		t.Errorf("methods by type: %v; the halves have none", methods)
	}
	// The QP stays thin: it has only the public calls and connects the halves.
	if n := methods["QP"]; n > 48 {
		t.Errorf("QP has %d methods: what belongs to one half should be a method of that half", n)
	}
	t.Logf("methods by type: %v", methods)
}
