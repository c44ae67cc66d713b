package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// program writes a shell script to a directory.
func program(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// TestChosen: an engine that cannot use the root is skipped, or reports why if it is named.
func TestChosen(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	program(t, dir, "docker", "exit 0")
	program(t, dir, "lxc-execute", "exit 0")
	root := t.TempDir()
	for _, c := range []struct{ engine, rootfs, want, err string }{
		{"", "", "docker", ""},
		{"", "bookworm", "docker", ""},
		{"", root, "lxc", ""},
		{"lxc", "", "", "name one with --rootfs"},
		{"docker", root, "", "is a directory"},
		{"podman", "", "", "podman cannot be used here"},
		{"crate", "", "", "choose among podman, docker, lxc, none"},
		{NoEngine, root, "", ""},
	} {
		in := &Environments{Lab: &Lab{Dir: dir}, Engine: c.engine, Rootfs: c.rootfs}
		e, err := in.chooseEngine(t.Context())
		name := ""
		if e != nil {
			name = e.name
		}
		if name != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("--engine %q --rootfs %q: %q, %v; want %q, %q", c.engine, c.rootfs, name, err, c.want, c.err)
		}
	}
	// LXC without a root directory: namespaces are used.
	if err := os.Remove(filepath.Join(dir, "docker")); err != nil {
		t.Fatal(err)
	}
	if e, err := (&Environments{Lab: &Lab{Dir: dir}}).chooseEngine(t.Context()); e != nil || err != nil {
		t.Errorf("LXC without a root: %v, %v", e, err)
	}
}

// TestDockerImage: the image is made once from directories and settings. A failure of tar is reported. The image and those of killed
// runs are removed.
func TestDockerImage(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	const dead = 1 << 30 // no process has this id
	program(t, dir, "docker", fmt.Sprintf(`echo "$*" >>%[1]s/calls
case $1 in
import) tar -t >%[1]s/files ;;
ps) echo vrdma-bench-%[2]d-c1-a; echo vrdma-bench-%[3]d-c1-a; echo other ;;
images) echo vrdma-bench:vrdma-bench-%[2]d; echo vrdma-bench:vrdma-bench-%[3]d ;;
esac`, dir, dead, os.Getpid()))
	in := &Environments{Lab: &Lab{Dir: dir}}
	for range 2 {
		in.sweep(t.Context(), &engines[1])
		if err := startDocker(t.Context(), in, "x", ""); err != nil {
			t.Fatal(err)
		}
	}
	in.RemoveImage()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	calls, name := read("calls"), fmt.Sprintf("vrdma-bench:vrdma-bench-%d", os.Getpid())
	for call, want := range map[string]int{
		"import - " + name: 1, "rmi " + name: 1, "run ": 2, "ps ": 1,
		fmt.Sprintf("rm --force vrdma-bench-%d-c1-a", dead): 1, "rm --force": 1, fmt.Sprintf("rmi vrdma-bench:vrdma-bench-%d", dead): 1, "rmi ": 2,
	} {
		if got := strings.Count("\n"+calls, "\n"+call); got != want {
			t.Errorf("%q %d times, want %d, in\n%s", call, got, want, calls)
		}
	}
	files := strings.Fields(read("files"))
	if list := strings.Join(files, " "); !strings.Contains(list, "etc/passwd") || !strings.Contains(list, "usr") || strings.Contains(list, "etc/shadow") {
		t.Errorf("in the image: %s", list)
	}
	program(t, dir, "tar", "exit 2")
	if err := startDocker(t.Context(), in, "x", ""); err == nil || !strings.Contains(err.Error(), "no image") {
		t.Errorf("tar failed: %v", err)
	}
}
