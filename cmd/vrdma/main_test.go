package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"vrdma": main})
}

// TestScripts runs testdata/*.txtar. Each script has a runtime directory with a path short enough for a
// socket, the shared object of make build, and a copy of the example in the documentation.
func TestScripts(t *testing.T) {
	library, err := filepath.Abs("../../bin/libvrdma.so")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../../examples/two-tenants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			dir, err := os.MkdirTemp("/tmp", "vs")
			if err != nil {
				return err
			}
			env.Defer(func() { os.RemoveAll(dir) })
			env.Setenv("RUN", dir)
			env.Setenv("XDG_RUNTIME_DIR", dir)
			env.Setenv("VRDMA_LIB", library)
			return os.WriteFile(filepath.Join(env.WorkDir, "two-tenants.yaml"), example, 0o600)
		},
		Condition: func(name string) (bool, error) {
			_, err := os.Stat(library)
			return name == "built" && err == nil, nil
		},
	})
}
