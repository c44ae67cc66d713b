package imports

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	document = "docs/explanation/architecture.md"
	heading  = "## Packages"
)

// A rule is what one package, or one tree of packages, may import.
type rule struct {
	dir      string // with / at its end, also the directories below
	anything bool
	allowed  []string // the last parts of directories in internal, or ../../DIRECTORY
}

// covers reports whether the rule is about the package in dir.
func (r rule) covers(dir string) bool {
	if tree, found := strings.CutSuffix(r.dir, "/"); found {
		return dir == tree || strings.HasPrefix(dir, r.dir)
	}
	return dir == r.dir
}

// resolve finds the directory of a package that a rule names by the last part of its path below internal. Without one it returns
// internal/NAME.
func resolve(name string, packages map[string][]string) string {
	dir := path.Join("internal", name)
	if _, found := packages[dir]; found {
		return dir
	}
	for p := range packages {
		if strings.HasPrefix(p, "internal/") && strings.HasSuffix(p, "/"+name) {
			return p
		}
	}
	return dir
}

// parseTable reads the table of packages: `package`, `package` | contents | may import. Packages after the first of a line are
// siblings of it. The last cell is "anything", or "std" and "libc" (nothing of this module), or packages by the last part of their path.
func parseTable(text string) ([]rule, error) {
	_, section, found := strings.Cut(text, heading+"\n")
	if !found {
		return nil, fmt.Errorf("%s has no section %q", document, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var rules []rule
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if len(cells) != 3 {
			return nil, fmt.Errorf("%s: the line %q has %d cells, want package, contents, may import", document, strings.TrimSpace(line), len(cells))
		}
		var r rule
		for name := range strings.SplitSeq(cells[2], ",") {
			switch name = strings.TrimSpace(name); name {
			case "anything":
				r.anything = true
			case "std", "libc":
			case "":
				return nil, fmt.Errorf("%s: the line %q does not say what may be imported: write std if nothing of this module", document, strings.TrimSpace(line))
			default:
				r.allowed = append(r.allowed, name)
			}
		}
		first := ""
		for name := range strings.SplitSeq(cells[0], ",") {
			name = strings.Trim(strings.TrimSpace(name), "`")
			if first == "" {
				first = name
			} else {
				name = path.Join(path.Dir(first), name)
			}
			r.dir = name
			rules = append(rules, r)
		}
	}
	if len(rules) == 0 {
		return nil, fmt.Errorf("%s has no table below %q", document, heading)
	}
	return rules, nil
}

// check compares the rules with the packages of the module: what each directory imports,
// as directories. It returns a sentence for everything that does not agree.
func check(rules []rule, packages map[string][]string) (complaints []string) {
	complain := func(format string, args ...any) { complaints = append(complaints, fmt.Sprintf(format, args...)) }
	for _, r := range rules {
		here := func(dir string) bool { return r.covers(dir) }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(packages)), here) {
			complain("%s has a row for %s, where there is no Go package: delete the row, or correct its name", document, r.dir)
		}
		for _, a := range r.allowed {
			if _, found := packages[resolve(a, packages)]; !found {
				complain("%s lets %s import %s, which does not exist: correct the row", document, r.dir, a)
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		i := slices.IndexFunc(rules, func(r rule) bool { return r.covers(dir) })
		if i < 0 {
			complain("%s is not in the table of %s (%q): add a row with its contents and what it may import", dir, document, heading)
			continue
		}
		for _, imported := range packages[dir] {
			r := rules[i]
			within := strings.HasSuffix(r.dir, "/") && r.covers(imported) // a tree of packages
			allowed := slices.ContainsFunc(r.allowed, func(a string) bool { return resolve(a, packages) == imported })
			if !r.anything && !within && !allowed {
				complain("%s imports %s, which the table of %s (%q) does not allow: do without the import, or change the row of %s and say in the commit why the package needs it",
					dir, imported, document, heading, r.dir)
			}
		}
	}
	return complaints
}

// modulePath is the path of the module whose root directory this is.
func modulePath(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimPrefix(line, "module "), err
}

// modulePackages are the directories with Go files below root, and what of the module
// their files import, tests left out.
func modulePackages(root string) (map[string][]string, error) {
	packages := map[string][]string{}
	module, err := modulePath(root)
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if file != root && (name == "testdata" || name[0] == '.' || name[0] == '_') {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		imports := packages[dir]
		if !strings.HasSuffix(name, "_test.go") {
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, spec := range parsed.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					return err
				}
				if ours, found := strings.CutPrefix(imported, module+"/"); found && !slices.Contains(imports, ours) {
					imports = append(imports, ours)
				}
			}
		}
		packages[dir] = imports
		return nil
	})
	return packages, err
}

// Every package imports only what the table of packages allows.
func TestImports(t *testing.T) {
	const root = "../../.."
	text, err := os.ReadFile(filepath.Join(root, document))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := parseTable(string(text))
	if err != nil {
		t.Fatal(err)
	}
	packages, err := modulePackages(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 10 {
		t.Fatalf("found only the packages %v", packages)
	}
	for _, complaint := range check(rules, packages) {
		t.Error(complaint)
	}
}

const table = "# A\n\n## Packages\n\n| package | contents | may import |\n|---|---|---|\n" +
	"| `cmd/x` | the command | anything |\n" +
	"| `internal/a` | a | std |\n" +
	"| `internal/b`, `c` | b and c | a |\n" +
	"| `test/` | tests | anything |\n\n## After\n\n| `no/package` | | |\n"

func TestCheck(t *testing.T) {
	good := func() map[string][]string {
		return map[string][]string{"cmd/x": {"internal/c"}, "internal/a": nil, "internal/b": {"internal/a"}, "internal/c": nil, "test/deep": {"internal/a"}}
	}
	tests := []struct {
		name   string
		change func(map[string][]string)
		want   string // empty: no complaint
	}{
		{"as it should be", func(map[string][]string) {}, ""},
		{"a wrong import", func(p map[string][]string) { p["internal/a"] = []string{"internal/b"} }, "internal/a imports internal/b"},
		{"a sibling on the same line", func(p map[string][]string) { p["internal/c"] = []string{"internal/b"} }, "internal/c imports internal/b"},
		{"of tests", func(p map[string][]string) { p["internal/b"] = []string{"test/deep"} }, "internal/b imports test/deep"},
		{"a new package", func(p map[string][]string) { p["internal/d"] = nil }, "internal/d is not in the table"},
		{"below a package", func(p map[string][]string) { p["internal/a/e"] = nil }, "internal/a/e is not in the table"},
		{"a package that is gone", func(p map[string][]string) { delete(p, "internal/c") }, "a row for internal/c"},
		{"an allowed package that is gone", func(p map[string][]string) { delete(p, "internal/a") }, "lets internal/b import a"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rules, err := parseTable(table)
			if err != nil {
				t.Fatal(err)
			}
			packages := good()
			test.change(packages)
			got := strings.Join(check(rules, packages), "\n")
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q in it", got, test.want)
			}
		})
	}
}

func TestParseTable(t *testing.T) {
	for name, text := range map[string]string{
		"no section":   "# A\n",
		"no table":     "## Packages\n\nNothing.\n",
		"a cell less":  strings.Replace(table, "| a | std |", "| std |", 1),
		"an empty one": strings.Replace(table, "| std |", "| |", 1),
	} {
		if rules, err := parseTable(text); err == nil {
			t.Errorf("%s: got %v, want an error", name, rules)
		}
	}
}
