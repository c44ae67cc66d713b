package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// SSH starts an sshd and returns the command that connects to it as root. inside makes a command of the sshd's machine, such as one in a
// network namespace, which has the address ip. The user database that sshd sees has the entries that its package would add.
func SSH(t testing.TB, inside func(argv ...string) *exec.Cmd, ip string) (rsh string) {
	t.Helper()
	Need(t, "ssh", "ssh-keygen", "unshare", "mount")
	sshd := filepath.Join(Unpacked(t, "openssh-server"), "usr/sbin/sshd")
	dir := Directory(t, nil)
	for _, name := range []string{"host", "user"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, name)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	port := FreePort(t)
	files := map[string]string{
		"passwd": "root:x:0:0:root:" + dir + ":/bin/sh\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"shadow": "root:*:20000:0:99999:7:::\n",
		"config": fmt.Sprintf("ListenAddress %s\nPort %d\nHostKey %s/host\nAuthorizedKeysFile %s/user.pub\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n",
			ip, port, dir, dir),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	start := fmt.Sprintf("mount --bind %[1]s/passwd /etc/passwd && mount --bind %[1]s/shadow /etc/shadow && mount -t tmpfs none /run && mkdir /run/sshd && exec %[2]s -D -e -f %[1]s/config", dir, sshd)
	p := Spawn(t, inside("unshare", "--mount", "sh", "-c", start))
	p.Printed(t, "Server listening on", time.Minute)
	return fmt.Sprintf("ssh -F none -p %d -i %s/user -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR", port, dir)
}
