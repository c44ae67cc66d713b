package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFilesOfDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.yaml", "a.yml", "c.json", "d.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := objectFiles{dir, "-"}.read(strings.NewReader("in"))
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, f := range files {
		got += f.Text + " "
	}
	if got != "a.yml b.yaml c.json in " {
		t.Errorf("got %s", got)
	}
	if _, err := (objectFiles{t.TempDir()}).read(nil); err == nil {
		t.Error("an empty directory is no error")
	}
}
