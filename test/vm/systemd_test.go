package vm

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/guest"
	"vrdma.dev/vrdma/test/harness"
)

// addSystemd puts this machine's systemd and udev into a root: the managers, their targets and rules, and no service.
func addSystemd(t *testing.T, root string) {
	t.Helper()
	harness.Need(t, "systemctl", "udevadm")
	const script = `set -e; cd "$1"
		mkdir -p usr/bin usr/lib/systemd/system usr/lib/udev/rules.d etc/systemd/system etc/vrdma
		cp "$2"/systemd/vrdma.service "$2"/systemd/vrdma.socket usr/lib/systemd/system/
		mkdir -p etc/systemd/system/vrdma.service.d
		printf '[Service]\nStandardError=append:/vrdma.log\n' >etc/systemd/system/vrdma.service.d/log.conf # there is no journald
		printf 'addr: [127.0.0.1]\nnetwork: false\ncdi: none\n' >etc/vrdma/vrdma.yaml
		cp /lib/systemd/systemd usr/lib/systemd/
		cp /bin/systemctl /bin/udevadm usr/bin/
		ln -s /usr/bin/udevadm usr/lib/systemd/systemd-udevd
		cp /lib/systemd/system/*.target /lib/systemd/system/*.slice usr/lib/systemd/system/
		cp /lib/udev/rules.d/*udev-default.rules /lib/udev/rules.d/60-persistent-storage.rules usr/lib/udev/rules.d/
		for lib in $(ldd usr/lib/systemd/systemd usr/bin/systemctl usr/bin/udevadm | grep -oE ' /[^ ]+' | sort -u); do
			to=.$(echo $lib | sed 's,^/lib,/usr/lib,'); mkdir -p $(dirname $to); [ -e $to ] || cp -L $lib $to
		done`
	if out, err := exec.Command("sh", "-c", script, "sh", root, filepath.Join(harness.Root(), "contrib")).CombinedOutput(); err != nil {
		t.Fatalf("add systemd: %v\n%s", err, out)
	}
}

// TestSystemd has a machine without a network install from the disk, by the line that the page has, and systemd run the agent: it is
// there again when it was killed, and when it was stopped it is not. Meanwhile systemd runs a daemon in the machine, with the unit's
// sandbox: a program starts it through the socket unit, it reloads, restarts when it was killed, hands over to another program, and restarts when that one was killed.
func TestSystemd(t *testing.T) {
	if !harness.All() {
		t.Skip("a machine boots: long form")
	}
	d := start(t, world)
	m := bare(t, d, guest.Ours(t, func(root string) { addSystemd(t, root) }), "red/a", "10.1.0.1", 512)
	m.Run(t, limit, "sh", "-c", "modprobe virtio_blk && /usr/lib/systemd/systemd-udevd --daemon && udevadm trigger && udevadm settle && mount -t cgroup2 cgroup2 /sys/fs/cgroup")
	// systemd is the first process of a namespace, because the machine's first process is the test's.
	first := m.Launch(t, "sh", "-c", "exec unshare -m -p -f --mount-proc sh -c 'mount -t tmpfs run /run; exec env container=test /usr/lib/systemd/systemd --unit=multi-user.target --log-target=console --log-level=notice 2>&1'")
	inside := func(command string) string {
		t.Helper()
		return m.Run(t, limit, "sh", "-c", "nsenter -t $(pidof systemd | tr ' ' '\\n' | sort -n | head -1) -m -p sh -c '"+command+"'")
	}
	until := func(what, command string) {
		t.Helper()
		p := m.Launch(t, "sh", "-c", "i=0; until nsenter -t $(pidof systemd | tr ' ' '\\n' | sort -n | head -1) -m -p sh -c '"+command+"'; do i=$((i+1)); [ $i -lt 300 ] || exit 1; sleep .5; done")
		if !p.Ended(limit) || p.Code() != 0 {
			state := inside("systemctl show -p SubState,Result,NRestarts,MainPID,ExecMainStatus vrdma.service; tail -n 20 /vrdma.log || true")
			t.Fatalf("%s: %s\n%s\nsystemd: %s\n%s\n%s", what, p.Fate(), harness.Tail(p.Output(), 20), first.Fate(), harness.Tail(first.Output(), 20), state)
		}
	}
	until("systemd does not start", "systemctl is-active multi-user.target")
	if out := inside("tar -xOf /dev/disk/by-id/virtio-vrdma install | sh"); !strings.Contains(out, "the agent is started") {
		t.Fatal(out)
	}
	device := "/usr/local/bin/vrdma run -q -- ibv_devinfo | grep PORT_ACTIVE"
	until("the agent does not answer", device)
	inside("systemctl is-enabled vrdma-agent.service && kill -9 $(systemctl show --value -p MainPID vrdma-agent.service)")
	until("the agent does not come again", "[ $(systemctl show --value -p NRestarts vrdma-agent.service) -ge 1 ] && "+device)
	program := "/usr/local/bin/vrdma --socket /var/lib/vrdma/vrdma.sock run -q -- ibv_devinfo | grep PORT_ACTIVE"
	inside("systemctl start vrdma.socket")
	inside(program) // starts the daemon
	if out := inside("systemctl is-active vrdma.service && systemctl show -p StatusText vrdma.service"); !strings.Contains(out, "active") || !strings.Contains(out, "1 NIC") {
		t.Error(out)
	}
	inside("printf \"addr: [127.0.0.1]\\nnetwork: false\\ncdi: none\\nlog: {level: debug}\\n\" >/etc/vrdma/vrdma.yaml && systemctl reload vrdma.service")
	inside("systemctl is-active vrdma.service")
	inside("kill -9 $(systemctl show --value -p MainPID vrdma.service)")
	until("the daemon does not come again", "[ $(systemctl show --value -p NRestarts vrdma.service) -ge 1 ] && systemctl is-active vrdma.service && "+program)
	// Another program is installed: a reload replaces the daemon, and systemd follows the next one without a restart.
	inside("was=$(systemctl show --value -p MainPID vrdma.service) restarts=$(systemctl show --value -p NRestarts vrdma.service);" +
		" cd /usr/local/bin && cp vrdma vrdma.new && echo next >>vrdma.new && mv -f vrdma.new vrdma && systemctl reload vrdma.service &&" +
		" [ $(systemctl show --value -p MainPID vrdma.service) != $was ] && [ $(systemctl show --value -p NRestarts vrdma.service) = $restarts ] && systemctl is-active vrdma.service")
	inside("[ $(stat -c %a /var/lib/vrdma/vrdma.sock) = 666 ]") // as the socket unit made it
	// systemd notices the end of the next daemon, too, which it has not started.
	inside("kill -9 $(systemctl show --value -p MainPID vrdma.service)")
	until("the daemon that took over does not come again", "[ $(systemctl show --value -p NRestarts vrdma.service) -ge 2 ] && systemctl is-active vrdma.service && "+program)
	inside("systemctl stop vrdma.socket vrdma.service && ! systemctl is-active vrdma.service")
	inside("systemctl stop vrdma-agent.service")
	until("the agent does not end", "! pidof vrdma || { ps; false; }")
}
