package house

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
	module   = "vrdma"
	document = "docs/architecture.md"
	heading  = "## The house"
)

// A rule is what one room may import.
type rule struct {
	room     string // a directory; with / at its end, also those below
	anything bool
	allowed  []string // directories
}

// covers reports whether the rule is about the package in dir.
func (r rule) covers(dir string) bool {
	if tree, found := strings.CutSuffix(r.room, "/"); found {
		return dir == tree || strings.HasPrefix(dir, r.room)
	}
	return dir == r.room
}

// parseTable reads the table of rooms: `room`, `room` | what | may import. Rooms after
// the first of a line lie beside it. What may be imported is "anything", or "std" and
// "libc" (nothing of ours), or rooms by their last name, which lie in internal.
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
			return nil, fmt.Errorf("%s: the line %q has %d cells, want room, what lives there, may import", document, strings.TrimSpace(line), len(cells))
		}
		var r rule
		for name := range strings.SplitSeq(cells[2], ",") {
			switch name = strings.TrimSpace(name); name {
			case "anything":
				r.anything = true
			case "std", "libc":
			case "":
				return nil, fmt.Errorf("%s: the line %q does not say what may be imported: write std if nothing of ours", document, strings.TrimSpace(line))
			default:
				r.allowed = append(r.allowed, path.Join("internal", name))
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
			r.room = name
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
			complain("%s has a row for %s, where there is no Go package: delete the row, or correct its name", document, r.room)
		}
		for _, a := range r.allowed {
			if _, found := packages[a]; !found {
				complain("%s lets %s import %s, which does not exist: correct the row", document, r.room, path.Base(a))
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		i := slices.IndexFunc(rules, func(r rule) bool { return r.covers(dir) })
		if i < 0 {
			complain("%s is not in the table of %s (%q): add a row that says what lives there and what it may import", dir, document, heading)
			continue
		}
		for _, imported := range packages[dir] {
			r := rules[i]
			within := strings.HasSuffix(r.room, "/") && r.covers(imported) // a room of several packages
			if !r.anything && !within && !slices.Contains(r.allowed, imported) {
				complain("%s imports %s, which the table of %s (%q) does not allow: do without the import, or change the row of %s and say in the commit why the room needs it",
					dir, imported, document, heading, r.room)
			}
		}
	}
	return complaints
}

// modulePackages are the directories with Go files below root, and what of the module
// their files import, tests left out.
func modulePackages(root string) (map[string][]string, error) {
	packages := map[string][]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
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

// The table of rooms says what every package may import, and every package keeps to it.
func TestImports(t *testing.T) {
	const root = "../.."
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

const table = "# A\n\n## The house\n\n| room | what | may import |\n|---|---|---|\n" +
	"| `cmd/x` | the command | anything |\n" +
	"| `internal/a` | a | std |\n" +
	"| `internal/b`, `c` | b and c | a |\n" +
	"| `test/` | tests | anything |\n\n## After\n\n| `no/room` | | |\n"

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
		{"beside another room of the line", func(p map[string][]string) { p["internal/c"] = []string{"internal/b"} }, "internal/c imports internal/b"},
		{"of tests", func(p map[string][]string) { p["internal/b"] = []string{"test/deep"} }, "internal/b imports test/deep"},
		{"a new room", func(p map[string][]string) { p["internal/d"] = nil }, "internal/d is not in the table"},
		{"below a room", func(p map[string][]string) { p["internal/a/e"] = nil }, "internal/a/e is not in the table"},
		{"a room that is gone", func(p map[string][]string) { delete(p, "internal/c") }, "a row for internal/c"},
		{"an allowed room that is gone", func(p map[string][]string) { delete(p, "internal/a") }, "lets internal/b import a"},
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
		"no table":     "## The house\n\nNothing.\n",
		"a cell less":  strings.Replace(table, "| a | std |", "| std |", 1),
		"an empty one": strings.Replace(table, "| std |", "| |", 1),
	} {
		if rules, err := parseTable(text); err == nil {
			t.Errorf("%s: got %v, want an error", name, rules)
		}
	}
}
