package networks

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestDemo runs `vrdma demo networks` as root with etcd from the cache, and as a user with etcd in PATH. Without etcd
// it says what to install.
func TestDemo(t *testing.T) {
	t.Parallel()
	harness.Need(t, "ip", "nsenter", "unshare", "rping")
	harness.Build(t)
	etcd := filepath.Join(harness.Unpacked(t, "etcd-server"), "usr/bin/etcd")
	for _, c := range []struct {
		name string
		user *syscall.Credential
		path bool // it has etcd
		code int
		want []string
	}{
		{"root", nil, false, 0, []string{"node-b", "ready", "blue  ping data", "red's connection ended", "revoked      NIC red/"}},
		{"user", harness.Nobody(), true, 0, []string{"node-b", "ready", "blue  ping data", "red's connection ended", "revoked      NIC red/"}},
		{"no etcd", harness.Nobody(), false, 3, []string{"etcd not found", "apt install etcd-server"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if path, err := exec.LookPath("etcd"); err == nil && c.code != 0 {
				t.Logf("this machine has %s", path)
				return
			}
			dir := harness.Directory(t, c.user)
			cmd := exec.Command(harness.Binary(), "demo", "networks")
			cmd.Dir, cmd.Env = dir, os.Environ()
			if c.user != nil {
				cmd.Env = append(cmd.Env, "HOME="+dir, "XDG_CACHE_HOME=")
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.user}
			}
			if c.path {
				// Other users cannot read our cache.
				if err := copyFile(filepath.Join(dir, "etcd"), etcd); err != nil {
					t.Fatal(err)
				}
				cmd.Env = append(cmd.Env, "PATH="+dir+":"+os.Getenv("PATH"))
			}
			p := harness.Spawn(t, cmd)
			if !p.Ended(2*minute) || p.Code() != c.code {
				t.Fatalf("%s, want status %d\n%s", p.Fate(), c.code, p.Output())
			}
			for _, want := range c.want {
				if !strings.Contains(p.Output(), want) {
					t.Errorf("it does not say %q:\n%s", want, p.Output())
				}
			}
		})
	}
}

func copyFile(to, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}
