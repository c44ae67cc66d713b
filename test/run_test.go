package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// auto is a user with a runtime directory and without a daemon.
func auto(t *testing.T, user *syscall.Credential) (d *harness.Daemon) {
	t.Helper()
	harness.Build(t)
	socket := filepath.Join(harness.Directory(t, user), "vrdma", "vrdma.sock")
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	if user != nil {
		os.Chown(filepath.Dir(socket), int(user.Uid), int(user.Gid))
	}
	t.Cleanup(func() { stopAuto(t, socket) })
	return harness.At(socket, user)
}

// stopAuto ends the daemon at socket, if there is one.
func stopAuto(t *testing.T, socket string) {
	t.Helper()
	s, err := protocol.QueryStatus(socket)
	if err != nil {
		return
	}
	syscall.Kill(s.Pid, syscall.SIGTERM)
	if !harness.Poll(minute, func() bool { return syscall.Kill(s.Pid, 0) != nil }) {
		syscall.Kill(s.Pid, syscall.SIGKILL)
		t.Errorf("the daemon at %s did not end on SIGTERM", socket)
	}
}

// Without a daemon `vrdma run` starts one, which ends after the last program.
func TestAutostart(t *testing.T) {
	for name, user := range map[string]*syscall.Credential{"root": nil, "nobody": harness.Nobody()} {
		t.Run(name, func(t *testing.T) {
			d := auto(t, user)
			out := d.Run(t, minute, "ibv_devinfo")
			for _, want := range []string{"hca_id:\trxe0", "PORT_ACTIVE", "Ethernet"} {
				if !strings.Contains(out, want) {
					t.Errorf("ibv_devinfo: want %q in:\n%s", want, out)
				}
			}
			perf(t, d, perfCase{"", "ib_send_bw", "-n 100", 1})
			s := lives(t, d)
			if user != nil {
				if tables := udpSockets(s.Pid); tables > 0 {
					t.Errorf("an automatic daemon has %d network sockets, want none", tables)
				}
			}
			if !harness.Poll(minute, func() bool { return syscall.Kill(s.Pid, 0) != nil }) {
				t.Errorf("daemon %d is still there a minute after its last program", s.Pid)
			}
			if _, err := os.Stat(d.Socket); err == nil {
				t.Errorf("%s is still there after its daemon ended", d.Socket)
			}
		})
	}
}

// lives returns the status of a daemon that waits for the next program. It waits three seconds. On a busy machine one
// attempt may come too late, but not all of them.
func lives(t *testing.T, d *harness.Daemon) *protocol.Status {
	t.Helper()
	var err error
	for range 5 {
		var s *protocol.Status
		if s, err = protocol.QueryStatus(d.Socket); err == nil {
			return s
		}
		d.Run(t, minute, "ibv_devinfo")
	}
	t.Fatalf("the daemon did not outlive one program: %v", err)
	return nil
}

// udpSockets counts a process's descriptors that are network sockets.
func udpSockets(pid int) int {
	inet := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "raw6", "packet"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 9 {
				inet["socket:["+f[9]+"]"] = true
			}
		}
	}
	n := 0
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		if to, _ := os.Readlink(dir + "/" + fd.Name()); inet[to] {
			n++
		}
	}
	return n
}

// Programs that start at the same instant share one daemon.
func TestAutostartTogether(t *testing.T) {
	d := auto(t, nil)
	for round := range 3 {
		// No program ends before all have opened the device.
		var programs []*harness.Process
		for range 8 {
			programs = append(programs, d.Launch(t, "sh", "-c", "ibv_devinfo >/dev/null && echo there && exec sleep 1000"))
		}
		for _, p := range programs {
			p.Printed(t, "there", minute)
			if p.Output() != "there\n" {
				t.Errorf("round %d: a program said:\n%s", round, p.Output())
			}
		}
		if all := daemonsOf(t, d.Socket); len(all) != 1 || fmt.Sprint(d.Status(t).Pid) != all[0] {
			t.Errorf("round %d: the daemons %v serve %s, want one, and %d answers", round, all, d.Socket, d.Status(t).Pid)
		}
		for _, p := range programs {
			p.Signal(syscall.SIGKILL)
			p.Ended(minute)
		}
		stopAuto(t, d.Socket)
	}
}

