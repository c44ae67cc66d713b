package containers

import (
	"strings"
	"testing"
)

// unified runs a program below $1 in its own control group and pid namespaces, with the unified hierarchy that
// systemd's programs need. The machine may have cgroup v1 hierarchies, too.
const unified = `
set -e
mkdir -p /mnt
mount -t cgroup2 none /mnt
mkdir -p "/mnt$1"
echo $$ >"/mnt$1/cgroup.procs"
shift
exec unshare --mount --cgroup --pid --fork --kill-child --mount-proc sh -c 'mount -t cgroup2 none /sys/fs/cgroup && exec "$@"' sh "$@"`

// LXC, systemd-nspawn and runc start containers with the lines that `vrdma nic args` prints for them.
func TestLines(t *testing.T) {
	h := newEngineHost(t, "older", "bookworm")
	h.serve(t)
	h.apply(t, tenants)
	h.run(t, "sh", "-c", "mkdir -p /var/lib/lxc /var/cache/lxc && echo 0123456789abcdef0123456789abcdef >/etc/machine-id")
	lines := func(nic, format string) string { return h.run(t, "vrdma", "nic", "args", nic, "-o", format) }
	t.Run("lxc", func(t *testing.T) {
		h.write(t, "/tmp/one.conf", "lxc.rootfs.path = dir:/images/bookworm\nlxc.net.0.type = empty\nlxc.uts.name = one\nlxc.mount.auto = proc:mixed sys:ro\n"+lines("red/web", "lxc"))
		p := h.start(t, "lxc-execute", "-n", "one", "-f", "/tmp/one.conf", "-o", "/tmp/one.log", "-l", "INFO", "--", "/usr/bin/ibv_devinfo")
		if p.Wait(t, minute) != 0 || !strings.Contains(p.Output(), "PORT_ACTIVE") {
			t.Errorf("no device: exit %d\n%s\n%s", p.Code(), p.Output(), h.run(t, "cat", "/tmp/one.log"))
		}
		if out := h.run(t, "vrdma", "events", "red/web"); !strings.Contains(out, "opened") {
			t.Errorf("vrdma events:\n%s", out)
		}
	})
	t.Run("nspawn", func(t *testing.T) {
		argv := append([]string{"unshare", "--mount", "sh", "-c", unified, "sh", h.groups, "systemd-nspawn", "-q", "--register=no", "--keep-unit", "--private-network", "-D", "/images/bookworm"},
			strings.Fields(lines("red/web", "nspawn"))...)
		p := h.start(t, append(argv, "/usr/bin/ibv_devinfo")...)
		if p.Wait(t, minute) != 0 || !strings.Contains(p.Output(), "PORT_ACTIVE") {
			t.Errorf("no device: exit %d\n%s", p.Code(), p.Output())
		}
	})
	t.Run("runc", func(t *testing.T) {
		h.bundle(t, "runc", lines("red/web", "oci"))
		if out := h.run(t, "runc", "run", "-b", "/tmp/bundle", "one"); !strings.Contains(out, "PORT_ACTIVE") {
			t.Errorf("no device:\n%s", out)
		}
	})
}
