package packaging

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// A machine is a Debian in namespaces of its own. Its files are an overlay, which goes with it.
type machine struct {
	root string // its root directory, as we see it
	pid  int    // of its first process
}

// machineInit makes the machine and stays as its first process. $1: a directory for it all, $2: the Debian, $3: packages,
// $4: a static busybox.
const machineInit = `
set -e
dir=$1 lower=$2 packages=$3 busybox=$4
mount -t tmpfs none "$dir"
mkdir "$dir/up" "$dir/work" "$dir/root"
mount -t overlay none -o "lowerdir=$lower,upperdir=$dir/up,workdir=$dir/work" "$dir/root"
root=$dir/root
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
# The machine has an RDMA device of its own.
mkdir "$dir/sysup" "$dir/syswork"
mount -t overlay none -o "lowerdir=$root/sys/class,upperdir=$dir/sysup,workdir=$dir/syswork" "$root/sys/class"
mkdir -p "$root/sys/class/infiniband/mlx5_0/ports/1" "$root/sys/class/infiniband_verbs/uverbs0"
echo mlx5_0 >"$root/sys/class/infiniband_verbs/uverbs0/ibdev"
mount --rbind /dev "$root/dev"
mkdir -p "$root/packages"
mount --bind "$packages" "$root/packages"
ip link set lo up
cd "$root"
mkdir old
pivot_root . old
# A clean Debian has no umount.
/old$busybox umount -l /old
rmdir old
echo up
while :; do sleep 1; done
`

// newMachine makes a machine of an installed Debian. It sees the packages in /packages.
func newMachine(t *testing.T, suite, packages string) *machine {
	t.Helper()
	return newMachineOf(t, harness.Installed(t, suite), packages)
}

// newMachineOf makes one of a root directory.
func newMachineOf(t *testing.T, root, packages string) *machine {
	t.Helper()
	harness.Need(t, "unshare", "nsenter", "ip", "busybox")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	init := harness.Spawn(t, exec.Command("unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private",
		"sh", "-c", machineInit, "sh", harness.Directory(t, nil), root, packages, busybox))
	init.Printed(t, "up", minute)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", init.PID()))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatalf("the machine's first process: %v", err)
	}
	return &machine{root: fmt.Sprintf("/proc/%d/root", pid), pid: pid}
}

// start starts argv in the machine, as root.
func (m *machine) start(t *testing.T, argv ...string) *harness.Process {
	t.Helper()
	args := []string{"-t", strconv.Itoa(m.pid), "--mount", "--net", "--pid", "--ipc", "--root", "--",
		"env", "-i", "PATH=/usr/sbin:/usr/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", `cd / && exec "$@"`, "sh"}
	p := harness.Spawn(t, exec.Command("nsenter", append(args, argv...)...))
	p.Name = strings.Join(argv, " ")
	return p
}

// run runs argv to its good end, and returns what it printed.
func (m *machine) run(t *testing.T, argv ...string) string {
	t.Helper()
	return m.start(t, argv...).OK(t, 3*minute)
}

// path returns a path in the machine as we see it.
func (m *machine) path(name string) string { return filepath.Join(m.root, name) }

// exists reports whether the machine has a file of that name.
func (m *machine) exists(name string) bool {
	_, err := os.Lstat(m.path(name))
	return err == nil
}

// files returns all files of the machine but those that dpkg and apt keep for themselves, logs and caches.
func (m *machine) files(t *testing.T) map[string]bool {
	t.Helper()
	p := m.start(t, "find", "/", "-xdev", "(", "-path", "/proc", "-o", "-path", "/sys", "-o", "-path", "/dev", "-o", "-path", "/packages",
		"-o", "-path", "/var/lib/dpkg", "-o", "-path", "/var/lib/apt", "-o", "-path", "/var/cache", "-o", "-path", "/var/log/apt", "-o", "-path", "/var/log/dpkg.log", ")",
		"-prune", "-o", "-print")
	p.OK(t, minute)
	all := map[string]bool{}
	for line := range strings.Lines(p.Stdout()) {
		all[strings.TrimSpace(line)] = true
	}
	return all
}

// nothingLeft fails the test if the machine has other files than before.
func (m *machine) nothingLeft(t *testing.T, before map[string]bool) {
	t.Helper()
	after := m.files(t)
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if !before[name] {
			t.Errorf("%s is left", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if !after[name] {
			t.Errorf("%s is gone", name)
		}
	}
}

// status is what the daemon of the machine says.
func (m *machine) status(t *testing.T) (s protocol.Status) {
	t.Helper()
	p := m.start(t, "vrdma", "status", "-o", "json")
	p.OK(t, minute)
	if err := json.Unmarshal([]byte(p.Stdout()), &s); err != nil {
		t.Fatalf("vrdma status -o json: %v\n%s", err, p.Output())
	}
	return s
}

// serve starts the daemon of the machine as a service would, and returns when it answers.
func (m *machine) serve(t *testing.T) *harness.Process {
	t.Helper()
	d := m.start(t, "vrdma", "daemon", "--config", "/etc/vrdma/vrdma.yaml", "--addr", "127.0.0.1")
	d.Printed(t, "msg=serving ", minute)
	return d
}

// writes runs ib_write_bw between two programs. The device's counters prove that RDMA carried the data.
func (m *machine) writes(t *testing.T) {
	t.Helper()
	const port, size = 18515, 65536
	sent := func() uint64 {
		p := m.start(t, "vrdma", "run", "--", "cat", "/sys/class/infiniband/rxe0/ports/1/counters/port_xmit_data")
		p.OK(t, minute)
		n, err := strconv.ParseUint(strings.TrimSpace(p.Stdout()), 10, 64)
		if err != nil {
			t.Fatalf("port_xmit_data: %v", err)
		}
		return 4 * n // the file counts units of four bytes
	}
	before := sent()
	server := m.start(t, "vrdma", "run", "--", "ib_write_bw", "-F", "-n", "500")
	harness.Listening(t, server, port, minute)
	said := m.run(t, "vrdma", "run", "--", "ib_write_bw", "-F", "-n", "500", "127.0.0.1")
	if err := workload.CheckRows(said, server.OK(t, minute), 1); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
	if moved := sent() - before; moved < 500*size {
		t.Errorf("the device sent %d bytes, want %d: the data went another way", moved, 500*size)
	}
}
