package cp

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestRsh: a program that replaces ssh starts the other side.
func TestRsh(t *testing.T) {
	d := here(t)
	d.NoLeaks(t)
	dir := t.TempDir()
	rsh := script(t, fmt.Sprintf("echo a message of the day\necho \"$@\" > %s/argv\nshift\nexec \"$@\"\n", dir))
	from, to, back := t.TempDir(), t.TempDir(), t.TempDir()
	a := write(t, filepath.Join(from, "a"), content(5<<20))
	flags := []string{"--rsh", rsh, "--remote-vrdma", harness.Binary()}
	d.cp(t, append(flags, a, "user@127.0.0.1:"+to)...).OK(t, minute)
	same(t, filepath.Join(to, "a"), content(5<<20))
	d.cp(t, append(flags, "-r", "127.0.0.1:"+to, back)...).OK(t, minute)
	same(t, filepath.Join(back, filepath.Base(to), "a"), content(5<<20))
	argv, err := os.ReadFile(filepath.Join(dir, "argv"))
	if want := "127.0.0.1 " + harness.Binary() + " cp --remote --transport rdma\n"; err != nil || string(argv) != want {
		t.Errorf("ssh was given %q, want %q", argv, want)
	}
	fails(t, d.cp(t, "--rsh", rsh, "--remote-vrdma", "/nowhere/vrdma", a, "127.0.0.1:"+to), "exit status 127")
	fails(t, d.cp(t, "--rsh", "true", a, "127.0.0.1:"+to), "ended before it said where it listens")
	fails(t, d.cp(t, append(flags, "127.0.0.1:/nowhere/x", back)...), "/nowhere/x: no such file")
	// The command alone admits no client.
	remote := d.inside(harness.Binary(), "cp", "--remote")
	remote.Stdin = strings.NewReader("\n")
	fails(t, harness.Spawn(t, remote), "no key on standard input")
}

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSSH: between two hosts, with OpenSSH.
func TestSSH(t *testing.T) {
	a, b := two(t)
	rsh := harness.SSH(t, b.inside, b.ip)
	// The environment that a login shell would have.
	vrdma := script(t, fmt.Sprintf("export VRDMA_SOCKET=%s\nexec %s \"$@\"\n", b.Socket, harness.Binary()))
	from, to, back := t.TempDir(), t.TempDir(), t.TempDir()
	const size = 8 << 20
	file := write(t, filepath.Join(from, "a"), content(size))
	flags := []string{"--rsh", rsh, "--remote-vrdma", vrdma}
	a.Carried(t, harness.Traffic{Bytes: size}, func() {
		a.cp(t, append(flags, file, "root@"+b.ip+":"+to)...).OK(t, minute)
	})
	a.cp(t, append(flags, "root@"+b.ip+":"+to+"/a", back)...).OK(t, minute)
	same(t, filepath.Join(to, "a"), content(size))
	same(t, filepath.Join(back, "a"), content(size))
	b.Unmanaged(t)
}
