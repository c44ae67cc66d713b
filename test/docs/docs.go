// Package docs keeps the documents below docs/ true.
//
// A reference page, or a part of one, is generated from the code by a test. The test fails when the page differs
// from the code. `make docs` runs the same tests with VRDMA_UPDATE_DOCS=1, and then they write the pages.
package docs

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// update is the environment variable that makes Check and CheckPart write instead of compare.
const update = "VRDMA_UPDATE_DOCS"

// Root is the repository's directory.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("docs: the binary has no file names; build without -trimpath")
	}
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Check compares a generated page with the one in the repository. name is relative to Root.
func Check(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(Root(), name)
	old, err := os.ReadFile(path)
	if err == nil && string(old) == text {
		return
	}
	if os.Getenv(update) == "" {
		t.Errorf("%s differs from the code (%v); first difference:\n%s\nrun: make docs", name, err, difference(string(old), text))
		return
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("wrote %s", name)
}

// CheckPart compares a generated part of a page: the lines between <!-- generated: MARK --> and
// <!-- end: MARK -->.
func CheckPart(t *testing.T, name, mark, text string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(Root(), name))
	if err != nil {
		t.Fatal(err)
	}
	whole, ok := replacePart(string(page), mark, text)
	if !ok {
		t.Fatalf("%s has no part %q: write <!-- generated: %s --> and <!-- end: %s -->", name, mark, mark, mark)
	}
	Check(t, name, whole)
}

// replacePart returns the page with another text between the marks.
func replacePart(page, mark, text string) (whole string, ok bool) {
	begin, end := "<!-- generated: "+mark+" -->\n", "<!-- end: "+mark+" -->\n"
	head, rest, found := strings.Cut(page, begin)
	_, tail, closed := strings.Cut(rest, end)
	return head + begin + text + end + tail, found && closed
}

// difference is the first line in which two texts differ.
func difference(old, text string) string {
	a, b := strings.Split(old, "\n"), strings.Split(text, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return "- " + a[i] + "\n+ " + b[i]
		}
	}
	if len(a) > len(b) {
		return "- " + a[len(b)]
	}
	if len(b) > len(a) {
		return "+ " + b[len(a)]
	}
	return "none"
}
