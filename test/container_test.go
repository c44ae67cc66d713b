package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// containers are processes in mount, pid, user, ipc and uts namespaces of their
// own whose root is an empty tmpfs with the system's /usr and, of the host's
// state, one directory: the daemon's. They share one network namespace that is
// not the daemon's, because perftest wants TCP between its ends.
type containers struct {
	d   *harness.Daemon
	net *harness.Process // holds the network namespace
}

func newContainers(t *testing.T, d *harness.Daemon) *containers {
	t.Helper()
	harness.Need(t, "unshare", "nsenter", "setpriv", "ip")
	c := &containers{d: d}
	c.net = harness.Spawn(t, exec.Command("unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep 1000"))
	c.net.Printed(t, "up", minute)
	return c
}

// containerInit is the first process: it builds the root and becomes the program.
const containerInit = `
set -e
root=$1; run=$2; shift 2
mount -t tmpfs tmpfs "$root"
cd "$root"
mkdir usr etc proc dev tmp run work
for l in bin lib lib64 sbin; do [ -L /$l ] && cp -P /$l $l || { mkdir $l; mount --rbind /$l $l; }; done
mount --rbind /usr usr
mount --bind "$PROGRAMS" work
mkdir etc/libibverbs.d; mount --bind /etc/libibverbs.d etc/libibverbs.d
touch etc/ld.so.cache etc/passwd
cp /etc/ld.so.cache /etc/passwd etc/
touch dev/null; mount --bind /dev/null dev/null
mkdir run/vrdma; mount --bind "$run" run/vrdma
mount -t proc proc proc
mkdir old; pivot_root . old; umount -l old
cd /
exec "$@"
`

// launch runs argv in a container of its own. It sets the environment that the README names, because vrdma itself is
// not in the container.
func (c *containers) launch(t *testing.T, argv ...string) *harness.Process {
	t.Helper()
	return container(t, c.d, nil, []string{"nsenter", "-t", strconv.Itoa(c.net.PID()), "--net", "--", "unshare"}, argv)
}

// container runs argv in new namespaces. outer is the command that creates them.
func container(t *testing.T, d *harness.Daemon, user *syscall.Credential, outer, argv []string) *harness.Process {
	t.Helper()
	args := append(append([]string{}, outer...),
		"--user", "--map-root-user", "--mount", "--pid", "--fork", "--ipc", "--uts", "--kill-child",
		"sh", "-c", containerInit, "sh", harness.Directory(t, user), filepath.Dir(d.Socket),
		"env", "-i", "PATH=/usr/bin:/usr/sbin", "HOME=/",
		"VRDMA_SOCKET=/run/vrdma/vrdma.sock", "LD_PRELOAD=/run/vrdma/vrdma.sock.d/libvrdma.so", "SYSFS_PATH=/run/vrdma/vrdma.sock.d/sys")
	cmd := exec.Command(args[0], append(args[1:], argv...)...)
	cmd.Env = append(os.Environ(), "PROGRAMS="+filepath.Dir(harness.Compile(t, "stream")))
	if user != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
		cmd.Dir = "/"
	}
	p := harness.Spawn(t, cmd)
	p.Name = "container: " + strings.Join(argv, " ")
	return p
}

// pair runs a server and its client, each in its own container.
func (c *containers) pair(t *testing.T, port int, server []string, client []string) (string, string) {
	t.Helper()
	s := c.launch(t, server...)
	harness.Listening(t, s, port, minute)
	cl := c.launch(t, client...)
	clientOut := cl.OK(t, minute)
	return s.OK(t, minute), clientOut
}

