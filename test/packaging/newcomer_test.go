package packaging

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
	"vrdma.dev/vrdma/test/workload"
)

// serviceInit makes a machine whose first process is systemd. $1: a directory for it all, $2: the Debian, $3: packages, $4: the
// root directory of a container image, $5: this machine's control group for it, $6: what systemd is started with.
const serviceInit = `
set -e
dir=$1 lower=$2 packages=$3 image=$4 group=$5
echo $$ >"$group/cgroup.procs"
exec unshare --cgroup sh -ec "$6" sh "$dir" "$lower" "$packages" "$image"
`

// serviceRoot is the second part, in a namespace of control groups: the first one would be the whole hierarchy.
const serviceRoot = `
dir=$1 lower=$2 packages=$3 image=$4
mount -t tmpfs none "$dir"
mkdir "$dir/up" "$dir/work" "$dir/root"
mount -t overlay none -o "lowerdir=$lower,upperdir=$dir/up,workdir=$dir/work" "$dir/root"
root=$dir/root
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
mount -t cgroup2 none "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 none "$root/dev"
for node in null zero full random urandom tty net/tun; do
	[ -e "/dev/$node" ] || continue
	mkdir -p "$(dirname "$root/dev/$node")"
	: >"$root/dev/$node"
	mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 none "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=1777 none "$root/dev/shm"
mkdir -p "$root/packages" "$root/image" "$root/var/lib/containers" "$root/etc/containers"
for at in run tmp var/lib/containers; do mount -t tmpfs -o mode=755 none "$root/$at"; done
chmod 1777 "$root/tmp"
mount --bind "$packages" "$root/packages"
mount --rbind "$image" "$root/image"
# No control groups for podman, and no limits, which not every root may raise.
cat >"$root/etc/containers/containers.conf" <<-END
	[containers]
	cgroups = "disabled"
	default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
	[engine]
	cgroup_manager = "cgroupfs"
	events_logger = "file"
END
ip link set lo up
cd "$root"
mkdir old
pivot_root . old
umount -l old
rmdir old
exec env -i container=test PATH=/usr/sbin:/usr/bin /lib/systemd/systemd --unit=multi-user.target --show-status=false --log-target=console --log-level=warning
`

// newServiceMachine makes a machine of a Debian with systemd, which runs. It sees the packages in /packages, and has the container
// image rdma.
func newServiceMachine(t *testing.T, packages string) *machine {
	t.Helper()
	harness.Need(t, "unshare", "nsenter", "ip")
	init := harness.Spawn(t, exec.Command("unshare", "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--propagation", "private",
		"sh", "-c", serviceInit, "sh", harness.Directory(t, nil), harness.InstalledService(t), packages, harness.Image(t, "bookworm"), unified(t), serviceRoot))
	m := &machine{}
	if !harness.Poll(minute, func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", init.PID()))
		if n, _ := fmt.Sscan(string(text), &m.pid); err != nil || n != 1 {
			return init.Ended(0)
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", m.pid)) // it may have ended
		return string(name) == "systemd\n"
	}) || init.Ended(0) {
		t.Fatalf("systemd does not start: %s\n%s", init.Fate(), init.Output())
	}
	m.root = fmt.Sprintf("/proc/%d/root", m.pid)
	state := ""
	if !harness.Poll(minute, func() bool {
		p := m.start(t, "systemctl", "is-active", "multi-user.target")
		p.Wait(t, minute)
		state = p.Output()
		return p.Code() == 0
	}) {
		t.Fatalf("systemd does not reach its target: %s\n%s", state, harness.Tail(init.Output(), 40))
	}
	m.run(t, "sh", "-c", "tar -c --one-file-system -C /image . | podman import --quiet - rdma")
	return m
}

// unified makes a control group of version 2, which the test removes after the last process in it has ended.
func unified(t *testing.T) string {
	t.Helper()
	at := "/sys/fs/cgroup"
	if _, err := os.Stat(at + "/cgroup.controllers"); err != nil {
		at += "/unified"
	}
	group := fmt.Sprintf("%s/vrdma-test-%d-%d", at, os.Getpid(), time.Now().UnixNano())
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatalf("a control group of version 2: %v (the test needs root)", err)
	}
	t.Cleanup(func() {
		if !harness.Poll(minute, func() bool {
			out, err := exec.Command("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").CombinedOutput()
			return err == nil && len(out) == 0
		}) {
			t.Errorf("the control group %s is left", group)
		}
	})
	return group
}

// commands are the lines of a page that its reader types.
func commands(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(), page))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i, part := range strings.Split(string(text), "```") {
		block, found := strings.CutPrefix(part, "sh\n")
		if i%2 == 1 && !found {
			t.Fatalf("%s: a block of the page has to be sh, so that it is run: %s", page, part)
		} else if i%2 == 1 {
			b.WriteString("set -x\n" + block)
		}
	}
	return b.String()
}

// TestNewcomer runs every command of docs/tutorials/service.md in a clean Debian with systemd and podman: from the package to containers
// of two tenants, watched, upgraded under traffic, removed without a trace. Long form only: it installs that Debian.
func TestNewcomer(t *testing.T) {
	script := strings.NewReplacer("VERSION", "1.0.0", "NEXT", "1.1.0", "IMAGE", "rdma").Replace(commands(t, "docs/tutorials/service.md"))
	for _, want := range []string{"apt-get install", "podman run", "systemctl reload", "apt-get purge"} {
		if !strings.Contains(script, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	if !harness.All() {
		return
	}
	packages := harness.Directory(t, nil)
	build(t, packages+"/old", "v1.0.0", "vrdma", "deb")
	build(t, packages+"/new", "v1.1.0", "vrdma", "deb")
	m := newServiceMachine(t, packages)
	m.run(t, "sh", "-c", "cp /packages/*/*.deb /root")
	before := m.files(t)
	p := m.start(t, "bash", "-euc", "cd /root\n"+script+"echo the end")
	p.Name = "the page"
	out := p.OK(t, 5*minute)
	for _, want := range []string{
		"/etc/vrdma/vrdma.yaml: no mistakes", "PORT_ACTIVE", "nic/red/web created", "red/slow", "opened       NIC red/web",
		`vrdma_build_info{version="v1.0.0"`, "vrdma v1.1.0", "the end",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("nobody says %q", want)
		}
	}
	// Two pairs of containers, and the pair that the upgrade did not disturb.
	if err := workload.CheckRows(out, "", 3); err != nil {
		t.Error(err)
	}
	if _, after, _ := strings.Cut(out, "vrdma status --impact\n"); strings.Count(after, "ib_write_bw") < 2 {
		t.Error("the programs did not run when the daemon had been replaced")
	}
	m.run(t, "sh", "-c", "rm /root/*.txt")
	m.nothingLeft(t, before)
	if t.Failed() || testing.Verbose() {
		t.Log(out)
	}
}
