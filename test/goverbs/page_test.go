package goverbs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestPage builds the program of docs/how-to/go.md in a module of its own, as the page says, and runs it.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(harness.Root(), "docs/how-to/go.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := func(begins string) string {
		_, rest, found := strings.Cut(string(text), begins)
		code, _, ended := strings.Cut(rest, "\n```")
		if !found || !ended {
			t.Fatalf("docs/how-to/go.md has no block that begins with %q", begins)
		}
		_, head, _ := strings.Cut(begins, "\n")
		return head + code + "\n"
	}
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(harness.Root(), "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"main.go": block("```go\npackage main"),
		"go.mod":  strings.Replace(block("```\nmodule "), "../vrdma", harness.Root(), 1),
		"go.sum":  string(sums), // what go mod tidy would write, without a network
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-mod=mod", "-o", "peek", ".")
	build.Dir = dir
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	d := harness.Device(t)
	peek := filepath.Join(dir, "peek")
	owner := d.Launch(t, peek)
	if !harness.Poll(minute, func() bool { return strings.HasSuffix(owner.Stdout(), "\n") || owner.Ended(0) }) {
		t.Fatalf("no address\n%s", owner.Output())
	}
	reader := d.Launch(t, peek, strings.TrimSpace(owner.Stdout()))
	if got := reader.OK(t, minute); got != "nobody was asked\n" {
		t.Errorf("it prints %q", got)
	}
	owner.OK(t, minute)
}
