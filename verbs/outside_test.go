package verbs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestOutsideModule builds a program of another module against this one with a replace directive, as users of package verbs do.
func TestOutsideModule(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	module := modulePath(t)
	for name, text := range map[string]string{
		"go.mod": "module example.com/outside\n\ngo 1.26.0\n",
		"main.go": `package main

import (
	"context"
	"fmt"

	"` + module + `/verbs"
)

func main() {
	d, err := verbs.Open(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	d.Close()
}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run("mod", "edit", "-require="+module+"@v0.0.0", "-replace="+module+"="+root)
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600); err != nil {
		t.Fatal(err)
	}
	run("build", "-o", filepath.Join(dir, "outside"), ".")
}
