package containers

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// A host is a machine with an engine.
type host struct {
	init   *harness.Process
	pid    int // its first process, as seen from the machine
	daemon *harness.Process
	groups string // the parent of its control groups; "": none
}

// socket is the path of the host's daemon's socket.
const socket = "/run/vrdma/vrdma.sock"

// Images that are used directly, without an overlay.
const (
	// machine has the programs of this machine. They are mounted, not copied, because there are many.
	machine = "machine"
	// mapped is an image whose files belong to the root of a user namespace.
	mapped = "mapped"
)

// alice is the host's ordinary user.
const alice = 1000

// hostInit builds the host's root and stays as its first process, which reaps the others. Images are overlays, too: one
// has a setuid program. $1: a directory for everything, $2: the host's root, $3: the directory of our programs, $4: the
// parent of its control groups, then NAME=ROOT for each image.
const hostInit = `
set -e
dir=$1 lower=$2 bin=$3 groups=$4; shift 4
mount -t tmpfs none "$dir"
mkdir "$dir/up" "$dir/work" "$dir/root"
mount -t overlay none -o "lowerdir=$lower,upperdir=$dir/up,workdir=$dir/work" "$dir/root"
root=$dir/root
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
mount --rbind /dev "$root/dev"
for d in run tmp var home root; do mount -t tmpfs none "$root/$d"; done
chmod 1777 "$root/tmp"
mkdir -p "$root/var/tmp" "$root/var/lib" "$root/etc/containers" "$root/opt/vrdma" "$root/images"
ln -s /run "$root/var/run"
mount --bind "$bin" "$root/opt/vrdma"
for image; do
	name=${image%%=*} from=${image#*=}
	if [ "$from" = / ]; then # this machine's own programs, which nobody unpacks
		at=$root/images/$name
		for d in usr dev proc sys run tmp var/tmp root; do mkdir -p "$at/$d"; done
		for l in bin sbin lib lib64; do ln -s usr/$l "$at/$l"; done
		cp -a /etc "$at/etc"
		mount --bind -o ro /usr "$at/usr"
		continue
	fi
	mkdir -p "$dir/image/$name/up" "$dir/image/$name/work" "$root/images/$name"
	mount -t overlay none -o "lowerdir=$from,upperdir=$dir/image/$name/up,workdir=$dir/image/$name/work" "$root/images/$name"
	cp "$root/images/$name/usr/bin/ibv_devices" "$root/images/$name/usr/bin/setuid_devices"
	chmod 4755 "$root/images/$name/usr/bin/setuid_devices"
done
# No control groups for podman: they would be the machine's own. Other engines insist: theirs are below $groups, which
# is one of ours (groups_test.go). No limits either, which not every root may raise.
mount -t tmpfs none "$root/sys/fs/cgroup"
for c in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
	[ -d /sys/fs/cgroup/$c ] || continue
	mkdir "$root/sys/fs/cgroup/$c"
	mount --bind /sys/fs/cgroup/$c$groups "$root/sys/fs/cgroup/$c"
done
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || mount --bind /sys/fs/cgroup$groups "$root/sys/fs/cgroup"
cat >"$root/etc/containers/containers.conf" <<-END
	[containers]
	cgroups = "disabled"
	default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
	[engine]
	cgroup_manager = "cgroupfs"
	events_logger = "file"
END
cat >"$root/etc/containers/storage.conf" <<-END
	[storage]
	driver = "overlay"
END
echo 'alice:x:1000:1000::/home/alice:/bin/sh' >>"$root/etc/passwd"
echo 'alice:x:1000:' >>"$root/etc/group"
echo 'alice:100000:65536' | tee "$root/etc/subuid" >"$root/etc/subgid"
mkdir -p "$root/home/alice" "$root/run/user/1000"
chown 1000:1000 "$root/home/alice" "$root/run/user/1000"
chmod 700 "$root/run/user/1000"
for p in newuidmap newgidmap; do [ ! -e "$root/usr/bin/$p" ] || chmod 4755 "$root/usr/bin/$p"; done
ip link set lo up
cd "$root"
mkdir -p old
pivot_root . old
umount -l old
mount --make-rshared /
echo up
while :; do sleep 1; done
`

