package tenant

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/docs"
)

// TestReference: docs/reference/objects.md has every field, with the comment of its Go type.
func TestReference(t *testing.T) {
	files := token.NewFileSet()
	types, comments := map[string]*ast.StructType{}, map[string]string{}
	for _, name := range []string{"object.go", "host.go"} {
		file, err := parser.ParseFile(files, name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, s := range g.Specs {
				spec := s.(*ast.TypeSpec)
				comments[spec.Name.Name] = g.Doc.Text()
				if st, ok := spec.Type.(*ast.StructType); ok {
					types[spec.Name.Name] = st
				}
			}
		}
	}

	var b strings.Builder
	b.WriteString(`# Objects

Generated from the Go types of package tenant by ` + "`make docs`" + `: do not edit. [tenants.md](../how-to/tenants.md) explains the objects
with examples, and the commands that apply and list them.

Every object has ` + "`apiVersion: vrdma.io/v1`" + `, ` + "`kind`" + `, ` + "`metadata`" + ` and ` + "`spec`" + `. Bytes are written as ` + "`4096`, `64Ki`, `4Gi`, `10M`" + `;
rates are bits per second with a unit: ` + "`500Mbit`, `2.5Gbit`" + `.
`)
	// fields writes the rows of a struct, and of the structs in it.
	var fields func(st *ast.StructType, path string)
	fields = func(st *ast.StructType, path string) {
		for _, f := range st.Fields.List {
			if f.Tag == nil {
				continue
			}
			name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
			onlyNIC := path == "spec.administrators." && (name == "container" || name == "namespace")
			if name == "-" || onlyNIC {
				continue
			}
			full := path + name
			inner, kind := f.Type, ""
			for {
				if p, ok := inner.(*ast.StarExpr); ok {
					inner = p.X
				} else if l, ok := inner.(*ast.ArrayType); ok {
					inner, kind, full = l.Elt, "list of ", full+"[]"
				} else {
					break
				}
			}
			text, _, _ := strings.Cut(f.Doc.Text(), "\n\n")
			text = strings.Join(strings.Fields(text), " ")
			if st, ok := inner.(*ast.StructType); ok {
				fields(st, full+".")
				continue
			}
			word := typeName(inner)
			st, nested := types[word]
			if text == "" {
				t.Errorf("%s has no comment", full)
			}
			if nested && word != "PortRange" {
				fmt.Fprintf(&b, "| `%s` | | %s |\n", full, text)
				fields(st, full+".")
				continue
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", full, kind+word, text)
		}
	}
	section := func(title, text, name, path string) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| field | type | |\n|---|---|---|\n", title, strings.Join(strings.Fields(text), " "))
		fields(types[name], path)
	}
	section("metadata", comments["Metadata"], "Metadata", "metadata.")
	for _, kind := range []string{"Tenant", "Network", "NIC", "Policy", "Host", "Fault"} {
		section(kind, comments[kind], kind+"Spec", "spec.")
	}
	docs.Check(t, "docs/reference/objects.md", b.String())
}

// typeName is how the page calls a Go type.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		word, known := map[string]string{
			"int": "number", "uint32": "number", "string": "text", "bool": "true or false", "Bytes": "bytes", "BitRate": "bit rate",
			"Verdict": "word", "Way": "word", "Class": "word", "QPType": "word", "Operation": "word", "Direction": "word", "HostType": "word",
			"Duration": "duration", "PublicKey": "base64", "MAC": "MAC address", "PortRange": "ports",
		}[e.Name]
		if known {
			return word
		}
		return e.Name
	case *ast.SelectorExpr:
		return map[string]string{"Addr": "IP address", "Prefix": "IP prefix", "Rule": "text"}[e.Sel.Name]
	case *ast.MapType:
		return "map of text"
	}
	return ""
}
