package service

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"vrdma.dev/vrdma/test/harness"
)

// A manager is a service manager that records what a daemon reports.
type manager struct {
	conn *net.UnixConn
	path string
}

func newManager(t *testing.T, dir string) *manager {
	t.Helper()
	m := &manager{path: filepath.Join(dir, "notify")}
	var err error
	if m.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.conn.Close() })
	return m
}

// until reads reports until one contains text.
func (m *manager) until(t *testing.T, text string) string {
	t.Helper()
	var all []string
	m.conn.SetReadDeadline(time.Now().Add(limit))
	for {
		var b [4096]byte
		n, err := m.conn.Read(b[:])
		if err != nil {
			t.Fatalf("no %q: %v; got %q", text, err, all)
		}
		if all = append(all, string(b[:n])); strings.Contains(all[len(all)-1], text) {
			return all[len(all)-1]
		}
	}
}

// launch starts a daemon at a socket below dir, with variables of a service manager.
func launch(t *testing.T, dir string, env []string, files []*os.File, args ...string) *harness.Process {
	t.Helper()
	return harness.Spawn(t, daemonCommand(t, dir, env, files, args...))
}

func daemonCommand(t *testing.T, dir string, env []string, files []*os.File, args ...string) *exec.Cmd {
	t.Helper()
	harness.Build(t)
	argv := append([]string{harness.Binary(), "daemon", "--socket", filepath.Join(dir, "vrdma.sock"), "--addr", "127.0.0.1", "--store", filepath.Join(dir, "store.db")}, args...)
	// LISTEN_PID is the daemon's own process number.
	cmd := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`}, argv...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.ExtraFiles = files
	return cmd
}

// TestNotify follows a daemon from its start to its end as systemd does: ready, watched, reloading, stopping.
func TestNotify(t *testing.T) {
	dir := harness.Directory(t, nil)
	m := newManager(t, dir)
	p := launch(t, dir, []string{"NOTIFY_SOCKET=" + m.path, "WATCHDOG_USEC=300000"}, nil)
	if got := m.until(t, "READY=1"); !strings.Contains(got, "STATUS=1 NIC, 0 programs") {
		t.Errorf("got %q", got)
	}
	m.until(t, "WATCHDOG=1")
	m.until(t, "WATCHDOG=1")
	p.Signal(syscall.SIGHUP)
	if got := m.until(t, "RELOADING=1"); !strings.Contains(got, "MONOTONIC_USEC=") {
		t.Errorf("got %q", got)
	}
	m.until(t, "READY=1")
	p.Signal(syscall.SIGTERM)
	m.until(t, "STOPPING=1")
	p.OK(t, limit)
}

// TestActivation has a daemon serve a socket that it inherited: a program that connected before the start is served, and the socket
// stays for the next daemon.
func TestActivation(t *testing.T) {
	dir := harness.Directory(t, nil)
	socket := filepath.Join(dir, "vrdma.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := newManager(t, dir)
	harness.Build(t)
	for round := range 2 {
		early := harness.Spawn(t, exec.Command(harness.Binary(), "--socket", socket, "status"))
		p := launch(t, dir, []string{"LISTEN_FDS=1", "NOTIFY_SOCKET=" + m.path}, []*os.File{f})
		m.until(t, "READY=1")
		if out := early.OK(t, limit); !strings.Contains(out, fmt.Sprint("pid ", p.PID())) {
			t.Errorf("round %d: got %s", round, out)
		}
		d := harness.At(socket, nil)
		if out := d.Run(t, limit, "ibv_devices"); !strings.Contains(out, "rxe0") {
			t.Errorf("round %d: got %s", round, out)
		}
		p.Signal(syscall.SIGTERM)
		p.OK(t, limit)
		if _, err := os.Lstat(socket); err != nil {
			t.Errorf("round %d: the daemon removed the manager's socket: %v", round, err)
		}
		if _, err := os.Lstat(socket + ".pid"); err == nil {
			t.Errorf("round %d: the daemon left its pid file", round)
		}
	}
	p := launch(t, filepath.Join(dir), []string{"LISTEN_FDS=1"}, []*os.File{f}, "--socket", filepath.Join(dir, "other.sock"))
	if code := p.Wait(t, limit); code != 2 || !strings.Contains(p.Output(), "set both to one path") {
		t.Errorf("another path: exit %d, %s", code, p.Output())
	}
}

// TestActivationUpgraded upgrades a daemon twice that inherited its socket: the socket keeps the mode that the manager gave it, its
// users can read the files for programs, and the socket stays when the last daemon ends.
func TestActivationUpgraded(t *testing.T) {
	dir := harness.Directory(t, nil)
	socket := filepath.Join(dir, "vrdma.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Chmod(socket, 0o666); err != nil {
		t.Fatal(err)
	}
	m := newManager(t, dir)
	// The daemons share the log: a pipe would end with the first one.
	log := filepath.Join(dir, "log")
	cmd := daemonCommand(t, dir, []string{"LISTEN_FDS=1", "NOTIFY_SOCKET=" + m.path}, []*os.File{f})
	cmd.Args[2] += " >" + log + " 2>&1"
	first := harness.Spawn(t, cmd)
	m.until(t, "READY=1")
	d := harness.At(socket, nil)
	pid := first.PID()
	defer func() {
		if t.Failed() {
			syscall.Kill(pid, syscall.SIGKILL)
			text, err := os.ReadFile(log)
			t.Logf("log of the daemons: %v\n%s", err, harness.Tail(string(text), 40))
		}
	}()
	for round := range 3 {
		for path, want := range map[string]os.FileMode{socket: 0o666, socket + ".d": 0o755, socket + ".d/sys": 0o755, socket + ".d/libvrdma.so": 0o755} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("after %d upgrades %s: got %v, %v, want %v", round, filepath.Base(path), info.Mode().Perm(), err, want)
			}
		}
		if out := d.Run(t, limit, "ibv_devices"); !strings.Contains(out, "rxe0") {
			t.Errorf("after %d upgrades: %s", round, out)
		}
		if round == 2 {
			break
		}
		if out, err := d.Command("upgrade").CombinedOutput(); err != nil {
			t.Fatalf("vrdma upgrade: %v\n%s", err, out)
		}
		pid = d.Status(t).Pid
		m.until(t, fmt.Sprint("MAINPID=", pid))
	}
	first.OK(t, limit)
	if out, err := d.Command("stop").CombinedOutput(); err != nil {
		t.Fatalf("vrdma stop: %v\n%s", err, out)
	}
	if !harness.Poll(limit, func() bool { _, err := os.Lstat(socket + ".pid"); return err != nil }) {
		t.Error("the daemon does not end, or left its pid file")
	}
	if _, err := os.Lstat(socket); err != nil {
		t.Errorf("the last daemon removed the manager's socket: %v", err)
	}
}
