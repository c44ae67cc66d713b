package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/cache"
)

// Debian is an unpacked Debian of another release, for programs with other libraries than the machine's, as in a
// container. See tools/newest-root.
type Debian struct{ age, dir string }

// debianRoot unpacks one, and remembers it.
func debianRoot(age string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		dir, err := cached(age, "newest-root", age)
		return filepath.Join(dir, "root"), err
	})
}

var newestRoot, oldestRoot = debianRoot("newest"), debianRoot("oldest")

// cached returns the directory in the user's cache that a script of tools/ fills. The script's first argument is its
// path.
func cached(name, script string, args ...string) (string, error) {
	return cache.Fill(name, func(dir string) error {
		cmd := exec.Command(filepath.Join(Root(), "tools", script), append([]string{dir}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("tools/%s: %w\n%s", script, err, out)
		}
		return nil
	})
}

// NewestRoot has the newest rdma-core. It is unpacked once a machine.
func NewestRoot(t testing.TB) *Debian {
	t.Helper()
	return needRoot(t, "newest", newestRoot)
}

// OldestRoot has the oldest glibc and rdma-core that we support: Debian 11's.
func OldestRoot(t testing.TB) *Debian {
	t.Helper()
	return needRoot(t, "oldest", oldestRoot)
}

func needRoot(t testing.TB, age string, unpack func() (string, error)) *Debian {
	t.Helper()
	Need(t, "unshare", "chroot", "apt-get", "dpkg-deb")
	dir, err := unpack()
	if err != nil {
		t.Fatal(err)
	}
	return &Debian{age, dir}
}

// Dir is where it is.
func (n *Debian) Dir() string { return n.dir }

// Version is that of its rdma-core, as in the file name of its libibverbs: 1.14.60.0.
func (n *Debian) Version(t testing.TB) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(n.dir, "usr/lib/*/libibverbs.so.1.*"))
	if len(found) != 1 {
		t.Fatalf("libibverbs in %s: found %v, want one", n.dir, found)
	}
	return strings.TrimPrefix(filepath.Base(found[0]), "libibverbs.so.")
}

// newestInit mounts the root and becomes the program. /tmp is the machine's own, so that daemons' sockets, compiled
// programs and test files have the same names inside.
const newestInit = `
set -e
root=$1 bin=$2; shift 2
mount --rbind /proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount --rbind /tmp "$root/tmp"
mount --bind "$bin" "$root/opt/vrdma"
exec chroot "$root" "$@"
`

// Command is argv inside the root, in a mount namespace of its own.
func (n *Debian) Command(env []string, argv ...string) *exec.Cmd {
	args := []string{"--mount", "--propagation", "private"}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	args = append(args, "sh", "-c", newestInit, "sh", n.dir, filepath.Join(Root(), "bin"))
	cmd := exec.Command("unshare", append(args, argv...)...)
	cmd.Env = env
	return cmd
}

// Launch starts argv inside the root under `vrdma run` with the given flags.
func (n *Debian) Launch(t testing.TB, d *Daemon, flags []string, argv ...string) *Process {
	t.Helper()
	run := append([]string{"/opt/vrdma/vrdma", "run", "--socket", d.Socket}, flags...)
	cmd := n.Command(d.Command().Env, append(append(run, "--"), argv...)...)
	inside := d.inside(cmd.Args)
	cmd.Path, cmd.Args = inside[0], inside
	if path, err := exec.LookPath(inside[0]); err == nil {
		cmd.Path = path
	}
	p := Spawn(t, cmd)
	p.Name = n.age + ": " + strings.Join(argv, " ")
	return p
}

// Unpacked returns the directory of an unpacked Debian package, which need not be installed. See tools/unpacked.
func Unpacked(t testing.TB, name string) string {
	t.Helper()
	Need(t, "apt-get", "dpkg-deb")
	dir, err := cached("unpacked", "unpacked", name)
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}
