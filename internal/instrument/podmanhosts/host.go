package podmanhosts

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A Host is a set of namespaces with a root of its own.
type Host struct {
	Name, IP string

	hosts *Hosts
	init  *exec.Cmd // unshare, whose child is the first process of the host
	pid   int       // of the first process
}

// socket is the path of the daemon's socket on a host.
const socket = "/run/vrdma/vrdma.sock"

// hostInit builds the root of a host and stays as its first process, which reaps the others. $1: an empty directory, $2: the directories
// that are the root's lower layers, $3: the directory of vrdma's programs, $4: vrdma's plugin of CRIU, $5: the program.
const hostInit = `
set -e
dir=$1 lower=$2 bin=$3 plugin=$4 program=$5
mount -t tmpfs none "$dir"
mkdir "$dir/up" "$dir/work" "$dir/root"
mount -t overlay none -o "lowerdir=$lower,upperdir=$dir/up,workdir=$dir/work" "$dir/root"
root=$dir/root
mount -t proc proc "$root/proc"
mount -t sysfs sys "$root/sys"
mount --rbind /dev "$root/dev"
for d in run tmp var home root; do mount -t tmpfs none "$root/$d"; done
chmod 1777 "$root/tmp"
mkdir -p "$root/var/tmp" "$root/var/lib" "$root/etc/containers" "$root/etc/criu" "$root/opt/vrdma" "$root/usr/lib/criu"
ln -s /run "$root/var/run"
mount --bind "$bin" "$root/opt/vrdma"
cp "$plugin" "$root/usr/lib/criu/vrdma_plugin.so"
mount -t tmpfs none "$root/sys/fs/cgroup"
for c in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
	[ -d /sys/fs/cgroup/$c ] || continue
	mkdir "$root/sys/fs/cgroup/$c"
	mount --bind /sys/fs/cgroup/$c "$root/sys/fs/cgroup/$c"
done
[ ! -e /sys/fs/cgroup/cgroup.controllers ] || mount --bind /sys/fs/cgroup "$root/sys/fs/cgroup"
cat >"$root/etc/containers/containers.conf" <<-END
	[containers]
	default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
	[engine]
	cgroup_manager = "cgroupfs"
	events_logger = "file"
	runtime = "crun"
END
printf '[storage]\ndriver = "overlay"\n' >"$root/etc/containers/storage.conf"
[ -e "$root/etc/containers/policy.json" ] || echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$root/etc/containers/policy.json"
echo 'network-lock nftables' >"$root/etc/criu/crun.conf"
rm -f "$root/usr/bin/vrdma"
# CRIU has no environment, and the daemon not the default socket.
printf '#!/bin/sh\nVRDMA_SOCKET=` + socket + ` exec "/opt/vrdma/%s" "$@"\n' "$program" >"$root/usr/bin/vrdma"
chmod 755 "$root/usr/bin/vrdma"
ip link set lo up
cd "$root"
mkdir -p old
pivot_root . old
umount -l old
mount --make-rshared /
echo up
while :; do sleep 1; done
`

// startHost makes the namespaces.
func (x *Hosts) startHost(name, ip string) (*Host, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(x.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	cmd := exec.Command("unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--propagation", "private",
		"sh", "-c", hostInit, "sh", dir, x.tools.roots, filepath.Dir(self), x.tools.plugin, filepath.Base(self))
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	h := &Host{Name: name, IP: ip, hosts: x, init: cmd}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
		h.end()
		return nil, fmt.Errorf("%s does not start: %w: %s", name, err, complaint.String())
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
	if err == nil {
		h.pid, err = strconv.Atoi(strings.TrimSpace(string(children)))
	}
	if err != nil {
		h.end()
		return nil, fmt.Errorf("the first process of %s: %w", name, err)
	}
	return h, nil
}

// end ends all processes of the host.
func (h *Host) end() {
	h.init.Process.Kill() // its child dies with it; fails if it has ended
	h.init.Wait()         // it was killed
}

// Command returns argv as a command on the host.
func (h *Host) Command(ctx context.Context, argv ...string) *exec.Cmd {
	args := []string{"-t", strconv.Itoa(h.pid), "--mount", "--net", "--pid", "--ipc", "--root", "--",
		"env", "-i", "PATH=/usr/sbin:/usr/bin", "HOME=/root", "XDG_RUNTIME_DIR=/run", "PODMAN_IGNORE_CGROUPSV1_WARNING=1", "VRDMA_SOCKET=" + socket,
		"sh", "-c", `cd / && exec "$@"`, "sh"}
	cmd := exec.CommandContext(ctx, "nsenter", append(args, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	return cmd
}

// Run runs argv on the host to its end, and returns its output.
func (h *Host) Run(ctx context.Context, argv ...string) (string, error) {
	return h.feed(ctx, nil, argv...)
}

func (h *Host) feed(ctx context.Context, in io.Reader, argv ...string) (string, error) {
	cmd := h.Command(ctx, argv...)
	cmd.Stdin = in
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: %s: %w: %s", h.Name, strings.Join(argv, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// path is where a file of the host is on this machine.
func (h *Host) path(file string) string { return fmt.Sprintf("/proc/%d/root%s", h.pid, file) }

// Status asks the daemon of the host, by a command there: a daemon answers callers only whose process it sees.
func (h *Host) Status(ctx context.Context) (*protocol.Status, error) {
	out, err := h.Run(ctx, "vrdma", "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	s := new(protocol.Status)
	if err := json.Unmarshal([]byte(out), s); err != nil {
		return nil, fmt.Errorf("vrdma status -o json: %w", err)
	}
	return s, nil
}

// install copies a program of this machine to the host.
func (h *Host) install(program string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return os.WriteFile(h.path("/usr/bin/"+filepath.Base(program)), text, 0o755)
}

// serve starts the daemon of the host, which ends with life at the latest.
func (h *Host) serve(ctx, life context.Context) error {
	cmd := h.Command(life, "vrdma", "daemon", "--socket", socket, "--addr", "127.0.0.1", "--usage", "none", "--host-name", h.Name,
		"--underlay", h.IP, "--store", "etcd://"+storeAddress)
	log, err := os.Create(filepath.Join(h.hosts.dir, h.Name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	h.hosts.started.Add(1)
	ended := make(chan struct{})
	go func() {
		defer h.hosts.started.Done()
		cmd.Wait() // its log has the reason
		close(ended)
	}()
	for {
		if exists(h.path(socket)) {
			if _, err := h.Status(ctx); err == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the daemon of %s: %w: %s", h.Name, ctx.Err(), h.log())
		case <-ended:
			return fmt.Errorf("the daemon of %s has ended: %s", h.Name, h.log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// log is the end of the daemon's log.
func (h *Host) log() string {
	text, _ := os.ReadFile(filepath.Join(h.hosts.dir, h.Name+".log")) // it is for a message only
	return string(text[max(0, len(text)-1500):])
}

// Launch starts a program on the host that runs until the hosts end. Said returns the end of what it has printed.
func (h *Host) Launch(argv ...string) error {
	out, err := os.Create(h.path(launched))
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := h.Command(context.Background(), argv...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	h.hosts.started.Add(1)
	go func() {
		defer h.hosts.started.Done()
		cmd.Wait() // its output says more
	}()
	return nil
}

// launched is the file with the output of what Launch has started.
const launched = "/tmp/launched"

// Said returns the end of what the program of Launch has printed.
func (h *Host) Said() string {
	text, _ := os.ReadFile(h.path(launched)) // it is for a message only
	return strings.TrimSpace(string(text[max(0, len(text)-1500):]))
}