// newHost makes a host with these images.
func newHost(t *testing.T, images ...string) *host {
	t.Helper()
	return newHostOf(t, harness.Image(t, "host"), "", images...)
}

// newHostOf makes a host from an unpacked Debian. Its control groups are children of the given one.
func newHostOf(t *testing.T, root, groups string, images ...string) *host {
	t.Helper()
	harness.Build(t)
	harness.Need(t, "unshare", "nsenter", "ip")
	args := []string{"--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private",
		"sh", "-c", hostInit, "sh", harness.Directory(t, nil), root, filepath.Join(harness.Root(), "bin"), groups}
	for _, name := range images {
		from := "/"
		if name != machine {
			from = harness.Image(t, name)
		}
		args = append(args, name+"="+from)
	}
	t.Cleanup(func() {
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(root), "packages")) // not every root directory has the list
		for line := range strings.Lines(string(text)) {
			if t.Failed() && strings.Contains(line, "(the tests passed with") {
				t.Logf("this host has %sVRDMA_NEWER=trixie takes the release, which does not change", line)
			}
		}
	})
	h := &host{groups: groups, init: harness.Spawn(t, exec.Command("unshare", args...))}
	h.init.Printed(t, "up", minute)
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", h.init.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if h.pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
		t.Fatalf("the host's first process: %v", err)
	}
	return h
}

// command returns argv as a command in the host, as a user there.
func (h *host) command(uid int, argv ...string) *exec.Cmd {
	home, run := "/root", "/run"
	args := []string{"-t", strconv.Itoa(h.pid), "--mount", "--net", "--pid", "--ipc", "--root"}
	if uid != 0 {
		args = append(args, "-S", strconv.Itoa(uid), "-G", strconv.Itoa(uid))
		home, run = "/home/alice", fmt.Sprintf("/run/user/%d", uid)
	}
	args = append(args, "--", "env", "-i", "PATH=/usr/sbin:/usr/bin:/opt/vrdma", "HOME="+home, "XDG_RUNTIME_DIR="+run, "PODMAN_IGNORE_CGROUPSV1_WARNING=1")
	if uid == 0 {
		args = append(args, "VRDMA_SOCKET="+socket)
	}
	args = append(args, "sh", "-c", `cd / && exec "$@"`, "sh")
	return exec.Command("nsenter", append(args, argv...)...)
}

// start starts argv in the host, as root.
func (h *host) start(t *testing.T, argv ...string) *harness.Process {
	t.Helper()
	return h.startAs(t, 0, argv...)
}

func (h *host) startAs(t *testing.T, uid int, argv ...string) *harness.Process {
	t.Helper()
	p := harness.Spawn(t, h.command(uid, argv...))
	p.Name = strings.Join(argv, " ")
	return p
}

// run runs argv in the host, requires success, and returns the output.
func (h *host) run(t *testing.T, argv ...string) string {
	t.Helper()
	return h.start(t, argv...).OK(t, minute)
}

// serve starts the host's daemon and waits until it answers.
func (h *host) serve(t *testing.T, args ...string) {
	t.Helper()
	h.serveBy(t, []string{"vrdma"}, args...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("daemon's log, last part:\n%s", harness.Tail(h.daemon.Output(), 40))
		}
	})
	h.daemon.Printed(t, "msg=serving ", minute)
}

// serveBy starts the daemon with a command in place of vrdma.
func (h *host) serveBy(t *testing.T, command []string, args ...string) {
	t.Helper()
	argv := append(command, "daemon", "--socket", socket, "--addr", "127.0.0.1", "--usage", "none")
	h.daemon = h.start(t, append(argv, args...)...)
}

