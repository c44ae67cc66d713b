package containers

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// TestDemoMigrate runs `vrdma demo migrate` with podman, CRIU and etcd from the cache. It leaves no control group. Without podman or
// without root it says what is missing.
func TestDemoMigrate(t *testing.T) {
	harness.Build(t)
	harness.Need(t, "ip", "nsenter", "unshare")
	harness.CRIU(t)
	etcd := filepath.Join(harness.Unpacked(t, "etcd-server"), "usr/bin")
	empty := harness.Directory(t, harness.Nobody())
	home := func(dir string) []string {
		return append(os.Environ(), "HOME="+dir, "XDG_CACHE_HOME=", "PATH="+etcd+":"+os.Getenv("PATH"))
	}
	for _, c := range []struct {
		name string
		env  []string
		user *syscall.Credential
		code int
		want []string
	}{
		{"moves", os.Environ(), nil, 0, []string{"podman container checkpoint", "└──", "runs on node-b", "No data moved for ", "red/web"}},
		{"no podman", home(empty), nil, 3, []string{"podman", "apt install podman crun criu", "tools/criu-image"}},
		{"no root", home(empty), harness.Nobody(), 3, []string{"needs root"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if path, err := exec.LookPath("podman"); err == nil && c.name == "no podman" {
				t.Skipf("this machine has %s", path)
			}
			cmd := exec.Command(harness.Binary(), "demo", "migrate")
			cmd.Env, cmd.Dir = c.env, empty
			if c.user != nil {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.user}
			}
			p := harness.Spawn(t, cmd)
			if !p.Ended(2*minute) || p.Code() != c.code {
				t.Fatalf("%s, want status %d\n%s", p.Fate(), c.code, p.Output())
			}
			t.Log(p.Output())
			for _, want := range c.want {
				if !strings.Contains(p.Output(), want) {
					t.Errorf("it does not say %q:\n%s", want, p.Output())
				}
			}
			for _, at := range hierarchies() {
				if left, _ := filepath.Glob(at + "/vrdma-hosts-*"); len(left) > 0 { // the pattern is fine
					t.Errorf("control groups are left: %v", left)
				}
			}
		})
	}
}
