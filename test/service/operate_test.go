package service

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

func command(t *testing.T, d *harness.Daemon, args ...string) string {
	t.Helper()
	out, err := d.Command(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("vrdma %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestReload changes the configuration file under a running daemon: what can change does, the rest is named, and a mistake changes
// nothing. SIGHUP and vrdma reload do the same.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vrdma.yaml")
	write(t, file, "log: {level: info}\n")
	d := harness.Start(t, harness.Options{Args: []string{"--config", file}})
	write(t, file, "log: {level: debug}\nmetrics: {address: '127.0.0.1:0'}\nmode: '0666'\n")
	out := command(t, d, "reload")
	for _, want := range []string{"log.level: debug, was info", "metrics.address: 127.0.0.1:0, was the default", "mode: stays 0600 until the daemon restarts"} {
		if !strings.Contains(out, want) {
			t.Errorf("got %s, want %s", out, want)
		}
	}
	d.Process.Printed(t, "serving metrics", limit)
	write(t, file, "log: {level: loud}\n")
	if out, err := d.Command("reload").CombinedOutput(); err == nil || !strings.Contains(string(out), file+`:1: log.level is "loud": choose debug, info, warn or error`) {
		t.Errorf("a mistake: %v, %s", err, out)
	}
	write(t, file, "log: {level: warn}\n")
	d.Process.Signal(syscall.SIGHUP)
	d.Process.Printed(t, "setting=log.level was=debug is=warn", limit)
	command(t, d, "status")
}

// TestConfigCommand checks and prints files.
func TestConfigCommand(t *testing.T) {
	harness.Build(t)
	file := filepath.Join(t.TempDir(), "c.yaml")
	run := func(args ...string) (string, int) {
		cmd := exec.Command(harness.Binary(), append([]string{"config"}, args...)...)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	write(t, file, "store: /x\nfoo: 1\n")
	if out, code := run("check", file); code != 2 || !strings.Contains(out, file+`:2: unknown field "foo": choose among addr,`) {
		t.Errorf("exit %d, %s", code, out)
	}
	write(t, file, "store: /x\nlog:\n  level: warn\n")
	if out, code := run("check", file); code != 0 || !strings.Contains(out, "no mistakes") {
		t.Errorf("exit %d, %s", code, out)
	}
	if out, code := run("print", "--log-level", "error", file); code != 0 || !strings.Contains(out, "\nstore: /x\n") || !strings.Contains(out, "\n  level: error\n") {
		t.Errorf("exit %d, %s", code, out)
	}
	if out, code := run("check", filepath.Join(harness.Root(), "contrib/vrdma.yaml")); code != 0 {
		t.Errorf("the example: %s", out)
	}
}

// TestDrain: new programs are refused, those that run are named and go on, and drain returns when they have ended.
func TestDrain(t *testing.T) {
	harness.Need(t, "ib_write_bw")
	d := harness.Start(t, harness.Options{})
	port := harness.FreePort(t)
	server := d.Launch(t, "ib_write_bw", "-p", itoa(port))
	harness.Listening(t, server, port, limit)
	if out := command(t, d, "status", "--impact"); !strings.Contains(out, "ib_write_bw") || !strings.Contains(out, "1 programs get DEVICE_FATAL") {
		t.Errorf("impact: %s", out)
	}
	if out, err := d.Command("drain", "--deadline", "1ms").CombinedOutput(); err == nil || !strings.Contains(string(out), "ib_write_bw") || !strings.Contains(string(out), "1 programs are left") {
		t.Errorf("a deadline: %v, %s", err, out)
	}
	if out := command(t, d, "status"); !strings.Contains(out, "draining") {
		t.Errorf("status: %s", out)
	}
	late := d.Launch(t, "ibv_devinfo")
	if code := late.Wait(t, limit); code == 0 || !strings.Contains(late.Output(), "drains, and accepts no new programs") {
		t.Errorf("a new program: exit %d\n%s", code, late.Output())
	}
	drain := harness.Spawn(t, d.Command("drain"))
	drain.Printed(t, "ib_write_bw", limit)
	server.Signal(syscall.SIGTERM)
	drain.OK(t, limit)
	command(t, d, "drain", "--off")
	d.Run(t, limit, "ibv_devinfo")
}

// TestAudit: who changed what is known after the daemon was killed, and the status names the files of the daemon.
func TestAudit(t *testing.T) {
	dir := harness.Directory(t, nil)
	audit := filepath.Join(dir, "audit")
	usage, store := filepath.Join(dir, "usage"), filepath.Join(dir, "s.db")
	options := harness.Options{Args: []string{"--audit", audit, "--store", store, "--usage", usage}}
	d := harness.Start(t, options)
	status := command(t, d, "status")
	for name, file := range map[string]string{"store": store, "audit log": audit, "usage": usage} {
		if !regexp.MustCompile(`(?m)^` + name + ` +` + regexp.QuoteMeta(file)).MatchString(status) {
			t.Errorf("the status does not name the file %s:\n%s", file, status)
		}
	}
	objects := filepath.Join(dir, "o.yaml")
	write(t, objects, "apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: red}\n")
	command(t, d, "apply", "-f", objects)
	if !harness.Poll(limit, func() bool { return strings.Contains(command(t, d, "audit"), "applied") }) {
		t.Fatal("the change is not in the audit log")
	}
	d.Process.Signal(syscall.SIGKILL)
	<-d.Process.Done()
	out := command(t, d, "audit", "--file", audit, "red")
	if !strings.Contains(out, "applied      Tenant red by vrdma (uid ") {
		t.Errorf("got %s", out)
	}
	if out := command(t, d, "audit", "--file", audit, "blue"); out != "" {
		t.Errorf("of another tenant: %s", out)
	}
}

// TestBugReport: one archive has what a report needs, and neither the passwords in the configuration nor payload.
func TestBugReport(t *testing.T) {
	dir := harness.Directory(t, nil)
	config := filepath.Join(dir, "c.yaml")
	write(t, config, "# password: hunter2\nlog: {level: debug}\n")
	d := harness.Start(t, harness.Options{Args: []string{"--config", config}})
	archive := filepath.Join(dir, "r.tar.gz")
	command(t, d, "bugreport", "--config", config, "-o", archive)
	out, err := exec.Command("tar", "-xzf", archive, "-C", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, want := range map[string]string{"version.txt": "vrdma", "status.json": `"protocol"`, "doctor.txt": "", "configuration.yaml": "level: debug", "daemon/limits": "Max open files", "daemon/cmdline": "--config", "machine/proc-meminfo": "MemTotal"} {
		text, err := os.ReadFile(filepath.Join(dir, "vrdma-bugreport", name))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v, want %q\n%s", name, err, want, harness.Tail(string(text), 5))
		}
		if strings.Contains(string(text), "hunter2") {
			t.Errorf("%s has a password", name)
		}
	}
	if out, err := d.Command("bugreport", "-o", archive).CombinedOutput(); err == nil {
		t.Errorf("an existing file is overwritten: %s", out)
	}
	if info, err := os.Stat(archive); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