// stop ends it.
func (h *host) stop(t *testing.T) {
	t.Helper()
	h.run(t, "vrdma", "stop")
	h.daemon.OK(t, minute)
}

// apply declares the objects of a file.
func (h *host) apply(t *testing.T, text string) {
	t.Helper()
	cmd := h.command(0, "vrdma", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	harness.Spawn(t, cmd).OK(t, minute)
	// The daemon answers before it has written the CDI files.
	if h.daemon == nil { // serve's daemon keeps them in /run/cdi
		return
	}
	var lacks string
	for _, m := range declared.FindAllStringSubmatch(text, -1) {
		device := fmt.Sprintf("%q", m[2]+"."+m[1])
		if !harness.Poll(minute, func() bool { return strings.Contains(h.cdi(), device) }) {
			lacks = device
		}
	}
	if lacks != "" {
		t.Fatalf("no CDI file has %s:\n%s", lacks, h.cdi())
	}
}

// declared is a NIC in a file.
var declared = regexp.MustCompile(`kind: NIC, metadata: \{name: ([a-z0-9-]+), tenant: ([a-z0-9-]+)[,}]`)

// cdi is what the CDI files say.
func (h *host) cdi() string {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root/run/cdi/*.json", h.pid)) // the pattern is fine
	var all strings.Builder
	for _, file := range files {
		text, _ := os.ReadFile(file) // a file may have just gone
		all.Write(text)
	}
	return all.String()
}

// status returns the daemon's status.
func (h *host) status(t *testing.T) protocol.Status {
	t.Helper()
	return h.statusOf(t, 0)
}

// statusOf returns the status of a user's daemon.
func (h *host) statusOf(t *testing.T, uid int) (s protocol.Status) {
	t.Helper()
	p := h.startAs(t, uid, "vrdma", "status", "-o", "json")
	p.OK(t, minute)
	if err := json.Unmarshal([]byte(p.Stdout()), &s); err != nil {
		t.Fatalf("vrdma status -o json: %v\n%s", err, p.Output())
	}
	return s
}

// listening waits until a program listens at an address through rdma_cm.
func (h *host) listening(t *testing.T, p *harness.Process, address string) {
	t.Helper()
	h.listeningOf(t, 0, p, address)
}

// listeningOf is listening at a user's daemon.
func (h *host) listeningOf(t *testing.T, uid int, p *harness.Process, address string) {
	t.Helper()
	ok := harness.Poll(minute, func() bool {
		time.Sleep(100 * time.Millisecond) // between two attempts, because each starts a process
		return p.Ended(0) || slices.ContainsFunc(h.statusOf(t, uid).Connections, func(c protocol.ConnectionStatus) bool {
			return c.State == "LISTEN" && c.Local == address
		})
	})
	if !ok || p.Ended(0) {
		t.Fatalf("%s does not listen at %s: %s\n%s\n%+v", p.Name, address, p.Fate(), p.Output(), h.statusOf(t, uid).Connections)
	}
}

// exists reports whether a path exists in the host.
func (h *host) exists(path string) bool {
	_, err := os.Lstat(fmt.Sprintf("/proc/%d/root%s", h.pid, path))
	return err == nil
}

// podman returns the command line of a container that lives as long as its program. It has no network but RDMA, unless
// the flags add one.
func podman(image string, flags []string, program ...string) []string {
	argv := []string{"podman", "run", "--rm"}
	if !slices.Contains(flags, "--network") {
		argv = append(argv, "--network", "none")
	}
	argv = append(argv, flags...)
	root := "/images/" + image
	if image != machine && image != mapped {
		root += ":O"
	}
	return append(append(argv, "--rootfs", root), program...)
}

// device returns the flag for a NIC.
func device(nic string) []string { return []string{"--device", "vrdma.io/nic=" + nic} }

// hard are the flags of a container without any rights. The seccomp profile is podman's default.
var hard = []string{"--cap-drop", "all", "--read-only", "--security-opt", "no-new-privileges"}