// daemonsOf lists the processes whose command line names the socket as a daemon.
func daemonsOf(t *testing.T, socket string) []string {
	t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var found []string
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if args := strings.Split(string(text), "\x00"); len(args) > 1 && args[1] == "daemon" && bytes.Contains(text, []byte(socket)) {
			found = append(found, filepath.Base(filepath.Dir(f)))
		}
	}
	return found
}

func TestAutostartObstacles(t *testing.T) {
	t.Run("stale_socket", func(t *testing.T) {
		d := auto(t, nil)
		l, err := net.Listen("unix", d.Socket)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		l.Close()
		if out := d.Run(t, minute, "ibv_devinfo"); !strings.Contains(out, "PORT_ACTIVE") {
			t.Errorf("with a stale socket: %s", out)
		}
	})
	t.Run("daemon_of_another_version", func(t *testing.T) {
		d := auto(t, nil)
		other := filepath.Join(filepath.Dir(harness.Binary()), "vrdma-other")
		t.Cleanup(func() { os.Remove(other) })
		build := exec.Command("go", "build", "-ldflags", "-X vrdma.dev/vrdma/internal/buildinfo.version=other", "-o", other, "./cmd/vrdma")
		build.Dir = harness.Root()
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		run := func(binary string, argv ...string) *harness.Process {
			cmd := d.ProgramCommand(argv...)
			cmd.Path = binary
			return harness.Spawn(t, cmd)
		}
		version := func() string {
			s, err := protocol.QueryStatus(d.Socket)
			if err != nil {
				t.Fatal(err)
			}
			return s.Version
		}
		// A daemon in use is not replaced; it serves us, too.
		busy := run(other, harness.Compile(t, "fatal"))
		busy.Printed(t, "ready", minute)
		d.Run(t, minute, "ibv_devinfo")
		if v := version(); v != "other" {
			t.Errorf("a daemon in use was replaced: version %q, want %q", v, "other")
		}
		busy.Signal(syscall.SIGKILL)
		busy.Ended(minute)
		// An idle daemon is replaced by one of our version.
		if !harness.Poll(minute, func() bool {
			d.Run(t, minute, "ibv_devinfo")
			return version() != "other"
		}) {
			t.Errorf("the idle daemon is still of version %q", version())
		}
	})
	t.Run("no_provider", func(t *testing.T) {
		d := auto(t, nil)
		cmd := d.ProgramCommand("ibv_devinfo")
		cmd.Args = append([]string{"unshare", "-m", "sh", "-c", "mount -t tmpfs tmpfs /etc/libibverbs.d && exec \"$@\"", "sh"}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
		cmd.Path = "/usr/bin/unshare"
		p := harness.Spawn(t, cmd)
		p.Wait(t, minute)
		first, _, _ := strings.Cut(p.Output(), "\n")
		if !strings.Contains(first, "ibverbs-providers") {
			t.Errorf("without a provider the first line is %q, want it to name the package ibverbs-providers\n%s", first, p.Output())
		}
	})
	t.Run("no_runtime_directory", func(t *testing.T) {
		harness.Build(t)
		user := &syscall.Credential{Uid: 54321, Gid: 54321}
		dir := fmt.Sprintf("/tmp/vrdma-%d", user.Uid)
		socket := dir + "/vrdma.sock"
		t.Cleanup(func() {
			stopAuto(t, socket)
			os.RemoveAll(dir)
		})
		cmd := exec.Command(harness.Binary(), "run", "--", "ibv_devinfo")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
		p := harness.Spawn(t, cmd)
		if out := p.OK(t, minute); !strings.Contains(out, "PORT_ACTIVE") {
			t.Errorf("without XDG_RUNTIME_DIR: %s", out)
		}
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatalf("want a directory of the user's own: %v", err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, want 0700", dir, info.Mode().Perm())
		}
	})
}

// The exit status is the program's. The first line of an error says what is missing.
func TestRunStatus(t *testing.T) {
	d := harness.Start(t, harness.Options{})
	static := filepath.Join(t.TempDir(), "static")
	src := static + ".c"
	os.WriteFile(src, []byte("int main(void) { return 0; }\n"), 0o644)
	if out, err := exec.Command("gcc", "-static", "-o", static, src).CombinedOutput(); err != nil {
		t.Fatalf("gcc -static: %v\n%s", err, out)
	}
	harness.Need(t, "musl-gcc")
	musl := static + "-musl"
	if out, err := exec.Command("musl-gcc", "-o", musl, src).CombinedOutput(); err != nil {
		t.Fatalf("musl-gcc: %v\n%s", err, out)
	}
	setuid := filepath.Join(harness.Directory(t, harness.Nobody()), "setuid")
	if out, err := exec.Command("cp", "/usr/bin/ibv_devinfo", setuid).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	if err := os.Chown(setuid, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(setuid, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("ibv_devinfo -l | grep -q rxe0 && exit $1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		argv []string
		code int
		says string // in the first line
	}{
		{"script without an interpreter", []string{script, "42"}, 42, ""},
		{"without the environment", []string{"env", "-i", "/bin/true"}, 0, "env -i PATH=\"$PATH\" vrdma run -- PROGRAM"},
		{"success", []string{"true"}, 0, ""},
		{"failure", []string{"sh", "-c", "exit 41"}, 41, ""},
		{"missing", []string{"no-such-program-anywhere"}, 127, "no-such-program-anywhere"},
		{"static", []string{static}, 3, "static"},
		{"musl", []string{musl}, 3, "musl"},
		{"setuid", []string{setuid}, 3, "setuid"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := d.Launch(t, c.argv...)
			code := p.Wait(t, minute)
			first, _, _ := strings.Cut(p.Output(), "\n")
			if code != c.code || !strings.Contains(first, c.says) {
				t.Errorf("exit %d, first line %q; want exit %d and %q in that line", code, first, c.code, c.says)
			}
		})
	}
	t.Run("killed", func(t *testing.T) {
		p := d.Launch(t, "sh", "-c", "kill -9 $$")
		if p.Wait(t, minute) != -1 {
			t.Errorf("a program killed by a signal: got a normal exit\n%s", p.Output())
		}
	})
	t.Run("few_descriptors", func(t *testing.T) {
		p := d.Launch(t, "sh", "-c", "ulimit -n 12; exec ibv_devinfo")
		code := p.Wait(t, minute)
		if code == 0 && !strings.Contains(p.Output(), "PORT_ACTIVE") {
			t.Errorf("with 12 descriptors ibv_devinfo ends with 0 and shows no device:\n%s", p.Output())
		}
		if code != 0 && !regexp.MustCompile(`(?i)descriptor|open files|ulimit`).MatchString(p.Output()) {
			t.Errorf("with 12 descriptors: exit %d without a word about descriptors:\n%s", code, p.Output())
		}
	})
}

// A sandbox with a /tmp of its own, without the caller's variables, and with namespaces of its own, has the device.
func TestSandbox(t *testing.T) {
	d := harness.Device(t)
	bwrap := filepath.Join(harness.Unpacked(t, "bubblewrap"), "usr/bin/bwrap")
	for _, options := range []string{"--tmpfs /tmp", "--tmpfs /tmp --clearenv --setenv PATH /usr/bin:/bin --unshare-pid --unshare-ipc --die-with-parent --"} {
		t.Run(options, func(t *testing.T) {
			sandbox := append([]string{bwrap, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"}, strings.Fields(options)...)
			port := harness.FreePort(t)
			tool := append(sandbox, "ib_send_bw", "-n", "100", "-p", strconv.Itoa(port))
			d.Carried(t, harness.Traffic{Packets: 100}, func() {
				d.Pair(t, minute, port, tool, append(slices.Clone(tool), "127.0.0.1"))
			})
			p := d.Launch(t, append(slices.Clone(sandbox), "ls", "-A", "/tmp")...)
			if out := strings.Fields(p.OK(t, minute)); strings.Contains(d.Socket, "/tmp/") && len(out) != 1 {
				t.Errorf("the sandbox's /tmp has %q, want only the way to the socket", out)
			}
		})
	}
}

// `vrdma doctor -- PROGRAM` says whether a program sees the device, and what to do if not.
func TestDoctorProgram(t *testing.T) {
	harness.Build(t)
	for _, c := range []struct {
		argv   []string
		status int
		says   string
	}{
		{[]string{"ibv_devinfo", "-l"}, 0, "sees the device"},
		{[]string{"env", "-i", "ibv_devinfo"}, 3, "env -i PATH=\"$PATH\" vrdma run -- PROGRAM"},
		{[]string{filepath.Join(harness.Unpacked(t, "sudo"), "usr/bin/sudo"), "ibv_devinfo"}, 3, "sudo vrdma run -- PROGRAM"},
		{[]string{"ssh", "host", "ibv_devinfo"}, 3, "ssh HOST vrdma run -- PROGRAM"},
		{[]string{filepath.Join(harness.Unpacked(t, "bubblewrap"), "usr/bin/bwrap"), "--tmpfs", "/tmp", "ibv_devinfo"}, 0, "sees the device"},
		{[]string{"no-such-program-anywhere"}, 127, "not found"},
	} {
		cmd := exec.Command(harness.Binary(), append([]string{"doctor", "--"}, c.argv...)...)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.status || !strings.Contains(string(out), c.says) {
			t.Errorf("vrdma doctor -- %q: status %d, want %d and %q in:\n%s", c.argv, code, c.status, c.says, out)
		}
	}
	// The remedy works: nothing of the caller's environment is needed.
	d := harness.Device(t)
	p := harness.Spawn(t, exec.Command("env", "-i", "PATH="+os.Getenv("PATH"), harness.Binary(), "run", "--socket", d.Socket, "--", "ibv_devinfo", "-l"))
	if out := p.OK(t, minute); !strings.Contains(out, "rxe0") {
		t.Errorf("want rxe0 in:\n%s", out)
	}
}

// What administrators look with.
// SIGHUP does not end a daemon without a terminal: it serves on, and reads its configuration again.
func TestHangup(t *testing.T) {
	d := harness.Start(t, harness.Options{})
	d.Process.Signal(syscall.SIGHUP)
	d.Process.Printed(t, "nothing has changed", minute)
	if out, err := d.Command("status").CombinedOutput(); err != nil {
		t.Errorf("the daemon does not answer any more: %v\n%s", err, out)
	}
}

// Without a daemon `status` exits with 3, as other commands do.
func TestStatusWithoutDaemon(t *testing.T) {
	harness.Build(t)
	cmd := exec.Command(harness.Binary(), "--socket", filepath.Join(harness.Directory(t, nil), "none.sock"), "status")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 3 || !strings.Contains(string(out), "no daemon serves") {
		t.Errorf("status: %v, want exit 3\n%s", err, out)
	}
}

func TestInspection(t *testing.T) {
	harness.Need(t, "ibv_devinfo", "ibv_devices", "ibstat", "ibstatus", "rdma")
	d := harness.Device(t)
	for _, c := range []struct {
		argv []string
		want []string
	}{
		{[]string{"ibv_devices"}, []string{"rxe0"}},
		{[]string{"ibv_devinfo", "-v"}, []string{"rxe0", "PORT_ACTIVE", "max_mtu:\t\t4096", "RoCE v2", "::ffff:127.0.0.1"}},
		{[]string{"ibstat"}, []string{"rxe0", "State: Active", "Physical state: LinkUp", "Link layer: Ethernet"}},
		{[]string{"ibstatus"}, []string{"rxe0", "ACTIVE", "Ethernet", "LinkUp"}},
		{[]string{"ls", "/sys/class/infiniband"}, []string{"rxe0"}},
		{[]string{"cat", "/sys/class/infiniband/rxe0/ports/1/state"}, []string{"4: ACTIVE"}},
	} {
		t.Run(c.argv[0], func(t *testing.T) {
			out := d.Run(t, minute, c.argv...)
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("%v: want %q in:\n%s", c.argv, want, out)
				}
			}
		})
	}
	t.Run("rdma_link", func(t *testing.T) {
		if out := d.Run(t, minute, "rdma", "link"); !strings.Contains(out, "link rxe0/1 state ACTIVE") {
			t.Errorf("rdma link prints\n%s", out)
		}
	})
	t.Run("rdma_link_without_a_daemon_is_explained", func(t *testing.T) {
		cmd := d.Command()
		cmd.Path, cmd.Args = "/usr/bin/env", []string{"env", "LD_PRELOAD=" + harness.Library(), "VRDMA_SOCKET=" + d.Socket + ".none", "rdma", "link"}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "there is no vrdma daemon at "+d.Socket+".none") {
			t.Errorf("want an explanation, got (%v):\n%s", err, out)
		}
	})
	t.Run("status", func(t *testing.T) {
		s := startStream(t, d, 0)
		out, err := d.Command("status", "-o", "json").Output()
		if err != nil {
			t.Fatalf("vrdma status -o json: %v\n%s", err, out)
		}
		var st protocol.Status
		if err := json.Unmarshal(out, &st); err != nil {
			t.Fatalf("vrdma status -o json printed %q: %v", out, err)
		}
		seen := map[int]protocol.SessionStatus{}
		for _, session := range st.Sessions {
			seen[session.Pid] = session
		}
		for _, p := range []*harness.Process{s.client, s.server} {
			session, ok := seen[p.PID()]
			if !ok || !strings.HasPrefix(session.Program, "stream") || len(session.QPs) != 1 || session.QPs[0].State != "RTS" {
				t.Errorf("status of pid %d: %+v, want program stream with one QP in RTS\n%s", p.PID(), session, out)
			}
		}
		if a, b := seen[s.client.PID()], seen[s.server.PID()]; len(a.QPs) == 1 && len(b.QPs) == 1 && a.QPs[0].DestQPN != b.QPs[0].Num {
			t.Errorf("the client's QP is connected to %#x, want %#x", a.QPs[0].DestQPN, b.QPs[0].Num)
		}
		text, err := d.Command("status").Output()
		if err != nil || !strings.Contains(string(text), strconv.Itoa(s.client.PID())) {
			t.Errorf("vrdma status: %v, want pid %d in:\n%s", err, s.client.PID(), text)
		}
		s.client.Signal(syscall.SIGKILL)
		s.server.Signal(syscall.SIGKILL)
	})
	t.Run("trace", func(t *testing.T) {
		cmd := d.Command("trace", "--socket", d.Socket, "--", harness.Compile(t, "work"), "window_type2")
		p := harness.Spawn(t, cmd)
		out := p.OK(t, minute)
		for _, want := range []string{"ALLOC_PD", "REG_MR", "CREATE_QP", "MODIFY_QP", "ALLOC_MW", "DESTROY_QP", "DEREG_MR"} {
			if !strings.Contains(strings.ToUpper(out), want) {
				t.Errorf("vrdma trace: want %q in:\n%s", want, out)
			}
		}
	})
	t.Run("trace_lists_what_was_refused", func(t *testing.T) {
		out := harness.Spawn(t, d.Command("trace", "--socket", d.Socket, "--", harness.Compile(t, "queues"), "raw_packet_qp_is_refused")).OK(t, minute)
		if last := harness.Tail(out, 2); !strings.Contains(last, "refused") || !strings.Contains(last, "CREATE_QP") {
			t.Errorf("vrdma trace: want the refused CREATE_QP at the end, got:\n%s", out)
		}
	})
}