func TestContainers(t *testing.T) {
	d := harness.Device(t)
	c := newContainers(t, d)
	t.Run("devinfo", func(t *testing.T) {
		out := c.launch(t, "ibv_devinfo").OK(t, minute)
		if !strings.Contains(out, "PORT_ACTIVE") {
			t.Errorf("ibv_devinfo in a container:\n%s", out)
		}
	})
	t.Run("pingpong", func(t *testing.T) {
		port := harness.FreePort(t)
		args := []string{"ibv_rc_pingpong", "-g", "0", "-c", "-p", strconv.Itoa(port)}
		s, cl := c.pair(t, port, args, append(args, "127.0.0.1"))
		if !pingpongIters.MatchString(s) || !pingpongIters.MatchString(cl) {
			t.Errorf("no result:\n%s\n%s", s, cl)
		}
	})
	t.Run("write_bw", func(t *testing.T) {
		port := harness.FreePort(t)
		args := []string{"ib_write_bw", "-F", "-n", "500", "-p", strconv.Itoa(port)}
		d.Carried(t, harness.Traffic{Bytes: 500 * 65536}, func() {
			server, out := c.pair(t, port, args, append(args, "127.0.0.1"))
			if err := workload.CheckRows(out, server, 1); err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	})
	t.Run("regions", func(t *testing.T) {
		// In a container the daemon reaches stack and file mappings in another way.
		regions := "/work/" + filepath.Base(harness.Compile(t, "regions"))
		for _, name := range []string{"heap", "stack", "file_shared", "file_read_only", "anonymous_shared"} {
			if out := c.launch(t, regions, name).OK(t, minute); !strings.Contains(out, "ok "+name) {
				t.Errorf("%s: want ok, got:\n%s", name, out)
			}
		}
	})
	t.Run("counters_are_fresh", func(t *testing.T) {
		read := func() uint64 {
			p := c.launch(t, "cat", "/sys/class/infiniband/rxe0/ports/1/counters/port_xmit_data")
			p.OK(t, minute)
			n, err := strconv.ParseUint(strings.TrimSpace(p.Stdout()), 10, 64)
			if err != nil {
				t.Fatalf("counter in a container: %v", err)
			}
			return n
		}
		before := read()
		pingpong(t, d, "rc", 0, 4096, 200, []string{"-n", "200"})
		if after := read(); after < before+200*4096/4 {
			t.Errorf("port_xmit_data went from %d to %d, want at least %d more", before, after, 200*4096/4)
		}
	})
}

// Containers of an unprivileged user, beside a daemon of the same user.
func TestRootlessContainer(t *testing.T) {
	d := harness.Start(t, harness.Options{User: harness.Nobody()})
	d.NoLeaks(t)
	run := func(t *testing.T, argv ...string) string {
		t.Helper()
		return container(t, d, harness.Nobody(), []string{"unshare", "--net"}, argv).OK(t, minute)
	}
	regions := "/work/" + filepath.Base(harness.Compile(t, "regions"))
	for _, name := range []string{"heap", "stack", "file_shared", "registered_while_written"} {
		t.Run(name, func(t *testing.T) {
			if out := run(t, regions, name); !strings.Contains(out, "ok "+name) {
				t.Errorf("%s: want ok, got:\n%s", name, out)
			}
		})
	}
	t.Run("pingpong", func(t *testing.T) {
		out := run(t, "sh", "-c", pingpongInside)
		if n := len(pingpongIters.FindAllString(out, -1)); n != 2 {
			t.Errorf("%d results, want 2:\n%s", n, out)
		}
	})
}

// pingpongInside runs a server and, when port 18515 is in state LISTEN, its client. The kernel's table shows the port
// as 4853 and the state as 0A.
const pingpongInside = `
ip link set lo up
ibv_rc_pingpong -g 0 -c &
server=$! i=0
until grep -qs ':4853 [^ ]* 0A' /proc/net/tcp /proc/net/tcp6 || [ $i -ge 500 ]; do i=$((i + 1)); sleep 0.1; done
ibv_rc_pingpong -g 0 -c 127.0.0.1 && wait $server
`

// maxGlibc is the newest glibc symbol version that our libraries may need, because older containers load them, too.
var maxGlibc = [2]int{2, 17}

func TestSymbolVersions(t *testing.T) {
	harness.Need(t, "objdump")
	harness.Build(t)
	for _, library := range []string{harness.Library(), harness.SocketsLibrary()} {
		t.Run(filepath.Base(library), func(t *testing.T) { symbolVersions(t, library) })
	}
}

func symbolVersions(t *testing.T, library string) {
	out, err := exec.Command("objdump", "-T", library).CombinedOutput()
	if err != nil {
		t.Fatalf("objdump: %v\n%s", err, out)
	}
	var newest [2]int
	for _, m := range regexp.MustCompile(`\*UND\*.*GLIBC_(\d+)\.(\d+)(?:\.\d+)?\)?\s+(\S+)`).FindAllStringSubmatch(string(out), -1) {
		var v [2]int
		fmt.Sscan(m[1], &v[0])
		fmt.Sscan(m[2], &v[1])
		if v[0] > newest[0] || v[0] == newest[0] && v[1] > newest[1] {
			newest = v
		}
		if v[0] > maxGlibc[0] || v[0] == maxGlibc[0] && v[1] > maxGlibc[1] {
			t.Errorf("it needs %s of GLIBC_%d.%d, want at most %d.%d", m[3], v[0], v[1], maxGlibc[0], maxGlibc[1])
		}
	}
	if newest == [2]int{} {
		t.Errorf("no glibc symbol found; does the expression still match objdump's output?\n%s", out)
	}
	t.Logf("newest symbol needed: GLIBC_%d.%d", newest[0], newest[1])
	needed, err := exec.Command("objdump", "-p", library).CombinedOutput()
	if err != nil {
		t.Fatalf("objdump -p: %v", err)
	}
	for _, m := range regexp.MustCompile(`NEEDED\s+(\S+)`).FindAllStringSubmatch(string(needed), -1) {
		if !regexp.MustCompile(`^(libc\.so\.6|libdl\.so\.2|libpthread\.so\.0|ld-linux.*)$`).MatchString(m[1]) {
			t.Errorf("it needs %s, want libc alone", m[1])
		}
	}
}
