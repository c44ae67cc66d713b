package service

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// An installation is vrdma as a package installs it, with a file of settings. Its unit is that of contrib/systemd.
type installation struct {
	dir, program, config string
	flags                []string // VRDMA_FLAGS
	env                  []string // of the service
}

func install(t *testing.T, flags ...string) *installation {
	t.Helper()
	harness.Build(t)
	dir := harness.Directory(t, nil)
	v := &installation{dir: dir, program: filepath.Join(dir, "bin/vrdma"), config: filepath.Join(dir, "vrdma.yaml")}
	v.flags = append([]string{"--socket=" + v.socket(), "--addr=127.0.0.1", "--store=" + filepath.Join(dir, "store.db")}, flags...)
	if err := os.Mkdir(filepath.Dir(v.program), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, library := range []string{"libvrdma.so", "libvrdma-sockets.so"} {
		text, err := os.ReadFile(filepath.Join(filepath.Dir(harness.Binary()), library))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "bin", library), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	v.replace(t, "")
	write(t, v.config, "log: {level: info}\n")
	return v
}

func (v *installation) socket() string { return filepath.Join(v.dir, "vrdma.sock") }

// replace installs the program as dpkg does: another file gets its name. Its content ends with version, so that it is another
// program with another version.
func (v *installation) replace(t *testing.T, version string) {
	t.Helper()
	text, err := os.ReadFile(harness.Binary())
	if err == nil {
		err = os.WriteFile(v.program+".new", append(text, version...), 0o755)
	}
	if err == nil {
		err = os.Rename(v.program+".new", v.program)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// command is what systemd runs: exe is ExecStart or ExecReload of the unit.
func (v *installation) command(t *testing.T, exe string) *exec.Cmd {
	t.Helper()
	unit, err := os.ReadFile(filepath.Join(harness.Root(), "contrib/systemd/vrdma.service"))
	if err != nil {
		t.Fatal(err)
	}
	_, line, found := strings.Cut(string(unit), "\n"+exe+"=vrdma ")
	if !found {
		t.Fatalf("the unit has no %s=vrdma", exe)
	}
	line, _, _ = strings.Cut(line, "\n")
	var args []string
	for _, a := range strings.Fields(line) {
		switch a {
		case "$VRDMA_FLAGS":
			args = append(args, v.flags...)
		case "/etc/vrdma/vrdma.yaml":
			args = append(args, v.config)
		default:
			args = append(args, a)
		}
	}
	cmd := exec.Command(v.program, args...)
	cmd.Env = append(os.Environ(), v.env...)
	return cmd
}

// log is the file with the log of the daemons.
func (v *installation) log() string { return filepath.Join(v.dir, "log") }

// start starts the service. The daemons share one log: a pipe to this process would close when the first of them has ended.
func (v *installation) start(t *testing.T) (*harness.Daemon, *harness.Process) {
	t.Helper()
	service := v.command(t, "ExecStart")
	cmd := exec.Command("sh", append([]string{"-c", `exec "$0" "$@" >>'` + v.log() + `' 2>&1`}, service.Args...)...)
	cmd.Env = service.Env
	p := harness.Spawn(t, cmd)
	d := harness.At(v.socket(), nil)
	t.Cleanup(func() {
		if out, err := d.Command("stop").CombinedOutput(); err != nil {
			t.Errorf("vrdma stop: %v\n%s", err, out)
		}
		if text, err := os.ReadFile(v.log()); t.Failed() {
			t.Logf("log of the daemons: %v\n%s", err, harness.Tail(string(text), 40))
		}
	})
	return d, p
}

// reload does what systemctl reload does.
func (v *installation) reload(t *testing.T) (out string, err error) {
	t.Helper()
	text, err := v.command(t, "ExecReload").CombinedOutput()
	return string(text), err
}

// TestReloadUpgrades runs what systemctl reload runs: with the daemon's own program, also if it was installed again, the daemon reads
// its configuration. After another program was installed it replaces the daemon, systemd learns the next one's process number, and a
// connection continues.
func TestReloadUpgrades(t *testing.T) {
	harness.Need(t, "rping")
	v := install(t)
	m := newManager(t, v.dir)
	v.env = []string{"NOTIFY_SOCKET=" + m.path}
	d, first := v.start(t)
	m.until(t, "READY=1")
	port := harness.FreePort(t)
	server := d.Launch(t, "rping", "-s", "-V", "-a", "127.0.0.1", "-p", itoa(port))
	d.AwaitManaged(t, server, port)
	client := d.Launch(t, "rping", "-c", "-V", "-a", "127.0.0.1", "-p", itoa(port))
	moves := func(when string) {
		t.Helper()
		before := d.Status(t).Counters["port_xmit_packets"]
		if !harness.Poll(limit, func() bool {
			return d.Status(t).Counters["port_xmit_packets"] > before+10 || client.Ended(0) || server.Ended(0)
		}) || client.Ended(0) || server.Ended(0) {
			t.Fatalf("%s rping does not continue: client %s, server %s\n%s", when, client.Fate(), server.Fate(), client.Output())
		}
	}
	moves("before the reloads")

	write(t, v.config, "log: {level: debug}\n")
	if out, err := v.reload(t); err != nil || !strings.Contains(out, "log.level: debug, was info") {
		t.Fatalf("the same program: %v, %s", err, out)
	}
	v.replace(t, "")
	if out, err := v.reload(t); err != nil || out != "nothing has changed\n" {
		t.Fatalf("the same program, installed again: %v, %s", err, out)
	}
	if pid := d.Status(t).Pid; pid != first.PID() {
		t.Errorf("a reload has replaced the daemon %d by %d", first.PID(), pid)
	}
	v.replace(t, "next")
	write(t, v.config, "log: {level: warn}\n")
	if out, err := v.reload(t); err != nil || !strings.Contains(out, "upgraded: pid ") {
		t.Fatalf("another program: %v, %s", err, out)
	}
	pid := d.Status(t).Pid
	m.until(t, fmt.Sprint("MAINPID=", pid))
	first.OK(t, limit)
	if pid == first.PID() {
		t.Error("the daemon is the one from before")
	}
	if out, err := v.reload(t); err != nil || out != "nothing has changed\n" {
		t.Errorf("after the upgrade: %v, %s", err, out)
	}
	moves("after the upgrade")
}

// TestReloadRefused: a daemon that cannot hand over reads its configuration and continues, and the reload fails with the reason.
func TestReloadRefused(t *testing.T) {
	harness.Need(t, "rping")
	v := install(t)
	m := newManager(t, v.dir)
	v.env = []string{"NOTIFY_SOCKET=" + m.path}
	d, first := v.start(t)
	m.until(t, "READY=1")
	moves := pings(t, d)
	moves()
	v.replace(t, "next")
	write(t, v.config, "log: {level: warn}\nlimits: {mrs: 1}\n") // rping has three
	out, err := v.reload(t)
	if err == nil || !strings.Contains(out, "log.level: warn, was info") || !strings.Contains(out, "memory region") {
		t.Errorf("%v, %s", err, out)
	}
	moves()
	if pid := d.Status(t).Pid; pid != first.PID() {
		t.Errorf("the daemon was process %d, and is %d", first.PID(), pid)
	}
}

// pings starts rping. moves waits until it has sent more.
func pings(t *testing.T, d *harness.Daemon) (moves func()) {
	t.Helper()
	port := harness.FreePort(t)
	server := d.Launch(t, "rping", "-s", "-V", "-a", "127.0.0.1", "-p", itoa(port))
	d.AwaitManaged(t, server, port)
	client := d.Launch(t, "rping", "-c", "-V", "-a", "127.0.0.1", "-p", itoa(port))
	return func() {
		t.Helper()
		before := d.Status(t).Counters["port_xmit_packets"]
		if !harness.Poll(limit, func() bool { return d.Status(t).Counters["port_xmit_packets"] > before+10 }) {
			t.Fatalf("rping does not continue: client %s, server %s\n%s", client.Fate(), server.Fate(), client.Output())
		}
	}
}

// TestUpgradeSettings: an upgrade to the same program changes the settings of the log and the limits, which a reload does not. If a
// program has more than the new limits allow, the daemon continues with its own.
func TestUpgradeSettings(t *testing.T) {
	harness.Need(t, "rping", "ibv_devinfo")
	v := install(t)
	m := newManager(t, v.dir)
	v.env = []string{"NOTIFY_SOCKET=" + m.path}
	d, first := v.start(t)
	m.until(t, "READY=1")
	write(t, v.config, "log: {format: json}\nlimits: {qps: 5}\n")
	out := command(t, d, "reload")
	for _, want := range []string{"log.format: stays text until", "limits.qps: stays the default until"} {
		if !strings.Contains(out, want) {
			t.Errorf("a reload says %s, want %s", out, want)
		}
	}
	command(t, d, "upgrade")
	first.OK(t, limit)
	if out := d.Run(t, limit, "ibv_devinfo", "-v"); !regexp.MustCompile(`max_qp:\s+5\n`).MatchString(out) {
		t.Errorf("after the upgrade the device has another limit than 5 queue pairs:\n%s", out)
	}
	if log, err := os.ReadFile(v.log()); !strings.Contains(string(log), `"msg":"serving"`) {
		t.Errorf("the next daemon does not log as JSON: %v\n%s", err, log)
	}

	moves := pings(t, d)
	moves()
	pid := d.Status(t).Pid
	write(t, v.config, "limits: {mrs: 1}\n") // rping has three
	text, err := d.Command("upgrade").CombinedOutput()
	if want := fmt.Sprintf("the daemon (pid %d, version ", pid); err == nil || !strings.Contains(string(text), want) || !strings.Contains(string(text), "memory region") {
		t.Errorf("an upgrade with a limit that is too low: %v\n%s", err, text)
	}
	moves()
}
