package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages are all Markdown files of the repository but the measured reports, by their path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(Root(), func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(Root(), path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") && name != "." || name == "bench" || name == "bin" || name == "dist"):
			return filepath.SkipDir
		case filepath.Ext(name) == ".md" && !d.IsDir():
			text, err := os.ReadFile(path)
			out[name] = string(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var (
	fence = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	code  = regexp.MustCompile("`[^`\n]*`")
	link  = regexp.MustCompile(`\[[^\]\n]*\]\(([^)\s]+)\)`)
	title = regexp.MustCompile(`(?m)^#+ +(.*)$`)
)

// anchor is the name that a renderer gives to a heading.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127:
			return r
		}
		return -1
	}, strings.ToLower(strings.TrimSpace(heading)))
}

// TestLinks: each link between documents leads to a file, and to a heading of it.
func TestLinks(t *testing.T) {
	all := pages(t)
	for name, text := range all {
		prose := code.ReplaceAllString(fence.ReplaceAllString(text, ""), "")
		for _, m := range link.FindAllStringSubmatch(prose, -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path, part, _ := strings.Cut(target, "#")
			to := name
			if path != "" {
				to = filepath.Join(filepath.Dir(name), path)
				if _, err := os.Stat(filepath.Join(Root(), to)); err != nil {
					t.Errorf("%s: link to %s: there is no %s", name, target, to)
					continue
				}
			}
			if part == "" || filepath.Ext(to) != ".md" {
				continue
			}
			found := false
			for _, h := range title.FindAllStringSubmatch(fence.ReplaceAllString(all[to], ""), -1) {
				found = found || anchor(h[1]) == part
			}
			if !found {
				t.Errorf("%s: link to %s: %s has no such heading", name, target, to)
			}
		}
	}
}

// TestIndex: docs/README.md leads to every page.
func TestIndex(t *testing.T) {
	all := pages(t)
	for name := range all {
		rest, below := strings.CutPrefix(name, "docs/")
		if below && rest != "README.md" && !strings.Contains(all["docs/README.md"], "]("+rest+")") {
			t.Errorf("docs/README.md does not link to %s", rest)
		}
	}
}

// TestNamesOfFiles: a source file that the walks of architecture.md name exists, as PACKAGE/FILE.
func TestNamesOfFiles(t *testing.T) {
	const page = "docs/explanation/architecture.md"
	files := sources(t)
	for _, m := range regexp.MustCompile("`([\\w/]+/\\w+\\.(?:go|c|h))`").FindAllStringSubmatch(pages(t)[page], -1) {
		if !slices.ContainsFunc(files, func(file string) bool { return strings.HasSuffix("/"+file, "/"+m[1]) }) {
			t.Errorf("%s names %s: there is no such file", page, m[1])
		}
	}
}

// sources are the Go and C files of the repository, by their path.
func sources(t *testing.T) (files []string) {
	t.Helper()
	for _, dir := range []string{"cmd", "examples", "internal", "shim", "test", "verbs"} {
		err := filepath.WalkDir(filepath.Join(Root(), dir), func(path string, d fs.DirEntry, err error) error {
			if ext := filepath.Ext(path); err == nil && (ext == ".go" || ext == ".c" || ext == ".h") {
				name, _ := filepath.Rel(Root(), path)
				files = append(files, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// TestNamesOfTests: a test that a document names exists.
func TestNamesOfTests(t *testing.T) {
	var source strings.Builder
	for _, name := range sources(t) {
		if strings.HasSuffix(name, "_test.go") {
			text, err := os.ReadFile(filepath.Join(Root(), name))
			if err != nil {
				t.Fatal(err)
			}
			source.Write(text)
		}
	}
	there := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`).FindAllStringSubmatch(source.String(), -1) {
		there[m[1]] = true
	}
	named := regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w*`)
	for name, text := range pages(t) {
		if strings.HasPrefix(name, "docs/report/") || name == "docs/reference/tests.md" { // generated
			continue
		}
		for _, n := range named.FindAllString(text, -1) {
			if !there[n] {
				t.Errorf("%s names %s: there is no such test", name, n)
			}
		}
	}
}

// TestSizes: pages that are read as a whole stay short.
func TestSizes(t *testing.T) {
	all := pages(t)
	for name, most := range map[string]int{"docs/explanation/performance.md": 10 << 10, "docs/reference/testing.md": 8 << 10} {
		if n := len(all[name]); n == 0 || n > most {
			t.Errorf("%s has %d bytes, want at most %d", name, n, most)
		}
	}
	if n := strings.Count(all["README.md"], "\n"); n == 0 || n > 120 {
		t.Errorf("README.md has %d lines, want at most 120", n)
	}
}

func TestReplacePart(t *testing.T) {
	page := "a\n<!-- generated: x -->\nold\n<!-- end: x -->\nb\n"
	if got, ok := replacePart(page, "x", "new\n"); !ok || got != "a\n<!-- generated: x -->\nnew\n<!-- end: x -->\nb\n" {
		t.Errorf("got %q, %v", got, ok)
	}
	if _, ok := replacePart(page, "y", ""); ok {
		t.Error("a part that is not there was replaced")
	}
}
