package cp

import (
	"fmt"
	"os"
	"os/exec"
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
	harness.Need(t, "ssh", "ssh-keygen", "unshare", "mount")
	sshd := filepath.Join(harness.Unpacked(t, "openssh-server"), "usr/sbin/sshd")
	a, b := two(t)
	rsh := startSSH(t, b, sshd)
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

// startSSH starts an sshd on a host and returns the command that connects to it. The user database that sshd sees has
// the entries that its package would add.
func startSSH(t *testing.T, h *host, sshd string) string {
	t.Helper()
	dir := harness.Directory(t, nil)
	for _, name := range []string{"host", "user"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	port := harness.FreePort(t)
	files := map[string]string{
		"passwd": "root:x:0:0:root:" + dir + ":/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"shadow": "root:*:20000:0:99999:7:::\n",
		"config": fmt.Sprintf("ListenAddress %s\nPort %d\nHostKey %s/host\nAuthorizedKeysFile %s/user.pub\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n",
			h.ip, port, dir, dir),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	start := fmt.Sprintf("mount --bind %[1]s/passwd /etc/passwd && mount --bind %[1]s/shadow /etc/shadow && mount -t tmpfs none /run && mkdir /run/sshd && exec %[2]s -D -e -f %[1]s/config", dir, sshd)
	p := harness.Spawn(t, h.inside("unshare", "--mount", "sh", "-c", start))
	p.Printed(t, "Server listening on", minute)
	return fmt.Sprintf("ssh -F none -p %d -i %s/user -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR", port, dir)
}
